"""Histories of the runs on a server."""

import asyncio
from collections.abc import AsyncIterator, Container, Iterable
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

_QUEUES = 10


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
        # Sessions too: a build has to be able to go on with each of them.
        types = f"WorkflowType IN ('{names.AGENT_WORKFLOW}', '{names.SESSION_WORKFLOW}')"
        return self._query(f"{types} AND TaskQueue = {quoted(task_queue)}")

    def query_elsewhere(self, task_queues: Iterable[str]) -> str:
        """Runs of all other task queues. A session is always open, and says nothing of a queue."""
        queues = ", ".join(map(quoted, task_queues))
        return self._query(f"WorkflowType = '{names.AGENT_WORKFLOW}' AND TaskQueue NOT IN ({queues})")

    def _query(self, where: str) -> str:
        either = ["ExecutionStatus = 'Running'"] if self.open else []
        if self.closed_since is not None:
            either.append(f"CloseTime >= '{self.closed_since.isoformat()}'")
        query = f"{where} AND ({' OR '.join(either)})"
        if self.unpinned:
            behavior = "TemporalWorkflowVersioningBehavior"
            query += f" AND ({behavior} IS NULL OR {behavior} != 'Pinned')"
        return query


async def count_on_server(client: Client, wanted: Wanted) -> int:
    """How many runs there are."""
    with server_errors(""):
        return (await client.temporal.count_workflows(wanted.query(client.task_queue))).count


async def other_queues(client: Client) -> dict[str, int]:
    """The task queues other than the client's on which runs are open, and how many. Of many queues only the first."""
    opened = Wanted()
    found: dict[str, int] = {}
    with server_errors(""):
        while len(found) < _QUEUES:
            elsewhere = opened.query_elsewhere([client.task_queue, *found])
            listed = [one async for one in client.temporal.list_workflows(elsewhere, limit=1)]
            if not listed:
                break
            queue = listed[0].task_queue
            found[queue] = (await client.temporal.count_workflows(opened.query(queue))).count
    return found


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
