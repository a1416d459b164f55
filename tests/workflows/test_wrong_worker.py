"""A worker of another app, or on another machine, on the queue of a run."""

import socket
from datetime import UTC, datetime

from pydantic_ai import Tool

from interlock import Interlock
from interlock.contracts.payloads import Decision
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.workflows.scripts import Script, agent, call


async def test_a_run_under_way_outlives_a_worker_without_its_agent(server: EmbeddedServer) -> None:
    script = Script([call("refund", "a")], "done")
    right = Interlock([agent(script, tools=[Tool(lambda: "refunded", name="refund", requires_approval=True)])])
    wrong = Interlock([agent(Script("x"), name="another")])
    async with running(right, server) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        task_queue = app.client.task_queue
    async with running(wrong, server, task_queue=task_queue) as app:
        handle = app.client.temporal.get_workflow_handle(run.id)
        await handle.signal("complete_tool_call", {"call_id": "nothing", "completed_at": "2026-01-01T00:00:00Z"})

        async def failed_task() -> str:
            events = [event async for event in handle.fetch_history_events()]
            failures = [event.workflow_task_failed_event_attributes.failure.message for event in events]
            return next((message for message in failures if message), "")

        assert "has no agent 'support'; it has: another" in await eventually(failed_task)
    async with running(right, server, task_queue=task_queue) as app:
        # By signal: the server lets some seconds pass before it gives a failed task out again.
        decision = Decision(request_id="1", verdict="approve", digest=request.digest, decided_at=datetime.now(UTC))
        await app.client.temporal.get_workflow_handle(run.id).signal("decide_approval", decision)

        assert (await app.client.attach(run.id).result()).output == "done"


async def test_a_worker_elsewhere_does_not_count_as_one_of_this_machine(server: EmbeddedServer) -> None:
    async with running(Interlock([agent(Script("x"))]), server) as app:
        assert await eventually(app.client.has_worker)
        assert await app.client.has_worker(host=socket.gethostname())
        assert not await app.client.has_worker(host="elsewhere")
