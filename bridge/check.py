"""`python -m interlock.bridge.check`: tasks and runs that have lost each other. Run it where Airflow's database is.

Nothing is changed. Exits 1 when something needs a person, and says what to do.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO

from rich.console import Console
from rich.table import Table
from temporalio.client import WorkflowExecutionDescription
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED
from interlock.bridge._database import Place, task_at, waiting_tasks
from interlock.bridge.hook import TemporalHook
from interlock.bridge.identity import Note
from interlock.bridge.killing import OVER
from interlock.client import Client
from interlock.contracts import names

_SOON = timedelta(minutes=1)  # What has happened within it may still be on its way.
_MOST = 10_000
_WIDE = 10_000
_BEGUN_EVENTS = 3  # A run that no worker has begun has no more.
_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)


@dataclass(frozen=True)
class Found:
    """A task, its run, and what is wrong with them; nothing when it is empty.

    state: of the task in Airflow, empty when there is none. status: of the run in Temporal, empty when there is none.
    """

    task: str
    state: str
    workflow_id: str
    status: str
    wrong: str


def wrong_with(state: str, status: str, *, on_kill: str, changed: timedelta, has_begun: bool = True) -> str:
    """What is wrong with a task and its run, and what to do. changed: how long ago the run was started or has ended."""
    if changed < _SOON:
        return ""
    if not status:
        return "Temporal has no such run: clear the task." if state not in OVER else ""
    if status in CLOSED.values():
        return "Its run has ended, and nobody wakes it up: is a triggerer at work?" if state == "deferred" else ""
    if state in OVER or not state:
        if on_kill == "leave":
            return ""
        if status == "stuck" and state == "failed":
            return ""  # Its next try, after a clear, goes on with it.
        return "Its run goes on without it: clear the task to go on with it, or `interlock runs cancel` it."
    return "" if has_begun else "No worker has begun its run: is one at work on its task queue?"


async def look(conn_ids: Sequence[str]) -> list[Found]:
    """Look at the tasks that wait, and at the open runs that tasks have started. conn_ids: where to look for those."""
    waiting = {
        (run["temporal_conn_id"], run["workflow_id"]): (place, state, since)
        for place, state, run, since in waiting_tasks()
    }
    clients = {one: await TemporalHook(one).client() for one in {*conn_ids, *(one for one, _ in waiting)}}
    found = []
    for (conn_id, workflow_id), (place, state, since) in waiting.items():
        found.append(_found(place, state, "", since, await _described(clients[conn_id], workflow_id), workflow_id))
    for conn_id in conn_ids:
        query = "ExecutionStatus = 'Running' AND WorkflowId STARTS_WITH 'airflow/'"
        async for one in clients[conn_id].temporal.list_workflows(query, limit=_MOST):
            note = Note.read(await one.memo())
            if note is None or (conn_id, one.id) in waiting:
                continue
            state, run = task_at(note.place)
            on_kill = run["on_kill"] if run else ""
            found.append(
                _found(note.place, state, on_kill, one.start_time, await _described(clients[conn_id], one.id), one.id)
            )
    return sorted(found, key=lambda one: (not one.wrong, one.task))


def _found(
    place: Place, state: str, on_kill: str, since: datetime, run: WorkflowExecutionDescription | None, workflow_id: str
) -> Found:
    status, has_begun = "", True
    if run is not None:
        says = run.typed_search_attributes.get(_STATUS) or "running"
        status = CLOSED.get(run.status, says) if run.status else says
        since, has_begun = run.close_time or run.start_time, run.history_length > _BEGUN_EVENTS
    wrong = wrong_with(state, status, on_kill=on_kill, changed=datetime.now(UTC) - since, has_begun=has_begun)
    return Found(_named(place), state, workflow_id, status, wrong)


async def _described(client: Client, workflow_id: str) -> WorkflowExecutionDescription | None:
    try:
        return await client.temporal.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


def _named(place: Place) -> str:
    dag_id, run_id, task_id, map_index = place
    return f"{dag_id}.{task_id}{f'[{map_index}]' if map_index >= 0 else ''} {run_id}"


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m interlock.bridge.check", description=__doc__)
    parser.add_argument(
        "connections",
        nargs="*",
        metavar="CONN_ID",
        default=[TemporalHook.default_conn_name],
        help="where to look for runs that go on without their task; temporal_default without any",
    )
    found = asyncio.run(look(parser.parse_args(argv).connections))
    print_found(found, sys.stdout)
    return 1 if any(one.wrong for one in found) else 0


def print_found(found: Sequence[Found], file: IO[str]) -> None:
    """As a table. Outside a terminal each is on one line, whatever its length, so that a line tells all of it."""
    table = Table("Task", "State", "Run", "Status", "What is wrong", title="Tasks that wait, and runs that are open")
    for one in found:
        table.add_row(one.task, one.state or "gone", one.workflow_id, one.status or "gone", one.wrong or "-")
    wrong = sum(bool(one.wrong) for one in found)
    console = Console(file=file, width=None if file.isatty() else _WIDE, highlight=False)
    console.print(table, f"{len(found)} looked at, {wrong} need a person.")


if __name__ == "__main__":
    sys.exit(main())
