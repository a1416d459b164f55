"""Which run is ended with a task: its own, and no other one that has the id meanwhile."""

from dataclasses import replace

import pytest

from interlock import Client
from interlock.bridge.identity import Note, TaskIdentity
from interlock.bridge.killing import stop_run_of_task
from interlock.server import EmbeddedServer

TASK = TaskIdentity("tickets", "manual__1", "handle", -1, try_number=1, clears=0)


@pytest.mark.parametrize(
    ("starter", "waits_for_it", "stopped"),
    [
        (TASK, True, True),
        (TASK, False, True),  # Its run was started over meanwhile.
        (replace(TASK, run_id="manual__2"), False, False),  # The next Dag run's, which has the same business key.
        (replace(TASK, run_id="manual__2"), True, True),  # By `on_new_dag_run="attach"`.
        (replace(TASK, dag_id="other"), True, False),
        (replace(TASK, task_id="other"), True, False),
        (replace(TASK, map_index=1), True, False),
        (None, True, False),
    ],
)
async def test_a_task_that_is_ended_ends_its_own_run(
    server: EmbeddedServer, starter: TaskIdentity | None, waits_for_it: bool, stopped: bool
) -> None:
    client = await Client.connect(server.address)
    memo = Note.by(starter, {}).memo() if starter else {}
    handle = await client.temporal.start_workflow("Nobody", id="ticket-killed", task_queue="nobody", memo=memo)
    run_id = (handle.first_execution_run_id or "") if waits_for_it else "of-before"
    stop = stop_run_of_task("ticket-killed", "cancel", "marked", of=TASK, run_id=run_id)
    try:
        assert await stop(client) is stopped
        asked = (await handle.describe()).raw_description.workflow_execution_info.history_length
        assert asked == (3 if stopped else 2)
    finally:
        await handle.terminate()
    assert await stop(client) is False  # One that has ended already.
