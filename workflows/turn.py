"""A run's turn in its session: it waits until the turn comes, and hands over at its end what it adds."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from pydantic_core import to_json

    from interlock.contracts import names
    from interlock.contracts.payloads import RunInput, RunOutput, SessionPlace
    from interlock.contracts.sessions import (
        LARGEST_SESSION_BYTES,
        Turn,
        TurnClaim,
        TurnEnd,
        TurnEnded,
        TurnNotice,
    )

_ATTEMPT = timedelta(seconds=30)
_RELEASE_WITHIN = timedelta(minutes=1)  # Whoever wants the next turn finds a run that has ended without a word.
_RETRIES = RetryPolicy(maximum_interval=timedelta(seconds=30))


class SessionTurn:
    """The turn of one run; it does nothing for a run without a session. changed: called when `place` has changed."""

    def __init__(self, run: RunInput, changed: Callable[[], None]) -> None:
        self._run = run
        self._changed = changed
        self._asking: workflow.ActivityHandle[Any] | None = None
        self._told = False
        self.place: SessionPlace | None = None
        if run.session is not None:  # A run goes on in another execution with the turn that it has.
            self.place = SessionPlace(session_id=run.session, state="under_way" if run.carried else "waiting")

    async def begin(self, framework: str) -> RunInput:
        """Wait for the turn. Returns what the run is asked, with the conversation so far."""
        if self.place is None or self.place.state != "waiting":
            return self._run
        claim = TurnClaim(
            session_id=self.place.session_id,
            workflow_id=workflow.info().workflow_id,
            run_id=workflow.info().first_execution_run_id,
            agent=self._run.agent,
            framework=framework,
            started_at=workflow.info().workflow_start_time,
        )
        while (turn := await self._joined(claim)) is None:
            pass
        self._stand("under_way")
        return self._run.model_copy(update={"message_history": turn.messages or None})

    def look_again(self, notice: TurnNotice) -> None:
        """Ask the session now whether the turn has come; for a run that does not wait this changes nothing."""
        if self.place is not None and self._asking is not None and notice.session_id == self.place.session_id:
            self._told = True
            self._asking.cancel()

    async def end(self, output: RunOutput) -> int | None:
        """Add the run's own messages to the conversation. Returns the turn's number; None when it was not added."""
        if self.place is None:
            return None
        messages = (output.messages or [])[output.new_from :]
        size = len(to_json(messages))
        fits = size <= LARGEST_SESSION_BYTES
        handle = self._leave(
            TurnEnd(
                session_id=self.place.session_id,
                run_id=workflow.info().first_execution_run_id,
                messages=messages if fits else None,
                too_large_bytes=0 if fits else size,
            ),
            "add to",
        )
        try:
            ended = await _to_its_end(handle)
        except ActivityError as error:
            workflow.logger.warning("turn.not_added", extra={"error": str(error.cause)})
            ended = TurnEnded(outcome="not_at_turn")
        self._stand("added" if ended.outcome == "added" else "not_added", ended.number)
        return ended.number

    async def release(self) -> None:
        """Let the next turn come; the run has ended without an output."""
        if self.place is None or self.place.state not in ("waiting", "under_way"):
            return
        end = TurnEnd(session_id=self.place.session_id, run_id=workflow.info().first_execution_run_id)
        try:
            await self._leave(end, "leave", within=_RELEASE_WITHIN)
        except ActivityError as error:
            workflow.logger.warning("turn.not_released", extra={"error": str(error.cause)})
        self._stand("released")

    async def _joined(self, claim: TurnClaim) -> Turn | None:
        """The turn; None when it is worth asking again at once."""
        self._told = False
        self._asking = workflow.start_activity(
            names.JOIN_SESSION,
            claim,
            result_type=Turn,
            start_to_close_timeout=_ATTEMPT,
            retry_policy=_RETRIES,
            summary=f"turn in session {claim.session_id}",
        )
        try:
            turn: Turn = await self._asking
            return turn
        except (ActivityError, asyncio.CancelledError) as error:
            if self._told and is_cancelled_exception(error) and workflow.cancellation_reason() is None:
                return None
            raise
        finally:
            self._asking = None

    def _leave(self, end: TurnEnd, verb: str, within: timedelta | None = None) -> workflow.ActivityHandle[TurnEnded]:
        return workflow.start_activity(
            names.LEAVE_SESSION,
            end,
            result_type=TurnEnded,
            start_to_close_timeout=_ATTEMPT,
            schedule_to_close_timeout=within,
            retry_policy=_RETRIES,
            summary=f"{verb} session {end.session_id}",
        )

    def _stand(self, state: Literal["under_way", "added", "not_added", "released"], turn: int | None = None) -> None:
        if self.place is not None:
            self.place = self.place.model_copy(update={"state": state, "turn": turn})
            self._changed()


async def _to_its_end(handle: workflow.ActivityHandle[TurnEnded]) -> TurnEnded:
    """Its result, also for a run that is cancelled meanwhile: it has done its work, and is completed."""
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        return await handle
