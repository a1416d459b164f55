"""Check that this code can go on with what is stored, or with what is open on the server."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from interlock.cli._connect import connect, quiet_core
from interlock.cli._console import emit, emit_json, err, out, say
from interlock.cli._divergence import replayed_text
from interlock.cli._errors import WrongUsageError
from interlock.cli._finished import replay_finished
from interlock.cli._load import load_app, split_target
from interlock.cli._logs import without_tracebacks
from interlock.cli._options import AsJson, Target, TaskQueue
from interlock.cli._signals import until_signal
from interlock.contracts.errors import InterlockError, MisconfiguredError

if TYPE_CHECKING:
    from interlock.app import Interlock
    from interlock.replay import Replayed, Stored, Wanted

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def replay(
    context: typer.Context,
    target: Target,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="Histories in JSON, or folders of them.", exists=True),
    ] = None,
    running: Annotated[bool, typer.Option("--running", help="The runs that are open on the task queue now.")] = False,
    closed_since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The runs that have ended since: 30m, 12h, 7d.")
    ] = None,
    unpinned: Annotated[
        bool, typer.Option("--unpinned", help="Without runs that are pinned to a worker deployment version.")
    ] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many runs, the newest.")] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Fail too when a run's agent is not in the app, or all open runs are on other task queues."
        ),
    ] = False,
    task_queue: TaskQueue = None,
    follow: Annotated[bool, typer.Option("--follow", hidden=True)] = False,
    as_json: AsJson = False,
) -> int:
    """Check that an app's code would do what histories say was done.

    Nothing is run: no model and no tool is called. Exit status: 0 all replay, 1 one diverges, 2 wrong usage.

    \b
    Examples:
      interlock replay support:app --running --strict
      interlock replay support:app histories/ run.json
    """
    split_target(target)
    if follow:
        return _follow(target)
    wanted = _wanted(running=running, closed_since=closed_since, unpinned=unpinned)
    if bool(paths) == bool(wanted):
        raise WrongUsageError("Give files or folders of histories, or --running or --closed-since.")
    quiet_core()
    app = load_app(target)
    with without_tracebacks():
        results, elsewhere = asyncio.run(
            _from_server(app, wanted, limit, task_queue) if wanted else _of_files(app, paths or [])
        )
    ok = _is_ok(results, strict=strict) and not (strict and elsewhere)
    if as_json:
        emit_json(_document(results, elsewhere, ok=ok))
    else:
        _print(results, verbose=context.obj.verbose)
    return 0 if ok else 1


def _wanted(*, running: bool, closed_since: str | None, unpinned: bool) -> "Wanted | None":
    if not running and closed_since is None:
        return None
    from interlock.replay import Wanted

    since = None if closed_since is None else datetime.now(UTC) - _duration(closed_since)
    return Wanted(open=running, closed_since=since, unpinned=unpinned)


def _duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if not found:
        raise WrongUsageError(f"--closed-since takes a number and s, m, h or d, such as 12h; not {text!r}.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _from_files(paths: Sequence[Path]) -> "tuple[AsyncIterator[Stored], int]":
    from interlock.replay import read_files

    try:
        read = read_files(paths)
    except MisconfiguredError as error:
        raise WrongUsageError(str(error)) from error.__cause__

    async def one_by_one() -> "AsyncIterator[Stored]":
        for stored in read:
            yield stored

    return one_by_one(), len(read)


async def _from_server(
    app: "Interlock", wanted: "Wanted", limit: int | None, task_queue: str | None
) -> "tuple[list[Replayed], dict[str, int]]":
    """Also the task queues on which runs are open, when none is on the one that was asked about."""
    from interlock.replay import count_on_server, on_server, other_queues

    client = await connect(task_queue or app.settings.task_queue)
    there = await count_on_server(client, wanted)
    elsewhere = await other_queues(client) if wanted.open and not there else {}
    say(f"Replaying {min(there, limit or there)} of {there} runs of task queue {client.task_queue}.", style="dim")
    if elsewhere:
        named = ", ".join(f"{queue} ({count})" for queue, count in elsewhere.items())
        said = f"No run is there on task queue {client.task_queue}, but runs are open on others: {named}."
        say(f"{said} Name one with --task-queue.", style="yellow")
    return await _each(app, on_server(client, wanted, limit=limit), min(there, limit or there)), elsewhere


async def _of_files(app: "Interlock", paths: Sequence[Path]) -> "tuple[list[Replayed], dict[str, int]]":
    return await _each(app, *_from_files(paths)), {}


async def _each(app: "Interlock", histories: "AsyncIterator[Stored]", count: int) -> "list[Replayed]":
    from interlock.replay import replaying

    results: list[Replayed] = []
    with _progress(count) as advance:
        async with replaying(app) as replay:
            async for stored in histories:
                results.append(await replay(stored))
                advance()
    return results


@contextmanager
def _progress(count: int) -> "Iterator[Callable[[], None]]":
    """On a terminal, a bar; elsewhere nothing."""
    from rich.progress import Progress

    with Progress(console=err(), transient=True, disable=not err().is_terminal) as progress:
        bar = progress.add_task("Replaying", total=count)
        yield lambda: progress.advance(bar)


def _is_ok(results: "Sequence[Replayed]", *, strict: bool) -> bool:
    bad = ("diverges", "unknown_agent") if strict else ("diverges",)
    return not any(one.outcome in bad for one in results)


def _counts(results: "Sequence[Replayed]") -> dict[str, int]:
    from interlock.replay import Outcome

    return {outcome: sum(one.outcome == outcome for one in results) for outcome in get_args(Outcome)}


def _document(results: "Sequence[Replayed]", elsewhere: dict[str, int], *, ok: bool) -> dict[str, Any]:
    histories = [one.model_dump(mode="json") for one in results]
    return {"ok": ok, **_counts(results), "histories": histories, "other_queues": elsewhere}


def _print(results: "Sequence[Replayed]", *, verbose: bool) -> None:
    for one in results:
        if one.outcome != "replays":
            out().print(replayed_text(one, verbose=verbose), soft_wrap=True)
    counts = _counts(results)
    said = [f"{counts['replays']} of {len(results)} replay"]
    said += [f"diverging: {counts['diverges']}"] if counts["diverges"] else []
    said += [f"of agents that this app does not have: {counts['unknown_agent']}"] if counts["unknown_agent"] else []
    emit(f"{', '.join(said)}.")


def _follow(target: str) -> int:
    began = datetime.now(UTC)
    os.nice(10)  # The worker beside it, and its runs, go first.
    try:
        app = load_app(target)
    except InterlockError:  # The worker beside it says so.
        return 1

    async def work() -> int:
        return await replay_finished(app, await connect(app.settings.task_queue), began)

    with without_tracebacks():
        return asyncio.run(until_signal(work()))
