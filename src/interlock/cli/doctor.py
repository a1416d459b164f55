"""Checks what a run needs, and says for each thing that is missing what to do."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli._connect import connect
from interlock.cli._console import emit_json, line, show
from interlock.cli._format import table
from interlock.cli._load import load_app, split_target
from interlock.cli._options import AsJson, TaskQueue
from interlock.cli._preflight import model_checks
from interlock.cli._versions_check import versions_checks
from interlock.cli._watchdog import look_at_runs, show_troubles
from interlock.cli.worker import add_attribute
from interlock.contracts import names
from interlock.contracts.errors import InterlockError, MisconfiguredError, UnavailableError

if TYPE_CHECKING:
    from interlock.app import Interlock
    from interlock.client import Client
    from interlock.watchdog import RunTrouble


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. found: what is there. todo: what to do; empty when nothing is wrong."""

    name: str
    ok: bool
    found: str
    todo: str = ""


def doctor(
    target: Annotated[
        str | None, typer.Argument(metavar="MODULE:APP", help="An app to load too, such as support:app.")
    ] = None,
    task_queue: TaskQueue = None,
    runs: Annotated[
        bool, typer.Option("--runs", help="Look at the open runs too, and name those that do not get on.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check that everything is there, and say what to do.

    It looks at the server, its search attributes, the worker on the task queue, and an app if you name one. It ends
    with 1 when something is wrong; a run that waits for a person is not.

    \b
    Examples:
      interlock doctor
      interlock doctor support:app
      interlock doctor --runs
    """
    if target is not None:
        split_target(target)
    app, app_checks = _load(target) if target else (None, [])
    queue = task_queue or (app.settings.task_queue if app else None)
    checks, troubles = asyncio.run(_all(queue, app_checks, runs=runs))
    ok = all(check.ok for check in checks) and not any(trouble.wrong for trouble in troubles or ())
    agents = app.adapter().tools() if app else {}
    if as_json:
        listed = {} if troubles is None else {"runs": [trouble.model_dump(mode="json") for trouble in troubles]}
        emit_json({"ok": ok, "checks": [asdict(check) for check in checks], "agents": agents, **listed})
    else:
        _print(checks, agents)
        if troubles is not None:
            show_troubles(troubles)
    return 0 if ok else 1


def _load(target: str) -> "tuple[Interlock | None, list[Check]]":
    try:
        app = load_app(target)
    except InterlockError as error:
        cause = f" {error.__cause__}" if isinstance(error.__cause__, InterlockError) else ""
        return None, [Check("app", ok=False, found=target, todo=f"{error}{cause}")]
    return app, [Check("app", ok=True, found=f"{target}: {', '.join(app.agents)}"), *model_checks(app)]


async def _all(
    task_queue: str | None, app: list[Check], *, runs: bool
) -> "tuple[list[Check], list[RunTrouble] | None]":
    try:
        client = await connect(task_queue)
    except InterlockError as error:
        found = "not reachable" if isinstance(error, UnavailableError) else "not asked"
        return [Check("server", ok=False, found=found, todo=str(error)), _binary(needed=True), *app], None
    checks = [check async for check in _server(client)]
    troubles = await look_at_runs(client) if runs and checks[0].ok else None
    return [*checks, _binary(needed=False), *app], troubles


async def _server(client: "Client") -> AsyncIterator[Check]:
    from interlock._rpc import server_errors
    from interlock._versions import workers_of

    where = f"{client.temporal.service_client.config.target_host}, namespace {client.temporal.namespace}"
    try:
        missing = await client.missing_attributes()
        with server_errors(""):
            workers = await workers_of(client)
    except InterlockError as error:
        yield Check("server", ok=False, found=where, todo=str(error))
        return
    yield Check("server", ok=True, found=where)
    for name in missing:
        yield Check(f"search attribute {name}", ok=False, found="missing", todo=add_attribute(name))
    if not missing:
        yield Check("search attributes", ok=True, found=f"all {len(names.SEARCH_ATTRIBUTES)}")
    todo = "" if workers.serve() else workers.todo()
    found = f"task queue {client.task_queue}: {'none' if todo else 'there'}"
    yield Check("worker", ok=not todo, found=found, todo=todo)
    async for check in versions_checks(client, workers):
        yield check


def _binary(*, needed: bool) -> Check:
    from interlock.server import temporal_binary

    try:
        return Check("embedded server", ok=True, found=temporal_binary())
    except MisconfiguredError as error:
        found = "not installed" if needed else "not installed, and not needed: a server is there"
        return Check("embedded server", ok=not needed, found=found, todo=str(error) if needed else "")


def _print(checks: list[Check], agents: Mapping[str, Sequence[str]]) -> None:
    from rich.text import Text

    wrong = any(check.todo for check in checks)
    made = table("", "Check", "Found", *(["What to do"] if wrong else []))
    for check in checks:
        mark = Text("ok", style="green") if check.ok else Text("no", style="bold red")
        made.add_row(mark, check.name, line(check.found), *([line(check.todo)] if wrong else []))
    show(made)
    if agents:
        tools = table("Agent", "Tools")
        for name, found in agents.items():
            tools.add_row(line(name), line(", ".join(found)) or "none")
        show(tools)
