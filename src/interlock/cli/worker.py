"""Run the worker of an app, or check that it works."""

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli._connect import connect
from interlock.cli._console import say
from interlock.cli._load import load_app
from interlock.cli._logs import log_to_stderr, log_to_stderr_again
from interlock.cli._options import Target, TaskQueue
from interlock.cli._signals import exit_status, on_signals
from interlock.contracts import names
from interlock.contracts.errors import UnavailableError

if TYPE_CHECKING:
    from interlock._versions import Version
    from interlock.app import Interlock
    from interlock.client import Client

_POLLS_WITHIN_SECONDS = 10


Deployment = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The worker deployment it is part of.  [env var: INTERLOCK_DEPLOYMENT]"),
]
BuildId = Annotated[
    str | None,
    typer.Option(metavar="ID", help="The build it runs; its runs end on it.  [env var: INTERLOCK_BUILD_ID]"),
]


def run(
    context: typer.Context,
    target: Target,
    task_queue: TaskQueue = None,
    deployment: Deployment = None,
    build_id: BuildId = None,
) -> int:
    """Run an app's worker until Ctrl+C or SIGTERM; then it lets the calls it is at finish.

    \b
    Examples:
      interlock worker run support:app
      interlock worker run support:app --deployment support --build-id 1.4.0
    """
    log_to_stderr(verbose=context.obj.verbose)
    app = load_app(target)
    log_to_stderr_again(verbose=context.obj.verbose)
    given = {"deployment": deployment, "build_id": build_id}
    _change_settings(app, {name: value for name, value in given.items() if value is not None})
    return asyncio.run(_work(app, task_queue))


def _change_settings(app: "Interlock", given: dict[str, str]) -> None:
    from interlock.settings import Settings

    if given:
        app.settings = Settings.read(**{**app.settings.model_dump(), **given})


def check(task_queue: TaskQueue = None) -> int:
    """Say by the exit status whether a worker on this machine takes runs: 0 when one does, 1 when none.

    It is what a container's health check runs. A worker elsewhere does not count.

    \b
    Examples:
      interlock worker check
    """
    return asyncio.run(_check(task_queue))


async def _check(task_queue: str | None) -> int:
    client, host = await connect(task_queue), socket.gethostname()
    if not await client.has_worker(host=host):
        raise UnavailableError(f"No worker on {host} takes runs from task queue {client.task_queue!r}.")
    return 0


async def _work(app: "Interlock", task_queue: str | None) -> int:
    from interlock._versions import workers_of
    from interlock.worker import run_worker, version_of

    client = await connect(task_queue or app.settings.task_queue, measured=app.settings)
    await workers_of(client)  # Before a worker is made, which would log at length that its namespace is not there.
    stop, received = asyncio.Event(), list[int]()

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            sys.stderr.flush()
            os._exit(exit_status(number) or 1)  # Calls in flight are lost; their runs notice by the heartbeat.
        limit = app.settings.graceful_shutdown_seconds
        say(f"Stopping. Calls in flight may finish, within {limit:g} s.", style="dim")
        stop.set()

    on_signals(on_signal)
    worker = asyncio.ensure_future(run_worker(app, client, stop))
    await _polling(worker, client, version_of(app.settings))
    if not worker.done() and not received:
        await _say_what_it_serves(app, client)
    await worker
    return exit_status(received[0]) if received else 0


async def _polling(worker: "asyncio.Future[None]", client: "Client", version: "Version") -> None:
    from interlock._versions import workers_of

    deadline = asyncio.get_running_loop().time() + _POLLS_WITHIN_SECONDS
    while not worker.done() and asyncio.get_running_loop().time() < deadline:
        if version in (await workers_of(client)).polling:
            return
        await asyncio.sleep(0.05)


async def _say_what_it_serves(app: "Interlock", client: "Client") -> None:
    address, namespace = client.temporal.service_client.config.target_host, client.temporal.namespace
    say(f"Worker for {', '.join(app.agents)}", style="bold")
    say(f"Task queue {client.task_queue}, server {address}, namespace {namespace}. Ctrl+C stops it.")
    await _say_where_runs_go(app, client)
    say(f"Start a run with: interlock runs start {next(iter(app.agents))} --prompt TEXT --wait")
    for name in await client.missing_attributes():
        say(f"The server lacks search attribute {name}; runs work without it. Add it: {add_attribute(name)}")


async def _say_where_runs_go(app: "Interlock", client: "Client") -> None:
    from interlock._versions import promotion, shown, workers_of
    from interlock.worker import version_of

    version, current = version_of(app.settings), (await workers_of(client)).current
    if version is not None and version != current:
        say(f"Version {shown(version)} is not current: it takes no new runs yet. Make it so: {promotion(version)}")
    elif version is not None:
        say(f"Version {shown(version)} is current: new runs go to it.")
    elif current is not None:
        say(f"This worker has no version, and version {shown(current)} is current: all runs go there.", style="yellow")


def add_attribute(name: str) -> str:
    """The command that adds one of Interlock's search attributes to a server."""
    return f"temporal operator search-attribute create --name {name} --type {names.SEARCH_ATTRIBUTES[name]}"


COMMANDS = {"run": run, "check": check}
