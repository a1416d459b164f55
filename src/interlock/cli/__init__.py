"""The command line: `interlock <noun> <verb>`. Results go to stdout, everything else to stderr."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import typer

from interlock import tracing
from interlock.cli import approvals, demo, dev, doctor, journal, replay, runs, server, sessions, tools, worker
from interlock.cli._console import emit
from interlock.cli._errors import WrongUsageError, explain, not_text

__all__ = ["main", "script"]

_HELP = """Runs LLM agents durably on Temporal, and holds each dangerous tool call until somebody has said yes.

\b
Start here:
  interlock dev support:app                 a server and a worker for app in support.py
  interlock runs start support --prompt "Order A-1001 arrived broken." --wait
  interlock approvals list
  interlock approvals decide RUN REQUEST --approve
  interlock journal RUN
"""
_EPILOG = """\b
The server is found by Temporal's own variables and profiles: TEMPORAL_ADDRESS
(default localhost:7233), TEMPORAL_NAMESPACE, TEMPORAL_PROFILE, TEMPORAL_API_KEY,
... Runs wait on the task queue INTERLOCK_TASK_QUEUE (default interlock). A flag
beats a variable. Exit status: 0 done, 1 failed, 2 wrong usage, 130 Ctrl+C.
"""


class _State:
    """What the global options said; it outlives the command, so that its errors can be shown accordingly."""

    verbose = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    state = _State()
    try:
        if problem := not_text(arguments):
            raise WrongUsageError(problem)
        status = typer.main.get_command(_app()).main(
            args=arguments, prog_name="interlock", standalone_mode=False, obj=state
        )
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:  # The reader of a pipe has gone.
        return error.code if isinstance(error.code, int) else 1
    except BrokenPipeError:
        return 1
    except Exception as error:
        return explain(error, verbose=state.verbose)


def script() -> None:
    """The console script. It ends the process by itself: a Temporal client may abort the interpreter at its exit."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = main()
    tracing.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _app() -> typer.Typer:
    # Plain help: rich's panels would triple the time that `interlock --help` takes.
    plain: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "add_completion": False}
    app = typer.Typer(help=_HELP, epilog=_EPILOG, **plain)
    app.callback()(_global_options)
    app.command("dev")(dev.dev)
    for noun in (runs, sessions, approvals, tools, worker, server):
        group = typer.Typer(help=noun.__doc__, **plain)
        group.callback()(_no_options)
        for verb, command in noun.COMMANDS.items():
            group.command(verb)(command)
        app.add_typer(group, name=noun.__name__.rpartition(".")[2])
    app.command("journal")(journal.journal)
    app.command("replay")(replay.replay)
    app.command("doctor")(doctor.doctor)
    app.command("demo")(demo.demo)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        emit(f"interlock {version('interlock')}")
        raise typer.Exit


def _global_options(
    context: typer.Context,
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show tracebacks, and more of what a worker does."),
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
) -> None:
    context.obj.verbose = verbose


def _no_options() -> None:
    """Keeps a group with one command a group."""
