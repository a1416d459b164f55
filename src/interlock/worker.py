"""Makes the worker of an app, and the replayer that checks histories against the same code."""

import asyncio
import os
import socket
from contextlib import suppress
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker, WorkerDeploymentConfig

from interlock._activations import ActivationThreads, ActivationWatch, GuardedRunner
from interlock._failures import ToldFailures
from interlock._rpc import server_errors
from interlock._threads import take_plain_functions
from interlock.activities.conversation import WholeRequests
from interlock.activities.describe import DescribeTool
from interlock.activities.own_time import LoopWatch, OwnTimeInterceptor
from interlock.activities.recall import RecallStep
from interlock.activities.record import record_verdict
from interlock.activities.session import SessionTurns
from interlock.activities.stream import StreamInterceptor
from interlock.adapters._calls import OPEN_END
from interlock.app import Interlock
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.errors import RefusedError, RunFailedError, UnavailableError
from interlock.contracts.payloads import Parent, RunInput, RunOutput
from interlock.contracts.ports import Adapter
from interlock.histories import StoredHistories
from interlock.run import Run
from interlock.sessions import StoredSessions
from interlock.settings import Settings
from interlock.workflows.agent import AgentWorkflow, WorkerAgents
from interlock.workflows.guard import GuardInterceptor
from interlock.workflows.interceptor import RunInterceptor
from interlock.workflows.session import SessionWorkflow, UpgradingSessionWorkflow

# Without one the SDK reads the code of every loaded module to make it, which takes over a second.
_BUILD_ID = f"interlock-{version('interlock')}"
_LOOK_AGAIN_SECONDS = 1
_GUARD = GuardInterceptor()  # First: it sees what comes in before the others do, and what goes out after them.


class SubRunsThroughClient:
    """Starts the runs of agents that tools run, through the worker's own connection.

    pinned_to: they stay on the worker's own version, like a pinned run's child workflows: it is this version's code
    that gives them their input and reads their output.
    """

    def __init__(self, client: Client, pinned_to: WorkerDeploymentVersion | None = None) -> None:
        self._client = client
        self._pinned_to = pinned_to

    async def run(self, workflow_id: str, run: RunInput, *, not_before: datetime) -> RunOutput:
        """See `SubRuns`."""
        while True:
            try:
                return await self._run(workflow_id, run, not_before)
            except UnavailableError:
                # The server is away; the run is not. A tool that waits for weeks must not fail each time: its attempts
                # are few. If the server has meanwhile given the attempt up it is cancelled, here.
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _run(self, workflow_id: str, run: RunInput, not_before: datetime) -> RunOutput:
        asked = {"stuck_seconds": self._client.stuck_seconds, "places_by_answer": True, "needs_parent": True}
        run = run.model_copy(update={"options": run.options.model_copy(update=asked)})
        started = await self._start(workflow_id, run)
        if await started.ended_in_vain(before=not_before):
            started = await self._start(workflow_id, run, restart=True)
        try:
            return await started.result()
        except RunFailedError as error:
            if error.error_type != names.PARENT_GONE or not await self._is_there(run.parent):
                raise
        # It was found, and looked for an execution of the run above that has been reset: now it looks for this one.
        return await (await self._start(workflow_id, run, restart=True)).result()

    async def _is_there(self, parent: Parent | None) -> bool:
        if parent is None:
            return False
        with server_errors(parent.workflow_id):
            handle = self._client.temporal.get_workflow_handle(parent.workflow_id, run_id=parent.run_id)
            return (await handle.describe()).status is WorkflowExecutionStatus.RUNNING

    async def _start(self, workflow_id: str, run: RunInput, *, restart: bool = False) -> Run:
        """The run, started or found. Who is cancelled meanwhile goes on only then, and finds the run to cancel."""
        starting = asyncio.ensure_future(
            self._client.start_run(workflow_id, run, restart=restart, pinned_to=self._pinned_to)
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait({starting})
            raise

    async def cancel(self, workflow_id: str) -> None:
        """See `SubRuns`."""
        with suppress(RefusedError):
            await self._client.attach(workflow_id).cancel()

    async def is_over(self, workflow_id: str) -> bool:
        """See `SubRuns`."""
        description = await self._client.temporal.get_workflow_handle(workflow_id).describe()
        return description.status is not WorkflowExecutionStatus.RUNNING


def make_worker(
    app: Interlock,
    client: Client,
    watch: ActivationWatch | None = None,
    adapter: Adapter | None = None,
    **overrides: Any,
) -> tuple[Worker, OwnTimeInterceptor]:
    """A worker for the app's agents, and the interceptor that knows what it is at.

    adapter: of the app, where somebody else closes it. overrides: of Temporal's Worker.
    """
    settings = app.settings
    version = version_of(settings)
    adapter = adapter or _adapter(app, client)
    turns = SessionTurns(StoredSessions(client.temporal, client.task_queue))
    histories = StoredHistories(client.temporal)
    requests = WholeRequests(histories)
    own_time = OwnTimeInterceptor(limit=timedelta(seconds=settings.tool_timeout_seconds), unlimited=OPEN_END)
    options: dict[str, Any] = {
        "task_queue": client.task_queue,
        "workflows": [
            AgentWorkflow,
            UpgradingSessionWorkflow if version else SessionWorkflow,
            *adapter.child_workflows,
        ],
        "activities": [
            DescribeTool(adapter, app.approvals).describe_tool,
            RecallStep(histories).recall_step,
            record_verdict,
            turns.join_session,
            turns.leave_session,
            *requests.of(adapter.activities),
        ],
        "interceptors": [
            _GUARD,
            RunInterceptor(WorkerAgents(adapter.runners, review_rounds=app.review_rounds)),
            StreamInterceptor(),
            own_time,
            requests,  # Before all that look at what a model is asked.
            *adapter.interceptors,
        ],
        "workflow_runner": GuardedRunner(watch),
        "workflow_task_executor": watch and watch.threads,
        **_versioning(version),
        "identity": f"{os.getpid()}@{socket.gethostname()}",
        "max_cached_workflows": settings.max_cached_runs,
        "max_concurrent_activities": settings.max_concurrent_activities,
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=settings.lost_worker_seconds),
        "graceful_shutdown_timeout": timedelta(seconds=settings.graceful_shutdown_seconds),
        "max_heartbeat_throttle_interval": timedelta(seconds=2),
    }
    config = client.temporal.config()
    config["data_converter"] = _converter(adapter)
    return Worker(TemporalClient(**config), **{**options, **overrides}), own_time


