"""The trigger of a Required Action: waits until it is answered, or settled elsewhere, and closes it then."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import structlog
from airflow.triggers.base import BaseTrigger, TriggerEvent
from temporalio.service import RPCError

from interlock.bridge._airflow import ANSWERS_WAKE
from interlock.bridge.asked import Asked
from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
from interlock.bridge.form import Answer
from interlock.bridge.hook import TemporalHook
from interlock.bridge.killing import finish, is_over, told_of_kills
from interlock.bridge.progress import PACE_SECONDS
from interlock.bridge.settling import TASK_ENDED, settled_of
from interlock.bridge.showing import answered, close
from interlock.bridge.watching import Waiter, Watch, watch_of
from interlock.client import Client
from interlock.contracts.errors import InterlockError, RefusedError

Until = Literal["settled", "recalled", "reached"]

_LOOKS_EVERY_SECONDS = 60.0  # Without a hint.
_LOOKS_RARELY_SECONDS = 300.0
_ANSWERS_EVERY_SECONDS = 5.0  # Where an answer does not wake the task up by itself.
_LONGEST_PAUSE_SECONDS = 30.0
_RECALLS = 5

_log = structlog.get_logger(__name__)


class RequestTrigger(BaseTrigger):
    """Waits for one request. Its events are hints with which the task looks at the request again. It ends no run.

    asked: as `Asked` in JSON. ti_id: of the task instance that shows it.
    until: `settled`: it is answered, or settled elsewhere: then it is closed here. `recalled`: at once: with the answer
    that an earlier try of the task got, if any. `reached`: a worker of the run answers.
    answer: as `Answer` in JSON; what `reached` gives back.
    """

    def __init__(
        self, asked: dict[str, Any], ti_id: str, until: Until = "settled", answer: dict[str, Any] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked = Asked.model_validate(asked)
        self.ti_id = ti_id
        self.until = until
        self.answer = answer

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and what it is made with, as Airflow stores it."""
        return "interlock.bridge.awaiting.RequestTrigger", {
            "asked": self.asked.model_dump(mode="json"),
            "ti_id": self.ti_id,
            "until": self.until,
            "answer": self.answer,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait until the task has something to do. Yields one event."""
        with told_of_kills(self):
            event = await self._until_event()
        yield event

    async def on_kill(self) -> None:
        """Somebody has acted on the task. When that is over, nobody may answer into the void; its run goes on."""
        await finish(self._kill())

    async def _until_event(self) -> TriggerEvent:
        if self.until == "recalled":
            return self._event(await self._recall())
        try:
            client = await self._client()
        except BadTaskError as error:  # The task says it, with its own type.
            return self._event(error=str(error))
        if self.until == "reached":
            await self._reach(client)
            return self._event(Answer.model_validate(self.answer) if self.answer else None)
        watch = watch_of(client.temporal)
        async with watch.waiting(self.asked.workflow_id, self._follow(client), asks=True) as waiter:
            return await self._wait(client, watch, waiter)

    async def _kill(self) -> None:
        if await is_over(self.task_instance):
            await close(self.ti_id, TASK_ENDED)

    def _follow(self, client: Client) -> Any:
        async def follow(hint: Callable[[], None]) -> None:
            run, offset = client.attach(self.asked.workflow_id), 0
            while True:
                try:
                    async for event in run.events(from_offset=offset, pace_seconds=PACE_SECONDS):
                        offset = event.offset + 1
                        if event.kind.startswith(("approval_", "run_")):
                            hint()
                    return
                except RefusedError:  # Its events cannot be told; it is looked at without hints.
                    return
                except (InterlockError, RPCError):
                    hint()
                    await asyncio.sleep(random.uniform(1, 3))  # noqa: S311 - Only spreads reconnections.

        return follow

    async def _wait(self, client: Client, watch: Watch, waiter: Waiter) -> TriggerEvent:
        seen: tuple[Any, ...] = ()
        hinted, looks_at = True, 0.0
        while True:
            # An answer may have come before this trigger was there.
            try:
                if answer := await self._answered():
                    return self._event(answer)
            except Exception as error:  # Airflow's own API does not answer: it is looked at again.
                _log.warning("required_action.unread", error=str(error))
            if hinted or time.monotonic() >= looks_at:
                pause = watch.pause(_LOOKS_EVERY_SECONDS if waiter.follows else _LOOKS_RARELY_SECONDS)
                try:
                    if (now := await self._history(client)) != seen:
                        settled, _ = await settled_of(client, self.asked)
                        if settled is not None:
                            await close(self.ti_id, settled)
                            return self._event()
                        seen = now
                except (InterlockError, RPCError) as error:
                    _log.warning("temporal.unanswered", error=str(error))
                    if await TemporalHook(self.asked.temporal_conn_id).leads_elsewhere(client):
                        return self._event()
                    pause = _LONGEST_PAUSE_SECONDS
                looks_at = time.monotonic() + pause
            left = looks_at - time.monotonic()
            hinted = await waiter.wait(left if ANSWERS_WAKE else min(left, _ANSWERS_EVERY_SECONDS))

    async def _history(self, client: Client) -> tuple[Any, ...]:
        """What changes whenever the run's history does: reading that is worth it only then."""
        try:
            found = await client.temporal.get_workflow_handle(self.asked.workflow_id).describe()
        except RPCError as error:
            if "not found" in error.message:
                return ("gone",)
            raise
        return found.run_id, found.history_length, found.status

    async def _client(self) -> Client:
        pause = 1.0
        while True:
            try:
                return await TemporalHook(self.asked.temporal_conn_id).client()
            except TemporalUnavailableError as error:
                _log.warning("temporal.unanswered", error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _reach(self, client: Client) -> None:
        pause = 1.0
        while True:
            try:
                await client.attach(self.asked.workflow_id).approvals()
                return
            except RefusedError:  # Then the task finds out more.
                return
            except InterlockError as error:
                _log.warning("temporal.unanswered", error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _recall(self) -> Answer | None:
        # An answer must not be taken for none since Airflow is busy: to ask again would wipe it out.
        for attempt in range(_RECALLS):
            try:
                return await self._answered()
            except Exception:
                if attempt == _RECALLS - 1:
                    raise
                await asyncio.sleep(attempt + 1)
        raise AssertionError("unreachable")

    async def _answered(self) -> Answer | None:
        return await answered(self.ti_id)

    def _event(self, answer: Answer | None = None, **more: Any) -> TriggerEvent:
        payload = {
            # SQLite uses ids again: an event can reach a task that another trigger was made for.
            "asked": self.asked.model_dump(mode="json"),
            "ti_id": self.ti_id,
            "until": self.until,
            "answer": answer.model_dump(mode="json") if answer else None,
            **more,
        }
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]
