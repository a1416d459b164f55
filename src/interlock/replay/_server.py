"""Histories of the runs on a server."""

import asyncio
from collections.abc import AsyncIterator, Container
from dataclasses import dataclass
from datetime import datetime

from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import quoted, server_errors
from interlock.client import Client
from interlock.contracts import names
from interlock.replay._stored import Stored

_AT_ONCE = 10
"""Histories that are fetched at the same time; each waits in memory until it is replayed."""


@dataclass(frozen=True)
class Wanted:
    """Which runs on the client's task queue are meant.

    open: those that have not ended. closed_since: those that have ended since. unpinned: only those that are not
    pinned to a worker deployment version.
    """

    open: bool = True
    closed_since: datetime | None = None
    unpinned: bool = False

    def query(self, task_queue: str) -> str:
        """As Temporal's visibility takes it."""
        either = ["ExecutionStatus = 'Running'"] if self.open else []
        if self.closed_since is not None:
            either.append(f"CloseTime >= '{self.closed_since.isoformat()}'")
        query = (
            f"WorkflowType IN ('{names.AGENT_WORKFLOW}', '{names.SESSION_WORKFLOW}') "
            f"AND TaskQueue = {quoted(task_queue)} AND ({' OR '.join(either)})"
        )
        if self.unpinned:
            behavior = "TemporalWorkflowVersioningBehavior"
            query += f" AND ({behavior} IS NULL OR {behavior} != 'Pinned')"
        return query


async def count_on_server(client: Client, wanted: Wanted) -> int:
    """How many runs there are."""
    with server_errors(""):
        return (await client.temporal.count_workflows(wanted.query(client.task_queue))).count


async def on_server(
    client: Client, wanted: Wanted, *, limit: int | None = None, without: Container[str] = ()
) -> AsyncIterator[Stored]:
    """The histories of runs, the newest first, some fetched ahead. limit: at most so many. without: by run id."""
    fetching: list[asyncio.Task[Stored | None]] = []
    try:
        with server_errors(""):
            async for execution in client.temporal.list_workflows(wanted.query(client.task_queue), limit=limit):
                if execution.run_id in without:
                    continue
                fetching.append(asyncio.create_task(_fetched(client, execution)))
                if len(fetching) == _AT_ONCE and (stored := await fetching.pop(0)):
                    yield stored
            while fetching:
                if stored := await fetching.pop(0):
                    yield stored
    finally:
        for task in fetching:
            task.cancel()


async def _fetched(client: Client, execution: WorkflowExecution) -> Stored | None:
    handle = client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
    try:
        return Stored(await handle.fetch_history())
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:  # It has been deleted meanwhile.
            return None
        raise
