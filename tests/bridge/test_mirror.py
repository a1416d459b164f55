"""Which requests a task shows: its run's and those of the agents below it, each once, and nobody else's."""

from datetime import timedelta

from pydantic_ai import Tool
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from interlock import Client, Interlock
from interlock.bridge.mirror import open_requests
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.workflows.scripts import Script, agent, call


def refund() -> str:
    return "refunded"


GATED = Tool(refund, requires_approval=True)


async def asked(client: Client, workflow_id: str, number: int = 1) -> list[str]:
    """The keys of the requests that a task whose run this is has to show, once there are so many."""

    async def there() -> list[str]:
        found = list(await open_requests(client, workflow_id))
        return found if len(found) >= number else []

    keys: list[str] = await eventually(there, every_seconds=0.2)
    return keys


async def test_what_is_asked_below_is_shown_and_not_what_begins_alike(server: EmbeddedServer) -> None:
    inner = agent(Script([call("refund")], "refunded"), name="inner", tools=[GATED])

    async def delegate() -> str:
        return str((await inner.run("refund it")).output)

    async def refer() -> str:
        return str((await inner.run("refund it")).output)

    async def hand_on() -> str:
        return str((await middle.run("refund it")).output)

    middle = agent(Script([call("refer")], "referred"), name="middle", tools=[refer])
    outer = agent(Script([call("delegate"), call("hand_on")], "done"), tools=[delegate, hand_on])
    # Its tools wait for agents: the worker is not to wait for its tools.
    async with running(Interlock([outer, middle, inner]), server, graceful_shutdown_timeout=timedelta()) as app:
        run_id = 'it\'s 50% of_a\\b "c"'
        others = (f"{run_id}/7", run_id.upper())
        for place in (run_id, *others):
            await app.client.start("support", "go", id=place)
        for place in others:
            await asked(app.client, place, 2)

        keys = await asked(app.client, run_id, 2)
        assert sorted(key.count("/") for key in keys) == [1, 2]
        assert not [key for key in keys if not key.startswith(("/inner-", "/middle-"))]


async def test_a_run_that_was_reset_asks_anew(server: EmbeddedServer) -> None:
    support = agent(Script([call("refund")], "done"), tools=[GATED])
    async with running(Interlock([support]), server) as app:
        run = await app.client.start("support", "go")
        before = await asked(app.client, run.id)
        await app.client.temporal.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=app.client.temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=run.started_run_id),
                reason="test",
                workflow_task_finish_event_id=3,
                request_id="reset",
            )
        )

        async def anew() -> bool:
            return not set(await open_requests(app.client, run.id)) <= set(before)

        assert await eventually(anew, every_seconds=0.2)
