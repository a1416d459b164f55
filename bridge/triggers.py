"""The trigger: waits in the triggerer for what a task's run does next, and wakes the task up or ends it."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal
from weakref import WeakValueDictionary

import structlog
from airflow.triggers.base import BaseTrigger, TaskSuccessEvent, TriggerEvent
from asgiref.sync import sync_to_async
from temporalio.client import WorkflowExecutionDescription
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED
from interlock.bridge import metrics
from interlock.bridge._airflow import push_xcom, whole
from interlock.bridge.endings import Ending, ending_of, run_of
from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
from interlock.bridge.hook import TemporalHook
from interlock.bridge.identity import PLACE
from interlock.bridge.killing import finish, is_over, stop_run, stop_run_of_task, task_state, told_of_kills
from interlock.bridge.mirror import open_requests
from interlock.bridge.outcome import Waited, xcoms_of
from interlock.bridge.progress import Progress
from interlock.bridge.settling import TASK_ENDED, settled_of
from interlock.bridge.showing import answered, close
from interlock.bridge.watching import Waiter, Watch, watch_of
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.errors import InterlockError

Kind = Literal["ended", "stuck", "asked", "answered", "timeout", "vanished", "moved"]

_LOOKS_EVERY_SECONDS = 60.0  # Without a hint. Only who is followed by itself looks that often.
_LOOKS_RARELY_SECONDS = 900.0
_NO_WORKER_SECONDS = 60.0
_PUSH_SECONDS, _PUSHED_BY_TASKS_SECONDS = 30.0, 60.0
_LOOKS_AT_TASK_SECONDS = 5.0
_LAST_WORDS_SECONDS = 0.1  # Airflow closes the log with the event, whether it has read all lines by then or not.
_SOON = 20  # Looks, a second apart.
_GOES_ON = ("asked", "answered", "moved")  # Of events: after which the task waits on.
_CHANGES = ("approval_asked", "stuck", "run_ended")  # Of a run's events: after which a waiting task has to look.
_LONGEST_PAUSE_SECONDS = 30.0
_KILL_ATTEMPTS = 120  # For an hour: nobody else ends the run.
_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
_PENDING: SearchAttributeKey[Any] = SearchAttributeKey.for_int(names.ATTRIBUTE_PENDING_APPROVALS)

_log = structlog.get_logger(__name__)
_newest: "WeakValueDictionary[tuple[Any, ...], RunTrigger]" = WeakValueDictionary()
"""Of each task, the trigger that this process has begun last."""


class RunTrigger(BaseTrigger):
    """Waits for a run. Its events are hints with which the task looks at the run again; none is taken for the truth.

    waited: what the task knows of its run, as `Waited` in JSON; every event carries it back.
    """

    def __init__(self, waited: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waited = Waited.model_validate(waited)
        self._looks_soon = 0
        self._has_worker = False  # Or it has been said that there is none.
        self._looked_for_answer = False
        self._client_at_hand: Client | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and what it is made with, as Airflow stores it."""
        return "interlock.bridge.triggers.RunTrigger", {"waited": self.waited.model_dump(mode="json")}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the task has something to do. Yields one event."""
        with told_of_kills(self):
            event = await self._until_event()
        yield event

    async def on_kill(self) -> None:
        """Somebody has acted on the task. The run is ended only when the task is over: not for a clear, and not for an
        answer in Required Actions, which wakes the task up just so."""
        await finish(self._kill())

    async def _until_event(self) -> TriggerEvent:
        try:
            client = await self._client()
        except BadTaskError as error:  # The task says it, with its own type.
            return self._event("ended", error=str(error))
        except TemporalUnavailableError:  # Its time is over. Who wakes up waits until the run can be ended.
            return self._event("timeout")
        self._client_at_hand = client
        _newest[self._place] = self
        run = client.attach(self.waited.workflow_id)
        progress = Progress(run, skip=self.waited.told)

        async def follow(hint: Callable[[], None]) -> None:
            failures = 0
            while True:
                try:
                    async for event in progress.follow():
                        failures = 0
                        # What a request needs is looked up before it is open: it is looked for until it is.
                        if event.kind == "approval_asked" and self.waited.mirrors:
                            self._looks_soon = _SOON
                        if event.kind in _CHANGES:
                            hint()
                    hint()
                    return
                except (InterlockError, RPCError):
                    hint()
                    failures += 1
                    await asyncio.sleep(_pause_after(failures))

        watch = watch_of(client.temporal)
        async with watch.waiting(self.waited.workflow_id, follow, asks=self.waited.mirrors) as waiter:
            event = await self._wait(client, watch, waiter, progress)
        with contextlib.suppress(InterlockError, RPCError):
            await progress.catch_up()
        await asyncio.sleep(_LAST_WORDS_SECONDS)
        await self._close_after(event, client)
        await self._until_awaited()
        return event

    async def _until_awaited(self) -> None:
        """Wait while the task does not: it was marked or cleared, and Airflow is about to cancel this trigger. SQLite
        may have given its id to another one, whose task an event would wake up, or even end."""
        while self.task_instance is not None:
            try:
                state = await whole(sync_to_async(task_state)(self.task_instance))
            except Exception:  # Airflow's own API does not answer. An event too many only has a task look.
                return
            if state in ("deferred", ""):
                return
            await asyncio.sleep(_LOOKS_AT_TASK_SECONDS)

    async def _kill(self) -> None:
        if self.waited.here is not None and await is_over(self.task_instance):
            await close(self._ti_id, TASK_ENDED)
        if self.waited.on_kill == "leave":
            return
        waited, why = self.waited, "Somebody has ended the task in Airflow."
        stop = stop_run_of_task(waited.workflow_id, waited.on_kill, why, of=self.task_instance, run_id=waited.run_id)
        client = self._client_at_hand  # The connection may be gone by now.
        for attempt in range(1, _KILL_ATTEMPTS + 1):
            if not await is_over(self.task_instance):  # Each time: it may have been cleared while Temporal was away.
                return
            try:
                client = client or await self._hook().client()
                if await stop(client):
                    _log.info("run.stopped", workflow_id=waited.workflow_id, how=waited.on_kill)
                return
            except (RPCError, TemporalUnavailableError) as error:
                _log.warning("run.not_stopped", workflow_id=waited.workflow_id, error=str(error))
            if client is not None and await self._hook().leads_elsewhere(client):
                client = None
            await asyncio.sleep(_pause_after(attempt))

    def _hook(self) -> TemporalHook:
        return TemporalHook(self.waited.temporal_conn_id, task_queue=self.waited.task_queue)

    async def _client(self) -> Client:
        pause = 1.0
        while True:
            try:
                return await self._hook().client()
            except TemporalUnavailableError as error:
                if self._seconds_left() <= 0:
                    raise
                _log.warning("temporal.unanswered", error=str(error))
            await asyncio.sleep(min(pause, max(self._seconds_left(), 0.1)))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _wait(self, client: Client, watch: Watch, waiter: Waiter, progress: Progress) -> TriggerEvent:
        failures, hinted = 0, False
        while True:
            try:
                found = await self._look(client, watch)
                if found is None and hinted and not waiter.follows:
                    with contextlib.suppress(InterlockError, RPCError):
                        async with watch.question:
                            await progress.catch_up()
                failures = 0
            except (RPCError, InterlockError) as error:
                # Of whatever kind: the run is not known to have ended, so it is waited for.
                _log.warning("temporal.unanswered", error=str(error))
                failures += 1
                found = None
                if failures % 2 == 0 and await self._hook().leads_elsewhere(client):
                    found = self._event("moved")
            if found is not None:
                return found
            if self._seconds_left() <= 0:
                await self._end_in_time(client)
                return self._event("timeout")
            pause = _pause_after(failures) if failures else self._pause(watch, waiter)
            hinted = await waiter.wait(min(self._seconds_left(), pause))

    def _pause(self, watch: Watch, waiter: Waiter) -> float:
        if self._looks_soon:
            self._looks_soon -= 1
            return 1.0
        if not self._has_worker and (left := _NO_WORKER_SECONDS - self._age()) > 0:
            return left + 1
        return watch.pause(_LOOKS_EVERY_SECONDS if waiter.follows or self.waited.mirrors else _LOOKS_RARELY_SECONDS)

    def _age(self) -> float:
        return (datetime.now(UTC) - self.waited.began_at).total_seconds()

    def _seconds_left(self) -> float:
        if self.waited.deadline is None:
            return float("inf")
        return (self.waited.deadline - datetime.now(UTC)).total_seconds()

    async def _answer(self) -> TriggerEvent | None:
        """What was answered on the task before this trigger was there: Airflow tells it to nobody else."""
        if self.waited.here is None or self.waited.answer is not None or self._looked_for_answer:
            return None
        try:
            answer = await answered(self._ti_id)
        except Exception as error:  # Airflow's own API does not answer: it is looked at again.
            _log.warning("required_action.unread", error=str(error))
            return None
        self._looked_for_answer = True
        return self._event("answered", answer=answer.model_dump(mode="json")) if answer else None

    async def _close_after(self, event: TriggerEvent, client: Client) -> None:
        """Close what the task shows when the task is about to end: nobody may answer into the void."""
        if self.waited.here is None or (isinstance(event.payload, dict) and event.payload.get("kind") in _GOES_ON):
            return
        with contextlib.suppress(InterlockError, RPCError):
            settled, _ = await settled_of(client, self.waited.here)
            await close(self._ti_id, settled or TASK_ENDED)

    async def _closed(self, client: Client) -> TriggerEvent | None:
        """The request that the task shows is open no longer: somebody has settled it elsewhere."""
        assert self.waited.here is not None
        settled, _ = await settled_of(client, self.waited.here)
        if settled is None:
            return None
        await close(self._ti_id, settled)
        _log.info(f"Request {self.waited.here.request_id} of run {self.waited.here.workflow_id}: {settled}.")
        return self._event("asked", closed=True)

    async def _look(self, client: Client, watch: Watch) -> TriggerEvent | None:
        if answer := await self._answer():
            return answer
        async with watch.turn:
            found = await self._describe(client)
            if found is None:
                return self._event("vanished") if self.waited.must_exist else None
            if found.status in CLOSED and not self.waited.ends_task:
                return self._event("ended")
            ending = await ending_of(client, self.waited.workflow_id, found=found) if found.status in CLOSED else None
        if found.status in CLOSED:
            return await self._ended(watch, ending) if ending else None  # None: it was started again just now.
        if not self._has_worker:
            self._look_for_worker(client, found)
        status, pending = _what_waits(found)
        if status == "stuck" and self.waited.on_stuck == "fail":
            return self._event("stuck")
        if self.waited.mirrors:
            async with watch.question:
                # A server without Interlock's search attributes says nothing of either.
                own = pending > 0 or not status
                requests = await open_requests(client, self.waited.workflow_id, own=own)
            if self.waited.answer is not None:  # A worker is there that can take it.
                return self._event("asked")
            if self.waited.here is not None and self.waited.here_key not in requests:
                return await self._closed(client)
            if not set(requests) <= set(self.waited.asked):
                return self._event("asked")
        return None

    async def _describe(self, client: Client) -> WorkflowExecutionDescription | None:
        try:
            return await run_of(client, self.waited.workflow_id, self.waited.run_id)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
                return None
            raise

    async def _ended(self, watch: Watch, ending: Ending) -> TriggerEvent:
        # A task that was cleared may wait by a newer trigger; this one may have the id of another task's by now.
        if ending.status != "completed" or _newest.get(self._place, self) is not self:
            return self._event("ended")
        try:
            async with watch.pushing:
                if time.monotonic() < watch.pushed_by_tasks_until:
                    return self._event("ended")
                async with asyncio.timeout(_PUSH_SECONDS):
                    await self._push(xcoms_of(ending, self.waited))
        except Exception as error:  # The task can push them itself.
            if isinstance(error, TimeoutError):  # A database that does not answer must not keep all of them, in turn.
                watch.pushed_by_tasks_until = time.monotonic() + _PUSHED_BY_TASKS_SECONDS
            _log.warning("xcoms.not_pushed", error=repr(error))
            return self._event("ended")
        # Nothing is left for a worker to do: the task need not wait for a slot of its pool.
        metrics.ended(self.task_instance, ending, self.waited)
        return TaskSuccessEvent()

    @property
    def _ti_id(self) -> str:
        return str(self.task_instance.id) if self.task_instance is not None else ""

    @property
    def _place(self) -> tuple[Any, ...]:
        return tuple(getattr(self.task_instance, name, None) for name in PLACE)

    async def _push(self, xcoms: Mapping[str, Any]) -> None:
        """As a task does: Airflow stores what a `TaskSuccessEvent` brings along as JSON in JSON, and knows no backend
        of the deployment's own for it."""
        ti: Any = self.task_instance
        for key, value in xcoms.items():
            await push_xcom(key, value, dag_id=ti.dag_id, task_id=ti.task_id, run_id=ti.run_id, map_index=ti.map_index)

    async def _end_in_time(self, client: Client) -> None:
        with contextlib.suppress(RPCError, InterlockError):
            await stop_run(client, self.waited.workflow_id, self.waited.on_kill, "The task's time is over.")

    def _look_for_worker(self, client: Client, found: WorkflowExecutionDescription) -> None:
        """Say it once when no worker has begun the run within a minute, or none can."""
        failures = found.raw_description.pending_workflow_task.attempt - 1
        has_begun = found.history_length > 3
        self._has_worker = has_begun and failures <= 0
        if self._has_worker or self._age() < _NO_WORKER_SECONDS:
            return
        self._has_worker = True
        if has_begun:
            _log.warning(
                f"The workers of task queue {client.task_queue!r} cannot begin run {self.waited.workflow_id}: its "
                f"workflow task has failed {failures} times. Perhaps none has the workflow {found.workflow_type!r}; "
                "their log, and the run in Temporal, say more."
            )
            return
        _log.warning(
            f"No worker has begun run {self.waited.workflow_id} on task queue {client.task_queue!r} since "
            f"{self.waited.began_at:%H:%M:%S} UTC. It begins when one does: `interlock worker run MODULE:APP`."
        )

    def _event(self, kind: Kind, **more: Any) -> TriggerEvent:
        payload = {"kind": kind, "waited": self.waited.model_dump(mode="json"), **more}
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _pause_after(failures: int) -> float:
    pause = min(2.0 ** min(failures, 10), _LONGEST_PAUSE_SECONDS)
    return pause * random.uniform(0.5, 1.0)  # noqa: S311 - Only spreads the requests of many.


async def what_waits(client: Client, workflow_id: str) -> tuple[str, int]:
    """What an open run says of itself where everybody can look: its `InterlockStatus`, and how many open requests it
    has. Empty and 0 for other workflows, and where the server has no such search attributes. Needs no worker."""
    return _what_waits(await client.temporal.get_workflow_handle(workflow_id).describe())


def _what_waits(found: WorkflowExecutionDescription) -> tuple[str, int]:
    attributes = found.typed_search_attributes
    return attributes.get(_STATUS) or "", attributes.get(_PENDING) or 0
