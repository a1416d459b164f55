"""Connecting to the server, and finding a run there."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlock.cli._console import say
from interlock.cli._metrics import metrics_to
from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError

if TYPE_CHECKING:
    from interlock._versions import Version
    from interlock.client import Client
    from interlock.run import Run
    from interlock.settings import Settings


@dataclass(frozen=True)
class Found:
    """A run on the server. client: on the task queue that the run waits on. open: it has not ended yet.

    pinned_to: the worker deployment version that it stays on; None for one that any current worker takes.
    """

    client: Client
    run: Run
    open: bool
    pinned_to: Version = None

    async def works(self) -> bool:
        """Whether the run is open and a worker is there for it."""
        return self.open and await self.has_worker()

    async def has_worker(self) -> bool:
        """Whether a worker is there that takes this run."""
        return await self.client.has_worker(pinned_to=self.pinned_to)

    async def need_worker(self) -> None:
        """Raise UnavailableError when the run is open and no worker is there to answer for it."""
        if self.open and not await self.has_worker():
            from interlock._versions import workers_of

            workers = await workers_of(self.client)
            raise UnavailableError(
                f"No worker takes runs from task queue {self.client.task_queue!r}, so nobody answers for run "
                f"{self.run.id!r} and nothing was recorded. {workers.todo(self.pinned_to)}"
            )


async def connect(task_queue: str | None = None, *, measured: Settings | None = None) -> Client:
    """A client by Temporal's own environment variables and profiles. See `Client.connect`.

    measured: of a worker, whose metrics go where these settings say.
    """
    from interlock import tracing
    from interlock.client import Client
    from interlock.settings import Settings

    quiet_core(measured)
    try:
        tracing.set_up()
    except MisconfiguredError as error:  # Who wants to start or decide a run can do so without spans.
        say(str(error), style="yellow")
    settings = Settings.read()
    return await Client.connect(
        task_queue=task_queue or settings.task_queue,
        stuck_seconds=settings.stuck_seconds,
        budget=settings.default_budget,
    )


async def find(workflow_id: str) -> Found:
    """The run with this id. Raises RefusedError when there is none."""
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError, RPCStatusCode

    from interlock._versions import pin_of
    from interlock.client import Client

    client = await connect()
    try:
        description = await client.temporal.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND or "amespace" in error.message:
            raise
        raise RefusedError(f"There is no run {workflow_id!r}. See `interlock runs list`.") from error
    on_its_queue = Client(client.temporal, task_queue=description.task_queue)
    still_open = description.status is WorkflowExecutionStatus.RUNNING
    return Found(on_its_queue, on_its_queue.attach(workflow_id), still_open, pin_of(description))


def quiet_core(measured: Settings | None = None) -> None:
    """Hand what Temporal's core logs to Python, where it goes where logs go. By itself it writes to stdout.

    measured: see `connect`. Raises MisconfiguredError when the metrics cannot go there.
    """
    from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

    logger = logging.getLogger("temporalio.core")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    forwarding = LogForwardingConfig(logger=logger, append_target_to_name=False, prepend_target_on_message=False)
    config = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    where, metrics = (metrics_to(measured, os.environ) if measured else None) or ("", None)
    try:
        runtime = Runtime(telemetry=TelemetryConfig(logging=config, metrics=metrics))
    except ValueError as error:
        raise MisconfiguredError(f"The worker's metrics cannot go to {where}: {error}. It is IP:PORT.") from error
    with suppress(RuntimeError):  # A program that calls `main` has a runtime of its own already.
        Runtime.set_default(runtime)
