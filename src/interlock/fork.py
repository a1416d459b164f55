"""Plans a fork: a new run that takes over what another one did up to a step, and goes on from there by itself."""

from collections import Counter
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from pydantic import ValidationError
from temporalio.api.common.v1 import Payload as TemporalPayload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import RefusedError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import (
    Decision,
    Fork,
    Json,
    ReusedRuling,
    ReusedStep,
    RunInput,
    ToolCompletion,
)
from interlock.journal import HistoryReader, Journal, Request, Step

NO_RESULT: Final = object()
"""Stands for no result; null is one."""

_OF_CALLS = ("tool", "description")  # A call that still waits has only the step in which its tool was described.
_MESSAGES: dict[str, type[Decision] | type[ToolCompletion]] = {
    names.DECIDE_APPROVAL: Decision,
    names.SUBMIT_DECISION: Decision,
    names.COMPLETE_TOOL_CALL: ToolCompletion,
    names.SUBMIT_TOOL_RESULT: ToolCompletion,
}


@dataclass(frozen=True)
class Change:
    """What is to be different in a fork; at most one of these.

    message: in a user's voice, to the model at the step. decision: of the request at the step.
    result: of the call at the step, which is not run; only looked at when has_result.
    """

    message: str = ""
    decision: Decision | None = None
    result: Json = None
    has_result: bool = False

    def __bool__(self) -> bool:
        return bool(self.message or self.decision or self.has_result)


@dataclass(frozen=True)
class ForkPlan:
    """A fork before it is started.

    run: the input of the new run. journal: of the run it is forked from. taken_over: its steps that do not run again.
    effects: its tool calls from the step on, which have run or may have; what they did is not undone, and the new run
    may do it again.
    """

    run: RunInput
    journal: Journal
    taken_over: tuple[Step, ...]
    effects: tuple[Step, ...]


@dataclass
class _Source:
    """What a fork needs of a history that its journal does not show: the very values."""

    first_run_id: str = ""
    run: RunInput | None = None
    steps: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    arguments: dict[int, dict[str, Json]] = field(default_factory=dict)
    messages: dict[int, Decision | ToolCompletion] = field(default_factory=dict)
    conversation: list[Json] | None = None

    def place(self, position: int) -> str:
        """The place, among the run's tool calls, of the call that a step belongs to."""
        return self.steps[position - 1].partition("/")[0]


async def plan_fork(
    events: AsyncIterable[HistoryEvent], converter: DataConverter, *, run_id: str, at: int, change: Change
) -> ForkPlan:
    """Read a run's history and say what a fork at a step takes over.

    at: the position of the first step that is not taken over; one more than the last takes all over.
    Raises RefusedError when there is no such step, or the change does not fit it.
    """
    reader, source = HistoryReader(converter, run_id=run_id), _Source()
    async for event in events:
        await reader.read(event)
        await _note(source, event, converter)
    journal = reader.journal()
    if source.run is None:
        raise RefusedError(f"{journal.workflow_id!r} is no run of an agent, so it cannot be forked.")
    at = _first_step(journal, at, change)
    taken_over = tuple(step for step in journal.steps[: at - 1] if step.position in source.completed)
    if any(not source.steps[step.position - 1] for step in taken_over):
        raise RefusedError(
            f"Run {journal.workflow_id!r} was made by a version that did not note which step is which, so its results "
            "cannot be taken over. Start the work as a new run."
        )
    fork = Fork(
        workflow_id=journal.workflow_id,
        run_id=run_id,
        at=at,
        key_root="" if change else _key_root(source, source.run),
        steps=_steps(source, taken_over),
        rulings=_rulings(source, journal, at, change),
        results=_results(source, journal, at, change),
        messages=_messages(source, _requests_before(journal, taken_over), change),
    )
    carried = source.run.carried and source.run.carried.model_copy(update={"key_root": ""})
    return ForkPlan(
        run=_without_session(source, source.run).model_copy(
            update={"fork": fork, "parent": None, "account": None, "carried": carried}
        ),
        journal=journal,
        taken_over=taken_over,
        effects=tuple(step for step in journal.steps[at - 1 :] if step.kind == "tool" and step.attempts),
    )


def _without_session(source: _Source, run: RunInput) -> RunInput:
    """A fork goes on from the conversation as it was, and is no turn of its session."""
    if run.session is None:
        return run
    if run.carried is not None:
        return run.model_copy(update={"session": None})
    if source.conversation is None:
        raise RefusedError(
            f"The run has not had its turn in session {run.session!r}: there is nothing to take over. Start a new run."
        )
    return run.model_copy(update={"session": None, "message_history": source.conversation or None})