async def run_worker(app: Interlock, client: Client, stop: asyncio.Event, **overrides: Any) -> None:
    """Run a worker until `stop` is set, then let what it is at finish."""
    watch = ActivationWatch(ActivationThreads())
    adapter = _adapter(app, client)
    take_plain_functions()
    worker, own_time = make_worker(app, client, watch, adapter, **overrides)
    try:
        with watch, LoopWatch(own_time.running):
            async with worker:
                await stop.wait()
    finally:
        await adapter.close()


def _adapter(app: Interlock, client: Client) -> Adapter:
    return app.adapter(SubRunsThroughClient(client, version_of(app.settings)))


def version_of(settings: Settings) -> WorkerDeploymentVersion | None:
    """The worker deployment version that a worker with these settings is of."""
    return WorkerDeploymentVersion(settings.deployment, settings.build_id) if settings.deployment else None


def _versioning(version: WorkerDeploymentVersion | None) -> dict[str, Any]:
    if version is None:
        return {"build_id": _BUILD_ID}
    # Not said by the workflow itself, so that workers without a version go on as they are.
    pinned = WorkerDeploymentConfig(
        version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
    )
    return {"deployment_config": pinned}


def make_replayer(app: Interlock, **overrides: Any) -> Replayer:
    """A replayer with the same workflows, converter and interceptors as the app's worker. It needs no server.

    overrides: of Temporal's Replayer.
    """
    adapter = app.adapter()
    options: dict[str, Any] = {
        "workflows": [AgentWorkflow, SessionWorkflow, *adapter.child_workflows],
        "interceptors": [_GUARD, RunInterceptor(WorkerAgents(adapter.runners, alone=True))],
        "workflow_runner": GuardedRunner(),
        "build_id": _BUILD_ID,
        "data_converter": _converter(adapter),
    }
    return Replayer(**{**options, **overrides})


def _converter(adapter: Adapter) -> DataConverter:
    return DataConverter(payload_converter_class=adapter.payload_converter, failure_converter_class=ToldFailures)
