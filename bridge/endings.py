"""How runs end, as Airflow sees it: the value of the task, or one error with the whole chain of failures in it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from temporalio import exceptions
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHistoryEventFilterType,
)
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    RetryState,
    TerminatedError,
)
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED, server_errors
from interlock.bridge.errors import (
    RunCancelledError,
    RunFailedError,
    RunFailedForGoodError,
    RunTerminatedError,
    RunTimedOutError,
)
from interlock.bridge.identity import Note
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Json, Payload, RunOutput, Usage
from interlock.journal import Journal, Step

_LONGEST_WORD = 1_000  # Characters of one failure's message.
_CLOSE_EVENT = WorkflowHistoryEventFilterType.CLOSE_EVENT
_EXHAUSTED = (RetryState.MAXIMUM_ATTEMPTS_REACHED, RetryState.TIMEOUT)
_CAN_BE_HELPED = (names.UNKNOWN_AGENT,)  # By a worker that has the agent.


class Decided(Payload):
    """One request of a run that is closed. decision_id: `WORKFLOW_ID#REQUEST_ID`, the same for ever."""

    decision_id: str
    request_id: str
    tool: str
    outcome: str
    by: str = ""


class Ending(Payload):
    """How a run has ended. It is plain JSON, so that a trigger's event can carry it.

    status: `completed`, `failed`, `cancelled`, `terminated` or `timed_out`. output: of a completed run.
    message: the chain of failures, outermost first. final: no retry can help.
    usage: of the run in all. decisions: of an agent's run.
    """

    workflow_id: str
    run_id: str
    status: str
    output: Json = None
    usage: Usage | None = None
    message: str = ""
    error_type: str = ""
    final: bool = False
    decisions: tuple[Decided, ...] = ()

    def error(self) -> Exception:
        """The error that the task ends with."""
        text = f"Run {self.workflow_id!r} {self.status.replace('_', ' ')}: {self.message}"
        kinds: Mapping[str, Any] = {
            "failed": RunFailedForGoodError if self.final else RunFailedError,
            "cancelled": RunCancelledError,
            "terminated": RunTerminatedError,
            "timed_out": RunTimedOutError,
        }
        error: Exception = kinds[self.status](text).about(self.workflow_id, self.run_id, self.error_type)
        return error


@dataclass(frozen=True)
class Reference:
    """What stands for a result that is too large for an XCom. See `read_result`."""

    workflow_id: str
    run_id: str
    bytes: int

    def as_xcom(self) -> dict[str, Json]:
        """As it is stored."""
        return {"interlock_result": {"workflow_id": self.workflow_id, "run_id": self.run_id, "bytes": self.bytes}}


async def run_of(client: Client, workflow_id: str, run_id: str) -> WorkflowExecutionDescription:
    """The run that a task waits for: the latest under its id, unless another Dag run has started that one since.

    run_id: of the execution that the task has found; empty for the latest. Raises RPCError.
    """

    async def described(run_id: str | None) -> WorkflowExecutionDescription:
        return await client.temporal.get_workflow_handle(workflow_id, run_id=run_id).describe()

    latest = await described(None)
    if run_id in ("", latest.run_id):
        return latest
    try:
        found = await described(run_id)
        theirs, ours = Note.read(await latest.memo()), Note.read(await found.memo())
        if theirs is None or ours is None or theirs.place == ours.place:
            return latest
        while found.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
            handle = client.temporal.get_workflow_handle(workflow_id, run_id=found.run_id)
            (end,) = [one async for one in handle.fetch_history_events(event_filter_type=_CLOSE_EVENT)]
            found = await described(end.workflow_execution_continued_as_new_event_attributes.new_execution_run_id)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return latest  # It is no longer kept.
    return found


async def ending_of(
    client: Client, workflow_id: str, *, run_id: str = "", found: WorkflowExecutionDescription | None = None
) -> Ending | None:
    """How a run has ended; None for an open one. Follows a run that went on in another execution.

    run_id: see `run_of`. found: the run, as it has just been described. Raises RefusedError when there is no such run.
    """
    with server_errors(workflow_id):
        found = found or await run_of(client, workflow_id, run_id)
        status = CLOSED.get(found.status) if found.status else None
        if status is None:
            return None
        is_agent = found.workflow_type == names.AGENT_WORKFLOW
        handle: Any = client.temporal.get_workflow_handle(
            workflow_id, run_id=found.run_id, result_type=RunOutput if is_agent else None
        )
        journal = await client.journal(workflow_id, run_id=found.run_id) if is_agent else None
        ending = Ending(
            workflow_id=workflow_id,
            run_id=found.run_id,
            status=status,
            decisions=tuple(_decided(journal)) if journal else (),
        )
        try:
            result = await handle.result()
        except WorkflowFailureError as failure:
            journal = journal or await client.journal(workflow_id, run_id=found.run_id)
            words = [word for word in _chain(failure.cause, journal) if word]
            return ending.model_copy(
                update={
                    "message": " <- ".join(words) or "nothing more is known",
                    "error_type": _root_type(failure.cause),
                    "final": _is_final(failure.cause),
                    "usage": journal.usage or journal.totals.usage if is_agent else None,
                }
            )
    if isinstance(result, RunOutput):
        return ending.model_copy(update={"output": result.output, "usage": result.usage})
    return ending.model_copy(update={"output": _plain(result)})


def xcom_value(ending: Ending, limit_bytes: int) -> Json:
    """The output, or a reference to it above the limit."""
    size = len(json.dumps(ending.output))
    if size <= limit_bytes and not _is_reference(ending.output):  # Or a model could name any other run's result.
        return ending.output
    return Reference(ending.workflow_id, ending.run_id, size).as_xcom()


async def read_result(client: Client, xcom: Json) -> Json:
    """The output that an XCom holds, or refers to. Raises RefusedError when Temporal no longer has it."""
    if not _is_reference(xcom):
        return xcom
    place: Any = xcom["interlock_result"]
    with server_errors(place["workflow_id"], run_id=place["run_id"]):
        handle: Any = client.temporal.get_workflow_handle(place["workflow_id"], run_id=place["run_id"])
        result = _plain(await handle.result())
    described = await client.temporal.get_workflow_handle(place["workflow_id"], run_id=place["run_id"]).describe()
    return result["output"] if described.workflow_type == names.AGENT_WORKFLOW else result


def _is_reference(value: Json) -> bool:
    return isinstance(value, dict) and set(value) == {"interlock_result"}


def _plain(value: Any) -> Json:
    return json.loads(json.dumps(value, default=str))


def _decided(journal: Journal) -> Iterator[Decided]:
    for request in journal.requests:
        if request.outcome == "open":
            continue
        yield Decided(
            decision_id=f"{journal.workflow_id}#{request.request_id}",
            request_id=request.request_id,
            tool=request.tool,
            outcome=request.outcome,
            by=request.answer.by if request.answer else "",
        )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.cause if isinstance(error, FailureError) else error.__cause__


def _chain(error: BaseException | None, journal: Journal) -> Iterator[str]:
    """One word for each failure, without those that only pass another on and have nothing to say of their own."""
    for one in _causes(error):
        if isinstance(one, ActivityError):
            step = _step_of(one, journal)
            attempts = f", attempt {step.attempts}" if step and step.attempts else ""
            yield f"activity {one.activity_type}{attempts}"
        elif isinstance(one, ChildWorkflowError):
            yield f"child workflow {one.workflow_type} ({one.workflow_id})"
        elif isinstance(one, ApplicationError):
            yield f"{one.type or 'ApplicationError'}: {_short(one.message)}"
        elif isinstance(one, exceptions.TimeoutError):
            kind = one.type.name.lower().replace("_", " ") if one.type is not None else ""
            yield f"timeout ({kind}): {_short(one.message)}"
        elif isinstance(one, CancelledError | TerminatedError):
            yield _short(one.message or "")
        else:
            yield f"{type(one).__name__}: {_short(str(one))}"


def _step_of(error: ActivityError, journal: Journal) -> Step | None:
    return next((step for step in journal.steps if step.event_id == error.scheduled_event_id), None) or next(
        (step for step in journal.steps if step.activity_id == error.activity_id), None
    )


def _short(message: str) -> str:
    text = masked_text(" ".join(message.split()))
    return text if len(text) <= _LONGEST_WORD else f"{text[: _LONGEST_WORD - 1]}…"


def _root_type(error: BaseException | None) -> str:
    *_, root = _causes(error) if error is not None else [Exception()]
    return (root.type or "ApplicationError") if isinstance(root, ApplicationError) else type(root).__name__


def _is_final(error: BaseException | None) -> bool:
    """Whether trying again cannot help: by the failure's own flag, unless attempts were all that ran out."""
    for one in _causes(error):
        if isinstance(one, ActivityError | ChildWorkflowError) and one.retry_state in _EXHAUSTED:
            return False
        if isinstance(one, ApplicationError) and one.type in _CAN_BE_HELPED:
            return False
    return any(isinstance(one, ApplicationError) and one.non_retryable for one in _causes(error))