def _key_root(source: _Source, run: RunInput) -> str:
    earlier = (run.carried.key_root if run.carried else "") or (run.fork.key_root if run.fork else "")
    return earlier or source.first_run_id


async def _note(source: _Source, event: HistoryEvent, converter: DataConverter) -> None:
    if event.HasField("workflow_execution_started_event_attributes"):
        started = event.workflow_execution_started_event_attributes
        source.first_run_id = started.first_execution_run_id
        if started.workflow_type.name == names.AGENT_WORKFLOW:
            source.run = await _input(started.input.payloads, converter)
    elif event.HasField("activity_task_scheduled_event_attributes"):
        scheduled = event.activity_task_scheduled_event_attributes
        headers = scheduled.header.fields
        source.steps.append(_text(headers.get(names.HEADER_STEP)))
        source.calls.append(_text(headers.get(names.HEADER_CALL)))
        source.positions[event.event_id] = len(source.steps)
        if names.DESCRIBE_TOOL in source.steps[-1]:
            (question,) = await converter.decode(list(scheduled.input.payloads[:1]))
            question = question.get("given", question)  # A step that was taken over itself.
            source.arguments[len(source.steps)] = question.get("arguments") or {}
    elif event.HasField("activity_task_completed_event_attributes"):
        begun = event.activity_task_completed_event_attributes.scheduled_event_id
        source.completed[source.positions[begun]] = event.event_id
        if names.JOIN_SESSION in source.steps[source.positions[begun] - 1]:
            payloads = event.activity_task_completed_event_attributes.result.payloads
            (turn,) = await converter.decode(list(payloads[:1]))
            source.conversation = turn["messages"]
    elif event.HasField("workflow_execution_signaled_event_attributes"):
        signal = event.workflow_execution_signaled_event_attributes
        await _note_message(source, event.event_id, signal.signal_name, signal.input.payloads, converter)
    elif event.HasField("workflow_execution_update_accepted_event_attributes"):
        update = event.workflow_execution_update_accepted_event_attributes.accepted_request.input
        await _note_message(source, event.event_id, update.name, update.args.payloads, converter)


async def _input(payloads: Any, converter: DataConverter) -> RunInput | None:
    try:
        return RunInput.model_validate((await converter.decode(list(payloads)))[0])
    except (ValidationError, IndexError):
        return None


async def _note_message(source: _Source, event_id: int, name: str, payloads: Any, converter: DataConverter) -> None:
    if (model := _MESSAGES.get(name)) is None:
        return
    try:
        source.messages[event_id] = model.model_validate((await converter.decode(list(payloads)))[0])
    except Exception:  # Nonsense that the run took no notice of either.
        return


def _text(payload: TemporalPayload | None) -> str:
    # Headers are written by the payload converter alone: no codec is applied to them.
    return "" if payload is None else str(DataConverter.default.payload_converter.from_payload(payload, str))


def _first_step(journal: Journal, at: int, change: Change) -> int:
    """The position that the fork begins at. A decision is asked for by an earlier step than the call it is about."""
    last = len(journal.steps)
    if not 1 <= at <= last + 1:
        raise RefusedError(
            f"Run {journal.workflow_id!r} has no step {at}; it has 1 to {last}, and {last + 1} takes all over. "
            f"See `interlock journal {journal.workflow_id}`."
        )
    step = journal.steps[at - 1] if at <= last else None
    if change.message and step is not None and not _is_own_request(journal, step):
        own = (one for one in journal.steps if _is_own_request(journal, one))
        raise RefusedError(
            f"Step {at} is no request to the model of {journal.agent!r}, so no message can be added to it; these are: "
            f"{_positions(own)}."
        )
    if change.has_result and (step is None or step.kind not in _OF_CALLS):
        raise RefusedError(
            f"Step {at} is no tool call, so it cannot be given a result; these are: "
            f"{_positions(one for one in journal.steps if one.kind in _OF_CALLS)}."
        )
    if not change.decision:
        return at
    request = _request_at(journal, at)
    if request is None or request.kind not in ("approval", ""):
        asked = (one for one in journal.steps if (of := _request_at(journal, one.position)) and of.kind == "approval")
        raise RefusedError(f"Nobody is asked for an approval at step {at}; that is so at: {_positions(asked)}.")
    return request.asked_by


def _positions(steps: Any) -> str:
    return ", ".join(str(step.position) for step in steps) or "none"


