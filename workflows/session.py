"""SessionWorkflow: one conversation. It gives turns out one at a time, and keeps what each of them adds."""

from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import RawValue, VersioningBehavior
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError
    from pydantic_core import to_json

    from interlock.contracts import names
    from interlock.contracts.failures import problems
    from interlock.contracts.payloads import Json
    from interlock.contracts.sessions import (
        LARGEST_SESSION_BYTES,
        ClosedTurn,
        OpenTurn,
        SessionInput,
        SessionState,
        TurnClaim,
        TurnEnd,
        TurnEnded,
        TurnNotice,
        TurnOutcome,
        TurnReceipt,
        full_text,
    )

_LARGEST_CLAIM_BYTES = 3_000
_MOST_OPEN = 100
_CLOSED_KEPT = 100  # A state with all of them, each of the largest, still fits beside a conversation of the largest.


@workflow.defn(name=names.SESSION_WORKFLOW)
class SessionWorkflow:
    """The turns of one session. It never ends by itself."""

    # As with runs: an input that cannot be read has to fail the session, not its workflow task.
    @workflow.init
    def __init__(self, session: RawValue = None) -> None:  # type: ignore[assignment]
        given, self._unfit = _read(session)
        self._state = given.state or SessionState(session_id=given.session_id)
        self._messages = list(given.messages)
        self._waits = {turn.run_id for turn in self._state.open if turn.began_at is None}

    @workflow.run
    async def run(self, session: RawValue = None) -> None:  # type: ignore[assignment]
        """Tell waiting runs that their turn has come, until the session is ended. session: a `SessionInput`."""
        if self._unfit:
            raise ApplicationError(self._unfit, type=names.INVALID_INPUT, non_retryable=True)
        while True:
            await workflow.wait_condition(lambda: self._untold() is not None or self._is_long())
            if (turn := self._untold()) is None:
                await self._continue()
            await self._tell(turn)

    def idle(self) -> bool:
        """Whether something has to be under way. A session waits for whoever comes."""
        return False

    @workflow.query(name=names.SESSION)
    def session(self) -> SessionState:
        """How the session stands."""
        return self._state

    @workflow.query(name=names.CONVERSATION)
    def conversation(self) -> list[Any]:
        """All messages, oldest first."""
        return self._messages

    @workflow.update(name=names.TAKE_TURN)
    def take_turn(self, claim: TurnClaim) -> TurnReceipt:
        """Take the next turn, or a place behind the ones before it. Asking again changes nothing."""
        if self._state.full:
            raise _refused(names.SESSION_FULL, full_text(self._state))
        if all(turn.run_id != claim.run_id for turn in self._state.open):
            self._check(claim)
            self._queue(OpenTurn(**claim.model_dump(include=set(OpenTurn.model_fields))))
            self._change(framework=claim.framework)
        before = next(place for place, turn in enumerate(self._state.open) if turn.run_id == claim.run_id)
        return TurnReceipt(before=before, first=self._state.open[0])

    @workflow.update(name=names.END_TURN)
    def end_turn(self, end: TurnEnd) -> TurnEnded:
        """End a turn. Only the one under way adds to the conversation; a repeat changes nothing."""
        for closed in self._state.closed:
            if closed.run_id == end.run_id:
                return TurnEnded(outcome=closed.outcome, number=closed.number)
        turn = next((turn for turn in self._state.open if turn.run_id == end.run_id), None)
        if turn is None or end.session_id != self._state.session_id:
            return TurnEnded(outcome="not_at_turn")
        closed = self._added(turn, end) if turn.began_at else _closed(turn, "released")
        self._change(
            open=tuple(one for one in self._state.open if one is not turn),
            closed=(*self._state.closed[-(_CLOSED_KEPT - 1) :], closed),
        )
        self._waits.discard(turn.run_id)
        self._begin_next()
        return TurnEnded(outcome=closed.outcome, number=closed.number)

    def _check(self, claim: TurnClaim) -> None:
        """Raise when the session takes no turn of this run."""
        state = self._state
        if claim.session_id != state.session_id:
            raise _refused(names.INVALID_INPUT, "This session has another id than the one that the turn is claimed of.")
        if len(claim.model_dump_json()) > _LARGEST_CLAIM_BYTES:
            raise _refused(names.INVALID_INPUT, "The claim is too large; give the run and the agent shorter names.")
        if any(turn.run_id == claim.run_id for turn in state.closed):
            raise _refused(names.TURN_IS_OVER, f"This run has had its turn in session {state.session_id!r}.")
        if state.framework != claim.framework and (state.messages or state.open):
            raise _refused(
                names.OTHER_FRAMEWORK,
                f"Session {state.session_id!r} holds messages of {state.framework}, which agent {claim.agent!r} of "
                f"{claim.framework} cannot read. Take an agent of {state.framework}, or start another session.",
            )
        if len(state.open) >= _MOST_OPEN:
            raise _refused(
                names.SESSION_BUSY,
                f"In session {state.session_id!r} {len(state.open)} turns are open; no more are taken. See what they "
                "wait for with `interlock sessions show`, and start the run again later.",
            )

    def _added(self, turn: OpenTurn, end: TurnEnd) -> ClosedTurn:
        if end.messages is None and not end.too_large_bytes:
            return _closed(turn, "released")
        size = end.too_large_bytes or len(to_json(end.messages))
        if end.messages is None or self._state.bytes + size > LARGEST_SESSION_BYTES:
            self._change(full=True)
            return _closed(turn, "too_large", bytes=size)
        number = self._state.turns + 1
        self._messages += end.messages
        self._change(turns=number, messages=len(self._messages), bytes=self._state.bytes + size)
        return _closed(turn, "added", number=number, messages=len(end.messages), bytes=size)

    def _queue(self, turn: OpenTurn) -> None:
        under_way, waiting = self._state.open[:1], self._state.open[1:]
        if under_way:
            self._waits.add(turn.run_id)
        # Claims overtake each other on their way here.
        self._change(open=(*under_way, *sorted([*waiting, turn], key=lambda one: one.started_at)))
        self._begin_next()

    def _begin_next(self) -> None:
        if self._state.open and self._state.open[0].began_at is None:
            first, *rest = self._state.open
            self._change(open=(first.model_copy(update={"began_at": workflow.now()}), *rest))

    def _untold(self) -> OpenTurn | None:
        """The turn that has come, while its run waits to be told."""
        first = self._state.open[0] if self._state.open else None
        return first if first is not None and first.run_id in self._waits else None

    async def _tell(self, turn: OpenTurn) -> None:
        self._waits.discard(turn.run_id)
        run: workflow.ExternalWorkflowHandle[Any] = workflow.get_external_workflow_handle(turn.workflow_id)
        try:
            await run.signal(names.TURN_CAME, TurnNotice(session_id=self._state.session_id))
        except FailureError as error:
            if is_cancelled_exception(error):
                raise
            # It may have ended while it waited: the turns behind it find that out. Otherwise it looks again by itself.
            workflow.logger.info("turn.not_told", extra={"workflow_id": turn.workflow_id})

    def _is_long(self) -> bool:
        return workflow.info().is_continue_as_new_suggested()

    async def _continue(self) -> NoReturn:
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(
            SessionInput(session_id=self._state.session_id, state=self._state, messages=tuple(self._messages))
        )

    def _change(self, **fields: Any) -> None:
        self._state = self._state.model_copy(update=fields)


