"""Makes the worker of an app, and the replayer that checks histories against the same code."""

import asyncio
import os
import socket
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

from temporalio.client import Client as TemporalClient
from temporalio.converter import DataConverter
from temporalio.worker import Replayer, Worker

from interlock.activities.describe import DescribeTool
from interlock.activities.own_time import LoopWatch, OwnTimeInterceptor
from interlock.activities.recall import RecallStep
from interlock.activities.record import record_verdict
from interlock.adapters.pydantic_ai.worker import OPEN_END
from interlock.app import Interlock
from interlock.client import Client
from interlock.contracts.payloads import RunInput, RunOptions, RunOutput
from interlock.histories import StoredHistories
from interlock.workflows.agent import AgentWorkflow, WorkerAgents
from interlock.workflows.interceptor import RunInterceptor
from interlock.workflows.runner import RunRunner

# Without one the SDK reads the code of every loaded module to make it, which takes over a second.
_BUILD_ID = f"interlock-{version('interlock')}"


class SubRunsThroughClient:
    """Starts the runs of agents that tools run, through the worker's own connection."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self, workflow_id: str, run: RunInput, *, not_before: datetime) -> RunOutput:
        """See `SubRuns`."""
        options = RunOptions(stuck_seconds=self._client.stuck_seconds)
        run = run.model_copy(update={"options": options})
        started = await self._client.start_run(workflow_id, run)
        if await started.ended_in_vain(before=not_before):
            started = await self._client.start_run(workflow_id, run, restart=True)
        return await started.result()

    async def cancel(self, workflow_id: str) -> None:
        """See `SubRuns`."""
        await self._client.attach(workflow_id).cancel()


def make_worker(app: Interlock, client: Client, **overrides: Any) -> tuple[Worker, OwnTimeInterceptor]:
    """A worker for the app's agents, and the interceptor that knows what it is at. overrides: of Temporal's Worker."""
    settings = app.settings
    adapter = app.adapter(SubRunsThroughClient(client))
    own_time = OwnTimeInterceptor(limit=timedelta(seconds=settings.tool_timeout_seconds), unlimited=OPEN_END)
    options: dict[str, Any] = {
        "task_queue": client.task_queue,
        "workflows": [AgentWorkflow, *adapter.child_workflows],
        "activities": [
            DescribeTool(adapter).describe_tool,
            RecallStep(StoredHistories(client.temporal)).recall_step,
            record_verdict,
            *adapter.activities,
        ],
        "interceptors": [RunInterceptor(WorkerAgents(adapter.runners)), own_time, adapter.interceptor],
        "workflow_runner": RunRunner(),
        "build_id": _BUILD_ID,
        "identity": f"{os.getpid()}@{socket.gethostname()}",
        "max_cached_workflows": settings.max_cached_runs,
        "max_concurrent_activities": settings.max_concurrent_activities,
        "sticky_queue_schedule_to_start_timeout": timedelta(seconds=settings.lost_worker_seconds),
        "graceful_shutdown_timeout": timedelta(seconds=settings.graceful_shutdown_seconds),
        "max_heartbeat_throttle_interval": timedelta(seconds=2),
    }
    config = client.temporal.config()
    config["data_converter"] = DataConverter(payload_converter_class=adapter.payload_converter)
    return Worker(TemporalClient(**config), **{**options, **overrides}), own_time


async def run_worker(app: Interlock, client: Client, stop: asyncio.Event, **overrides: Any) -> None:
    """Run a worker until `stop` is set, then let what it is at finish."""
    worker, own_time = make_worker(app, client, **overrides)
    with LoopWatch(own_time.running):
        async with worker:
            await stop.wait()


def make_replayer(app: Interlock) -> Replayer:
    """A replayer with the same workflows, converter and interceptors as the app's worker. It needs no server."""
    adapter = app.adapter()
    return Replayer(
        workflows=[AgentWorkflow, *adapter.child_workflows],
        interceptors=[RunInterceptor(WorkerAgents(adapter.runners, alone=True))],
        workflow_runner=RunRunner(),
        build_id=_BUILD_ID,
        data_converter=DataConverter(payload_converter_class=adapter.payload_converter),
    )