def _request_at(journal: Journal, at: int) -> Request | None:
    return next((one for one in journal.requests if at == one.asked_by or at in one.steps), None)


def _steps(source: _Source, taken_over: tuple[Step, ...]) -> tuple[ReusedStep, ...]:
    # A step that was tried again by hand has two activities, of which one completed: in the fork it is the first.
    counts: Counter[str] = Counter()
    found: list[ReusedStep] = []
    for step in taken_over:
        name = source.steps[step.position - 1].rpartition(":")[0]
        counts[name] += 1
        found.append(
            ReusedStep(
                step=f"{name}:{counts[name]}",
                call=source.calls[step.position - 1],
                event_id=source.completed[step.position],
            )
        )
    return tuple(found)


def _rulings(source: _Source, journal: Journal, at: int, change: Change) -> tuple[ReusedRuling, ...]:
    found: list[ReusedRuling] = []
    for request in journal.requests:
        position = request.asked_by
        message = _message(source, request)
        if change.decision and position == at:
            message = change.decision
        elif position >= at or request.kind == "outcome" or not _is_settled_before(source, journal, request, at):
            continue
        if message is not None:
            found.append(
                ReusedRuling(
                    place=source.place(position),
                    arguments_digest=digest(source.arguments.get(position, {})),
                    decision=message if isinstance(message, Decision) else None,
                    completion=message if isinstance(message, ToolCompletion) else None,
                )
            )
    return tuple(found)


def _message(source: _Source, request: Request) -> Decision | ToolCompletion | None:
    """The very answer that settled a request."""
    if request.answer is None:
        return None
    if request.answer.via == "fork" and source.run and source.run.fork:
        wanted = (source.place(request.asked_by), digest(source.arguments.get(request.asked_by, {})))
        return next(
            (
                one.decision or one.completion
                for one in source.run.fork.rulings
                if (one.place, one.arguments_digest) == wanted
            ),
            None,
        )
    return source.messages.get(request.answer.event_id)


def _is_settled_before(source: _Source, journal: Journal, request: Request, at: int) -> bool:
    """Whether nothing is left to run of what was decided. One approval is for one execution: where the call has not
    returned before the fork begins, it is asked about again."""
    if request.kind == "budget":
        return request.outcome == "approved"  # What was refused there is not what was forked for.
    if request.outcome in ("rejected", "completed", "failed"):
        return True
    # By place: what has returned may be a later attempt, after somebody said that the approved one did not happen.
    calls = {source.place(position) for position in request.steps}
    tools = (step.position for step in journal.steps[: at - 1] if step.kind == "tool")
    return any(position in source.completed and source.place(position) in calls for position in tools)


def _results(source: _Source, journal: Journal, at: int, change: Change) -> dict[str, Json]:
    """What calls have returned that ran outside of any step: a person said that they happened, and what came of it."""
    before = source.run.fork.results if source.run and source.run.fork else {}
    later = [_number(source.place(step.position)) for step in journal.steps[at - 1 :] if source.place(step.position)]
    found: dict[str, Json] = {
        place: value for place, value in before.items() if _number(place) < min(later, default=inf)
    }
    for request in journal.requests:
        if request.outcome == "happened" and request.asked_by < at and request.answer:
            message = _message(source, request)
            if isinstance(message, Decision):
                found[source.place(request.asked_by)] = message.result
    if change.has_result:
        found[source.place(at)] = change.result
    return found


def _number(place: str) -> float:
    return float(place.partition(":")[2])


def _messages(source: _Source, requests: int, change: Change) -> dict[str, str]:
    before = source.run.fork.messages if source.run and source.run.fork else {}
    kept = {number: text for number, text in before.items() if int(number) <= requests}
    return {**kept, str(requests + 1): change.message} if change.message else kept


def _requests_before(journal: Journal, taken_over: tuple[Step, ...]) -> int:
    return sum(_is_own_request(journal, step) for step in taken_over)


def _is_own_request(journal: Journal, step: Step) -> bool:
    return step.kind == "model" and step.agent_path == journal.agent_path


def decision_for(verdict: Any, *, reason: str, arguments: dict[str, Json] | None, by: str) -> Decision:
    """A decision for a request of a run that is yet to be made. Raises RefusedError when it has the wrong form."""
    try:
        return Decision(
            request_id="",
            verdict=verdict,
            arguments=arguments,
            reason=reason,
            decided_by=by,
            decided_at=datetime.now(UTC),
        )
    except ValidationError as error:
        raise RefusedError(f"The decision cannot be taken: {problems(error, depth=1)}") from error