@workflow.defn(name=names.SESSION_WORKFLOW, versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class UpgradingSessionWorkflow(SessionWorkflow):
    """The same for a worker that has a version: a session outlives builds, and goes on with the current one.

    A worker without a version cannot say so: the server refuses its tasks.
    """

    @workflow.init
    def __init__(self, session: RawValue = None) -> None:  # type: ignore[assignment]
        super().__init__(session)

    @workflow.run
    async def run(self, session: RawValue = None) -> None:  # type: ignore[assignment]
        """See `SessionWorkflow`."""
        await super().run(session)


def _closed(turn: OpenTurn, outcome: TurnOutcome, **fields: Json) -> ClosedTurn:
    return ClosedTurn(
        **turn.model_dump(include={"workflow_id", "run_id", "agent", "began_at"}),
        outcome=outcome,
        ended_at=workflow.now(),
        **fields,
    )


def _refused(kind: str, message: str) -> ApplicationError:
    return ApplicationError(message, type=kind, non_retryable=True)


def _read(session: RawValue | None) -> tuple[SessionInput, str]:
    """The input, and what is wrong with it."""
    try:
        if session is None:
            return SessionInput(session_id="?"), "A session takes one input, and none was given."
        given = SessionInput.model_validate(workflow.payload_converter().from_payload(session.payload, Any))
    except ValidationError as error:
        return SessionInput(session_id="?"), f"The session's input cannot be read: {problems(error)}"
    except Exception as error:  # Whatever a converter makes of bytes that are no JSON.
        return SessionInput(session_id="?"), f"The session's input cannot be read: {type(error).__name__}"
    if workflow.info().workflow_id != names.session_workflow(given.session_id):
        return given, "The session has another id than its workflow."
    return given, ""
