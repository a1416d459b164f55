"""The trigger: waits in the triggerer for what a task's run does next, and wakes the task up or ends it."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED
from interlock.bridge import metrics
from interlock.bridge.endings import Ending, ending_of
from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
from interlock.bridge.hook import TemporalHook
from interlock.bridge.killing import finish, is_over, stop_run
from interlock.bridge.outcome import Waited, xcoms_of
from interlock.bridge.progress import Progress
from interlock.bridge.watching import Waiter, watch_of
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.errors import InterlockError, RefusedError, UnavailableError

Kind = Literal["ended", "stuck", "asked", "timeout", "vanished"]

_LOOKS_EVERY_SECONDS = 60.0  # Without a hint. Only who is followed by itself looks that often.
_LOOKS_RARELY_SECONDS = 900.0
_NO_WORKER_SECONDS = 60.0
_SOON = 20  # Looks, a second apart.
_LONGEST_PAUSE_SECONDS = 30.0
_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
_PENDING: SearchAttributeKey[Any] = SearchAttributeKey.for_int(names.ATTRIBUTE_PENDING_APPROVALS)

_log = structlog.get_logger(__name__)


class RunTrigger(BaseTrigger):
    """Waits for a run. Its events are hints with which the task looks at the run again; none is taken for the truth.

    waited: what the task knows of its run, as `Waited` in JSON; every event carries it back.
    """

    def __init__(self, waited: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waited = Waited.model_validate(waited)
        self._looks_soon = 0

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and what it is made with, as Airflow stores it."""
        return "interlock.bridge.triggers.RunTrigger", {"waited": self.waited.model_dump(mode="json")}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the task has something to do. Yields one event."""
        try:
            client = await self._client()
        except BadTaskError as error:  # The task says it, with its own type.
            yield self._event("ended", error=str(error))
            return
        run = client.attach(self.waited.workflow_id)
        progress = Progress(run, skip=self.waited.told)

        async def follow(hint: Callable[[], None]) -> None:
            while True:
                try:
                    async for event in progress.follow():
                        # What a request needs is looked up before it is open: it is looked for until it is.
                        if event.kind == "approval_asked" and self.waited.mirrors:
                            self._looks_soon = _SOON
                        hint()
                    hint()
                    return
                except (InterlockError, RPCError):
                    hint()
                    await asyncio.sleep(random.uniform(1, 3))  # noqa: S311 - Only spreads reconnections.

        async with watch_of(client.temporal).waiting(self.waited.workflow_id, follow) as waiter:
            event = await self._wait(client, waiter)
        with contextlib.suppress(InterlockError, RPCError):
            await progress.catch_up()
        yield event

    async def on_kill(self) -> None:
        """Somebody has acted on the task. The run is ended only when the task is over: not for a clear, and not for an
        answer in Required Actions, which wakes the task up just so."""
        await finish(self._kill())

    async def _kill(self) -> None:
        if self.waited.on_kill == "leave" or not await is_over(self.task_instance):
            return
        client = await self._client()
        await stop_run(client, self.waited.workflow_id, self.waited.on_kill, "Somebody has ended the task in Airflow.")
        _log.info("run.stopped", workflow_id=self.waited.workflow_id, how=self.waited.on_kill)

    async def _client(self) -> Client:
        pause = 1.0
        while True:
            try:
                return await TemporalHook(self.waited.temporal_conn_id, task_queue=self.waited.task_queue).client()
            except TemporalUnavailableError as error:
                if self._seconds_left() <= 0:
                    raise
                _log.warning("temporal.unanswered", error=str(error))
            await asyncio.sleep(min(pause, max(self._seconds_left(), 0.1)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _wait(self, client: Client, waiter: Waiter) -> TriggerEvent:
        warned = False
        while True:
            try:
                found = await self._look(client)
            except (RPCError, UnavailableError) as error:
                _log.warning("temporal.unanswered", error=str(error))
                found = None
            if found is not None:
                return found
            if self._seconds_left() <= 0:
                await self._end_in_time(client)
                return self._event("timeout")
            if not warned:
                warned = await self._warn_of_no_worker(client)
            await waiter.wait(min(self._seconds_left(), self._pause(waiter, warned)))

    def _pause(self, waiter: Waiter, warned: bool) -> float:
        if self._looks_soon:
            self._looks_soon -= 1
            return 1.0
        age = (datetime.now(UTC) - self.waited.began_at).total_seconds()
        if not warned and age < _NO_WORKER_SECONDS:
            return _NO_WORKER_SECONDS - age + 1
        rare = _LOOKS_EVERY_SECONDS if waiter.follows or self.waited.mirrors else _LOOKS_RARELY_SECONDS
        return rare * random.uniform(0.8, 1.2)  # noqa: S311 - Only spreads the requests of many.

    def _seconds_left(self) -> float:
        if self.waited.deadline is None:
            return float("inf")
        return (self.waited.deadline - datetime.now(UTC)).total_seconds()

    async def _look(self, client: Client) -> TriggerEvent | None:
        found = await self._describe(client.temporal)
        if found is None:
            return self._event("vanished") if self.waited.must_exist else None
        if found.status in CLOSED:
            return await self._ended(client)
        status, pending = _what_waits(found)
        if status == "stuck" and self.waited.on_stuck == "fail":
            return self._event("stuck")
        if self.waited.mirrors and pending:
            with contextlib.suppress(RefusedError):
                requests = await client.attach(self.waited.workflow_id).approvals()
                new = [one.request_id for one in requests if one.request_id not in self.waited.asked]
                if new:
                    return self._event("asked", requests=new)
        return None

    async def _describe(self, temporal: TemporalClient) -> WorkflowExecutionDescription | None:
        try:
            return await temporal.get_workflow_handle(self.waited.workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                return None
            raise

    async def _ended(self, client: Client) -> TriggerEvent | None:
        if not self.waited.ends_task:
            return self._event("ended")
        ending: Ending | None = await ending_of(client, self.waited.workflow_id)
        if ending is None or ending.status != "completed":
            return self._event("ended") if ending else None
        # Nothing is left for a worker to do: the task need not wait for a slot of its pool.
        metrics.ended(self.task_instance, ending, self.waited)
        return TaskSuccessEvent(xcoms=xcoms_of(ending, self.waited))

    async def _end_in_time(self, client: Client) -> None:
        with contextlib.suppress(RPCError, InterlockError):
            await stop_run(client, self.waited.workflow_id, self.waited.on_kill, "The task's time is over.")

    async def _warn_of_no_worker(self, client: Client) -> bool:
        """Say it once when no worker has begun the run within a minute. Returns whether there is nothing to say."""
        if (datetime.now(UTC) - self.waited.began_at).total_seconds() < _NO_WORKER_SECONDS:
            return False
        with contextlib.suppress(RPCError, InterlockError):
            found = await self._describe(client.temporal)
            if found is not None and found.history_length <= 3:
                _log.warning(
                    f"No worker has begun run {self.waited.workflow_id} on task queue {client.task_queue!r} since "
                    f"{self.waited.began_at:%H:%M:%S} UTC. It begins when one does: `interlock worker run MODULE:APP`."
                )
        return True

    def _event(self, kind: Kind, **more: Any) -> TriggerEvent:
        payload = {"kind": kind, "waited": self.waited.model_dump(mode="json"), **more}
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


async def what_waits(client: Client, workflow_id: str) -> tuple[str, int]:
    """What an open run says of itself where everybody can look: its `InterlockStatus`, and how many open requests it
    has. Empty and 0 for other workflows, and where the server has no such search attributes. Needs no worker."""
    return _what_waits(await client.temporal.get_workflow_handle(workflow_id).describe())


def _what_waits(found: WorkflowExecutionDescription) -> tuple[str, int]:
    attributes = found.typed_search_attributes
    return attributes.get(_STATUS) or "", attributes.get(_PENDING) or 0
