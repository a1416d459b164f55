"""Every scenario runs for each framework, with the workflow cache on and off, and each history it makes is replayed."""

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHistory

from interlock import Client, Interlock, Run
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from interlock.worker import make_replayer
from tests.conformance.frameworks import FRAMEWORKS, Framework

RunApp = Callable[..., AbstractAsyncContextManager[RunningApp]]

# So the server itself ends a task early, when news or much else has come in meanwhile, or a run is reset.
_OVERTAKEN = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
)


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    made: Framework = request.param
    return made


@pytest.fixture(params=[1_000, 0], ids=["cached", "uncached"])
def run_app(server: EmbeddedServer, request: pytest.FixtureRequest) -> RunApp:
    """Runs an app, as `run_app` does everywhere. queue: of an earlier worker, whose place this one takes."""
    return app_runner(server, request.param)


def app_runner(server: EmbeddedServer, cached_runs: int) -> RunApp:
    @asynccontextmanager
    async def run(app: Interlock, *, queue: str = "", **options: Any) -> AsyncIterator[RunningApp]:
        queue = queue or f"conformance-{uuid.uuid4().hex[:8]}"
        options = {"max_cached_workflows": cached_runs, **options}
        async with running(app, server, task_queue=queue, **options) as at_work:
            at_work.client.task_queue = queue
            yield at_work
        await check_histories(app, at_work.client)

    return run


async def check_histories(app: Interlock, client: Client) -> None:
    """Every execution on the client's task queue replays, and no workflow task of one has failed."""
    found = [one async for one in client.temporal.list_workflows(f"TaskQueue = '{client.task_queue}'")]
    for one in found:
        handle = client.temporal.get_workflow_handle(one.id, run_id=one.run_id)
        history = await handle.fetch_history()
        assert failed_tasks(history) == []
        await make_replayer(app).replay_workflow(history)


async def reset(app: RunningApp, run: Run) -> None:
    """Have the run begin anew, in another execution, with the messages that it has had."""
    temporal = app.client.temporal
    description = await temporal.get_workflow_handle(run.id).describe()
    await temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run.id, run_id=description.run_id),
            reason="a test",
            workflow_task_finish_event_id=4,
            request_id="once",
        )
    )


_OVERDUE = "[TMPRL1101]"
"""How Temporal begins to say that workflow code has taken 2 s, as any does on a machine that is busy enough. That a run
which does so again and again ends is tested where it is meant."""


def failed_tasks(history: WorkflowHistory) -> list[str]:
    """Why workflow tasks of a run have failed."""
    failures = [
        event.workflow_task_failed_event_attributes
        for event in history.events
        if event.HasField("workflow_task_failed_event_attributes")
    ]
    whys = [one.failure.message or str(one.cause) for one in failures if one.cause not in _OVERTAKEN]
    return [why for why in whys if not why.startswith(_OVERDUE)]
