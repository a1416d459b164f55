"""Takes and ends turns of sessions, for runs."""

from datetime import timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from interlock.activities.errors import typed_errors
from interlock.contracts import names
from interlock.contracts.ports import Sessions
from interlock.contracts.sessions import Turn, TurnClaim, TurnEnd, TurnEnded, TurnReceipt, full_text

_LOOK_AGAIN_SECONDS = (2, 5, 10, 20, 30)
"""A waiting turn is told when it has come. Looking again finds what nobody tells of: a run that was terminated, a
session that is gone."""


class SessionTurns:
    """The activities, over the sessions on the server."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @activity.defn(name=names.JOIN_SESSION)
    @typed_errors
    async def join_session(self, claim: TurnClaim) -> Turn:
        """Take a turn of a session, and get its conversation so far.

        Raises `TurnNotYet` (retried, after 2 to 30 s) while other turns are before it: no slot is held meanwhile, and
        the history does not grow. Raises ApplicationError of another type (not retried) when the session takes no such
        turn, UnavailableError (retried) when nobody answers for the session. Turns of runs that have ended are ended.
        """
        while True:
            receipt = await self._place(claim)
            if receipt.before == 0:
                return Turn(messages=await self._sessions.messages(claim.session_id))
            if not await self._sessions.is_over(receipt.first):
                raise _not_yet(claim.session_id, receipt)
            await self._sessions.end_turn(TurnEnd(session_id=claim.session_id, run_id=receipt.first.run_id))

    @activity.defn(name=names.LEAVE_SESSION)
    @typed_errors
    async def leave_session(self, end: TurnEnd) -> TurnEnded:
        """End a turn, and hand over what the run adds to the conversation. Reported again, nothing is added again.

        Raises UnavailableError (retried) when nobody answers for the session.
        """
        return await self._sessions.end_turn(end)

    async def _place(self, claim: TurnClaim) -> TurnReceipt:
        """Where the run's turn is. Once it is claimed the session is asked: that leaves nothing in its history."""
        state = await self._sessions.state(claim.session_id) if activity.info().attempt > 1 else None
        for before, turn in enumerate(state.open if state else ()):
            if state and turn.run_id == claim.run_id:
                if state.full:
                    raise ApplicationError(full_text(state), type=names.SESSION_FULL, non_retryable=True)
                return TurnReceipt(before=before, first=state.open[0])
        return await self._sessions.take_turn(claim)


def _not_yet(session_id: str, receipt: TurnReceipt) -> ApplicationError:
    others = f", and {receipt.before - 1} more wait before this one" if receipt.before > 1 else ""
    wait = _LOOK_AGAIN_SECONDS[min(activity.info().attempt, len(_LOOK_AGAIN_SECONDS)) - 1]
    return ApplicationError(
        f"It is the turn of run {receipt.first.workflow_id!r} in session {session_id!r}{others}.",
        type=names.TURN_NOT_YET,
        category=ApplicationErrorCategory.BENIGN,  # Neither logged nor counted as a failure.
        next_retry_delay=timedelta(seconds=wait),
    )
