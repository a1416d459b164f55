"""When a task's run is ended with the task, and how."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal

from asgiref.sync import sync_to_async
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED
from interlock.bridge._airflow import KILLS_ARE_TOLD, BaseTrigger
from interlock.bridge.identity import Note
from interlock.client import Client

OnKill = Literal["cancel", "terminate", "leave"]
"""What becomes of an open run when its task is over: it may clean up (`cancel`), it ends at once, or it goes on."""

OVER = ("success", "failed", "skipped", "upstream_failed", "removed")
"""The states of a task that is over."""

_detached: set["asyncio.Task[None]"] = set()
_ASKS = 5


@contextlib.contextmanager
def told_of_kills(trigger: BaseTrigger) -> Iterator[None]:
    """Around what a trigger does until its event: calls its `on_kill` when it is cancelled, where Airflow does not.

    Restarts cancel it too, so `on_kill` has to look at the task. It is not waited for: a triggerer that stops does not
    answer any more.
    """
    try:
        yield
    except asyncio.CancelledError:
        if not KILLS_ARE_TOLD and trigger.task_instance is not None:  # Without one, a task's own process waits.
            _detach(trigger.on_kill())
        raise


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Do what has to be done when a trigger is killed. To its end: Airflow kills it again every second until it is
    gone, and that cancels whatever is awaited there."""
    await asyncio.shield(_detach(work))


def _detach(work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    task = asyncio.create_task(work)
    _detached.add(task)
    task.add_done_callback(_detached.discard)
    return task


async def is_over(ti: Any) -> bool:
    """Whether Airflow takes a task instance for ended: marked, timed out, deleted, or its Dag run failed.

    Not when it was cleared, is to be retried, or was woken up by an answer. Unknown counts as not: a run that goes on
    is seen in Temporal, and the next try finds it; one that was cancelled for nothing is lost.
    """
    for attempt in range(_ASKS):
        try:
            return await sync_to_async(task_state)(ti) in OVER
        except Exception:  # The triggerer's own API is not up yet, or is busy.
            await asyncio.sleep(attempt + 1)
    return False


def task_state(ti: Any) -> str:
    """The state of a task instance by Airflow's database; empty for none, and `removed` when there is no such task
    instance any more, as when somebody has deleted its Dag."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    mapped = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=mapped
    )
    found = states.get(ti.run_id)
    if not found:
        return "removed"
    state = next(iter(found.values()))
    return str(getattr(state, "value", state) or "")


async def stop_run(client: Client, workflow_id: str, how: OnKill, why: str) -> None:
    """End an open run; one that has ended is left alone. why: is kept in its history."""
    handle = client.temporal.get_workflow_handle(workflow_id)
    try:
        if how == "cancel":
            await handle.cancel(reason=why)
        elif how == "terminate":
            await handle.terminate(reason=why)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise


def stop_run_of_task(
    workflow_id: str, how: OnKill, why: str, *, of: Any, run_id: str = ""
) -> Callable[[Client], Coroutine[Any, Any, bool]]:
    """End a run if it is open and that task has started it: its id comes from an XCom, which others can write, and one
    of the task's own making may be that of the next Dag run's by now.

    of: the task instance. run_id: of the execution that it waits for, which another Dag run may have started.
    Returns work for `TemporalHook.run`, which says whether there was such a run.
    """

    async def work(client: Client) -> bool:
        try:
            found = await client.temporal.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        note = Note.read(await found.memo())
        mapped = -1 if of.map_index is None else of.map_index
        if found.status in CLOSED or note is None:
            return False
        if (note.dag_id, note.task_id, note.map_index) != (of.dag_id, of.task_id, mapped):
            return False
        if note.run_id != of.run_id and found.run_id != run_id:
            return False
        await stop_run(client, workflow_id, how, why)
        return True

    return work
