"""Sessions on a server: found, asked, and reached by the activities of runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import AwareDatetime
from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import QueryRejectCondition, WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import ANSWER_WITHIN
from interlock.contracts import names
from interlock.contracts.errors import UnavailableError
from interlock.contracts.payloads import Json, Payload
from interlock.contracts.sessions import (
    OpenTurn,
    SessionInput,
    SessionState,
    TurnClaim,
    TurnEnd,
    TurnEnded,
    TurnReceipt,
)


class SessionReport(Payload):
    """A session in a list. began_at: of its current execution; a long session has several, one after another."""

    session_id: str
    began_at: AwareDatetime | None = None


class StoredSessions:
    """The sessions of a namespace. task_queue: where a new one is run; one that is there stays where it is."""

    def __init__(self, temporal: Client, task_queue: str) -> None:
        self._temporal = temporal
        self._task_queue = task_queue

    async def state(self, session_id: str) -> SessionState | None:
        """See `Sessions`."""
        try:
            state: SessionState = await self._query(session_id, names.SESSION, SessionState)
        except LookupError:
            return None
        return state

    async def messages(self, session_id: str) -> list[Json]:
        """See `Sessions`."""
        try:
            messages: list[Json] = await self._query(session_id, names.CONVERSATION, list[Any])
        except LookupError as error:
            raise UnavailableError(f"Session {session_id!r} was ended a moment ago.") from error
        return messages

    async def take_turn(self, claim: TurnClaim) -> TurnReceipt:
        """See `Sessions`."""
        begun: WithStartWorkflowOperation[Any, None] = WithStartWorkflowOperation(
            names.SESSION_WORKFLOW,
            SessionInput(session_id=claim.session_id),
            id=names.session_workflow(claim.session_id),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"session {claim.session_id}",
        )
        with _answers(claim.session_id):
            receipt: TurnReceipt = await self._temporal.execute_update_with_start_workflow(
                names.TAKE_TURN,
                claim,
                start_workflow_operation=begun,
                result_type=TurnReceipt,
                rpc_timeout=ANSWER_WITHIN,
            )
        return receipt

    async def end_turn(self, end: TurnEnd) -> TurnEnded:
        """See `Sessions`."""
        try:
            with _answers(end.session_id):
                ended: TurnEnded = await self._handle(end.session_id).execute_update(
                    names.END_TURN, end, result_type=TurnEnded, rpc_timeout=ANSWER_WITHIN
                )
        except LookupError:
            return TurnEnded(outcome="gone")
        return ended

    async def is_over(self, turn: OpenTurn) -> bool:
        """See `Sessions`. A run that was started over under the same id is another one."""
        try:
            described = await self._temporal.get_workflow_handle(turn.workflow_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return True  # Or its id is none that a run can have.
            raise UnavailableError(f"Run {turn.workflow_id!r} cannot be looked up: {error.message}") from error
        first = described.raw_description.workflow_execution_info.first_run_id
        return described.status is not WorkflowExecutionStatus.RUNNING or first != turn.run_id

    async def _query(self, session_id: str, query: str, kind: Any) -> Any:
        with _answers(session_id):
            return await self._handle(session_id).query(
                query, result_type=kind, reject_condition=QueryRejectCondition.NOT_OPEN, rpc_timeout=ANSWER_WITHIN
            )

    def _handle(self, session_id: str) -> WorkflowHandle[Any, Any]:
        return self._temporal.get_workflow_handle(names.session_workflow(session_id))


@contextmanager
def _answers(session_id: str) -> Iterator[None]:
    """Raise LookupError where there is no such session, UnavailableError where nobody answers for it."""
    try:
        yield
    except WorkflowQueryRejectedError as error:
        raise LookupError(session_id) from error
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        kind = cause.type if isinstance(cause, ApplicationError) and cause.type else type(cause).__name__
        message = cause.message if isinstance(cause, ApplicationError) else str(cause)
        raise ApplicationError(message, type=kind, non_retryable=True) from error
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            raise LookupError(session_id) from error
        raise UnavailableError(f"Nobody answers for session {session_id!r}: {error.message}") from error
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError, WorkflowQueryFailedError) as error:
        raise UnavailableError(
            f"Nobody answers for session {session_id!r}. It needs a worker on the task queue that it began on."
        ) from error
