"""Plans a fork: a new run that takes over what another one did up to a step, and goes on from there by itself."""

from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from interlock._rpc import header_text
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import RefusedError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import (
    Decision,
    Fork,
    GivenResult,
    Json,
    MadeCall,
    Retry,
    ReusedRuling,
    ReusedStep,
    RunInput,
    ToolCompletion,
    Usage,
)
from interlock.contracts.places import ranks, step_parts
from interlock.journal import HistoryReader, Journal, Request, Step

NO_RESULT: Final = object()
"""Stands for no result; null is one."""

_OF_CALLS = ("tool", "description")  # A call that still waits has only the step in which its tool was described.
_STUCK = "stuck: "
_STUCK_MODEL = "stuck: model of "
_CALL_START = 16
"""How much of the digest of a call a fork is given."""

_MESSAGES: dict[str, type[Decision] | type[ToolCompletion] | type[Retry]] = {
    names.DECIDE_APPROVAL: Decision,
    names.SUBMIT_DECISION: Decision,
    names.COMPLETE_TOOL_CALL: ToolCompletion,
    names.SUBMIT_TOOL_RESULT: ToolCompletion,
    names.RETRY_RUN: Retry,
    names.SUBMIT_RETRY: Retry,
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
    effects: its other tool calls, which have run or may have; of_this_execution: how many of them, the first ones, are
    its own, and not of the executions that went on from it. What they did, and what the runs did that they started
    (`Step.sub_runs`), is not undone, and the new run may do it again.
    """

    run: RunInput
    journal: Journal
    taken_over: tuple[Step, ...]
    effects: tuple[Step, ...]
    of_this_execution: int


@dataclass(frozen=True)
class _Retried:
    """A request to the model that somebody had made again. after, before: between which positions."""

    after: int
    before: int
    usage_limits: dict[str, Json]


@dataclass
class _Source:
    """What a fork needs of a history that its journal does not show: the very values."""

    run: RunInput | None = None
    steps: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    positions: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    arguments: dict[int, dict[str, Json]] = field(default_factory=dict)
    messages: dict[int, Decision | ToolCompletion] = field(default_factory=dict)
    retries: dict[int, Retry] = field(default_factory=dict)
    stuck: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    retried: list[_Retried] = field(default_factory=list)
    over: list[int] = field(default_factory=list)
    conversation: list[Json] | None = None

    def place(self, position: int) -> str:
        """The place, among the run's tool calls, of the call that a step belongs to."""
        return step_parts(self.steps[position - 1])[0]

    def unstuck(self, timer: int, at: int) -> None:
        """A step is no longer stuck since an event: somebody had it run again, or the run was ended."""
        label, number, after = self.stuck[timer]
        asked = [one for event, one in self.retries.items() if timer < event < at and one.step in ("", str(number))]
        if asked and label.startswith(_STUCK_MODEL):
            self.retried.append(_Retried(after, len(self.steps) + 1, asked[-1].usage_limits or {}))


Histories = Callable[[str], AsyncIterable[HistoryEvent]]


async def plan_fork(
    histories: Histories, converter: DataConverter, *, run_id: str, at: int, change: Change
) -> ForkPlan:
    """Read a run's history and say what a fork at a step takes over.

    histories: the events of an execution of the run. run_id: of the one that is forked.
    at: the position of the first step that is not taken over; one more than the last takes all over.
    Raises RefusedError when there is no such step, or the change does not fit it.
    """
    journal, source = await _read(histories(run_id), converter, run_id)
    if source.run is None:
        raise RefusedError(f"{journal.workflow_id!r} is no run of an agent, so it cannot be forked.")
    _check(journal, at, change)
    later = [one async for one in _executions_after(journal, histories, converter)]
    planned = _Plan(source, source.run, journal, at, change)
    taken_over = planned.taken_over
    if any(not source.steps[step.position - 1] for step in taken_over):
        raise RefusedError(
            f"Run {journal.workflow_id!r} was made by a version that did not note which step is which, so its results "
            "cannot be taken over. Start the work as a new run."
        )
    fork = Fork(
        workflow_id=journal.workflow_id,
        run_id=run_id,
        at=at,
        made={} if change else _made([(journal, source), *later]),
        steps=planned.steps(),
        rulings=planned.rulings(),
        results=planned.results(),
        given=planned.given(),
        messages=planned.messages(),
        requests=planned.requests(planned.is_root_request),
        retried=planned.retried(),
    )
    carried = source.run.carried and source.run.carried.model_copy(update={"key_root": "", "made": {}, "stuck": 0})
    changed = {
        "fork": fork,
        "parent": None,
        "account": None,
        "key_root": "",
        "carried": carried,
        "usage_limits": planned.usage_limits(),
    }
    effects = planned.effects()
    return ForkPlan(
        run=_without_session(source, source.run).model_copy(update=changed),
        journal=journal,
        taken_over=taken_over,
        effects=(*effects, *(step for one, _ in later for step in one.steps if _may_have_run(step))),
        of_this_execution=len(effects),
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


async def _read(events: AsyncIterable[HistoryEvent], converter: DataConverter, run_id: str) -> tuple[Journal, _Source]:
    reader, source = HistoryReader(converter, run_id=run_id), _Source()
    async for event in events:
        await reader.read(event)
        await _note(source, event, converter)
    return reader.journal(), source


async def _executions_after(
    journal: Journal, histories: Histories, converter: DataConverter
) -> AsyncIterator[tuple[Journal, _Source]]:
    """What the run did in the executions that went on from this one."""
    while journal.continued_as:
        journal, source = await _read(histories(journal.continued_as), converter, journal.continued_as)
        yield journal, source


def _may_have_run(step: Step) -> bool:
    # Of an attempt that has not ended the history says nothing.
    return step.kind == "tool" and (bool(step.attempts) or step.status in ("scheduled", "abandoned"))


def _made(executions: Sequence[tuple[Journal, _Source]]) -> dict[str, MadeCall]:
    return {
        source.place(step.position): MadeCall(call=source.calls[step.position - 1][:_CALL_START], key=step.key)
        for journal, source in executions
        for step in journal.steps
        if step.kind == "tool" and step.key
    }


class _Plan:
    """What a fork takes over of a run, at a step, with a change."""

    def __init__(self, source: _Source, run: RunInput, journal: Journal, at: int, change: Change) -> None:
        self._source = source
        self._run = run
        self._journal = journal
        self._at = at
        self._change = change
        self._decided = _request_at(journal, at) if change.decision else None
        self._tried_again = self._find_tried_again()
        left_out = self._find_left_out()
        self.taken_over = tuple(
            step
            for step in journal.steps[: at - 1]
            if step.position in source.completed and step.position not in left_out
        )
        """Its steps that do not run again."""

    def _find_tried_again(self) -> set[int]:
        """The positions of failed steps in whose stead another one ran: in the fork that one is the first."""
        found: set[int] = set()
        names = self._source.steps
        last = {name.rpartition(":")[0]: position for position, name in enumerate(names, start=1)}
        for step in self._journal.steps:
            again = last[names[step.position - 1].rpartition(":")[0]] > step.position
            if step.kind == "tool" and step.position not in self._source.completed and again:
                found.add(step.position)
        for retried in self._source.retried:
            asked = [one for one in self._journal.steps[: retried.after] if self.is_root_request(one)]
            if asked and asked[-1].position not in self._source.completed:
                found.add(asked[-1].position)
        return found

    def _find_left_out(self) -> set[int]:
        """The positions of steps that belong to what is decided otherwise, or is to be decided again."""
        found: set[int] = set()
        for request in self._journal.requests:
            if request is self._decided:
                found |= {request.asked_by, request.judged_by or 0, *request.steps}
            judged = request.answer is not None and request.answer.via == "judge" and request.outcome == "approved"
            if judged and not self._is_settled_before(request):
                found.add(request.judged_by or 0)
        return found

    def is_root_request(self, step: Step) -> bool:
        """Whether a step is a request to the model that the run makes outside of all tool calls."""
        return step.kind == "model" and not self._source.place(step.position)

    def is_own_request(self, step: Step) -> bool:
        """Whether it is one of the run's own agent."""
        return _is_own_request(self._journal, step)

    def requests(self, counted: Callable[[Step], bool]) -> int:
        """How many requests the fork makes before the first that it makes for itself at the step."""
        found = [one for one in self._asked(counted) if one.position < self._at]
        while found and found[-1].position not in self._source.completed:
            found.pop()  # Nothing came of it: it is the first that is made.
        return len(found)

    def _asked(self, counted: Callable[[Step], bool]) -> list[Step]:
        return [one for one in self._journal.steps if counted(one) and one.position not in self._tried_again]

    def effects(self) -> list[Step]:
        """The tool calls that may be made again."""
        kept = {self._source.place(step.position) for step in self.taken_over if step.kind == "tool"}
        kept |= set(self.results())
        over = {step.position for step in self.taken_over}
        return [
            step
            for step in self._journal.steps
            if _may_have_run(step)
            and step.position not in over
            and not (step.position < self._at and self._source.place(step.position) in kept)
        ]

    def steps(self) -> tuple[ReusedStep, ...]:
        """The steps whose results are taken over, by the names that they have in the fork."""
        over = {step.position for step in self.taken_over}
        counts: Counter[str] = Counter()
        found: list[ReusedStep] = []
        for step in self._journal.steps[: self._at - 1]:
            if step.position in self._tried_again:
                continue
            name = self._source.steps[step.position - 1].rpartition(":")[0]
            counts[name] += 1
            if step.position in over:
                found.append(
                    ReusedStep(
                        step=f"{name}:{counts[name]}",
                        call=self._source.calls[step.position - 1],
                        event_id=self._source.completed[step.position],
                        spent=self._spent(step),
                    )
                )
        return tuple(found)

    def _spent(self, step: Step) -> Usage:
        started = [one.usage for one in self._journal.sub_runs if one.position == step.position and one.usage]
        before = self._run.fork.steps if step.reused and self._run.fork else ()
        name = self._source.steps[step.position - 1]
        return sum([*started, *(one.spent for one in before if one.step == name)], Usage())

    def rulings(self) -> tuple[ReusedRuling, ...]:
        """What was decided, as far as it is taken over or decided for the fork."""
        found: list[ReusedRuling] = []
        for request in self._journal.requests:
            decided = request is self._decided
            if not decided and (
                request.asked_by >= self._at or request.kind == "outcome" or not self._is_settled_before(request)
            ):
                continue
            message = self._change.decision if decided else self._message(request)
            by_limit = message is None and request.outcome == "timed_out"
            if message is not None or by_limit:
                found.append(
                    ReusedRuling(
                        place=self._source.place(request.asked_by),
                        arguments_digest=digest(self._source.arguments.get(request.asked_by, {})),
                        decision=message if isinstance(message, Decision) else None,
                        completion=message if isinstance(message, ToolCompletion) else None,
                        before_judges=decided,
                        denied_by_limit=by_limit,
                    )
                )
        return tuple(found)

    def _message(self, request: Request) -> Decision | ToolCompletion | None:
        """The very answer that settled a request."""
        source = self._source
        if request.answer is None:
            return None
        if request.answer.via == "fork" and self._run.fork:
            wanted = (source.place(request.asked_by), digest(source.arguments.get(request.asked_by, {})))
            return next(
                (
                    one.decision or one.completion
                    for one in self._run.fork.rulings
                    if (one.place, one.arguments_digest) == wanted
                ),
                None,
            )
        return source.messages.get(request.answer.event_id)

    def _is_settled_before(self, request: Request) -> bool:
        """Whether nothing is left to run of what was decided. One approval is for one execution: where the call has
        not returned before the fork begins, it is asked about again."""
        if request.kind == "budget":
            return request.outcome == "approved"  # What was refused there is not what was forked for.
        if request.outcome == "timed_out":  # Where that ended the run, it is what the fork is to go past.
            return request.answer is not None and request.answer.verdict == "deny"
        if request.outcome in ("rejected", "completed", "failed"):
            return True
        if request.kind == "output":
            return request.outcome == "approved"  # Whoever gave up on it is asked again.
        at, source = self._at, self._source
        executed = {*request.steps, *(position for one in self._asked_of(request) for position in one.steps)}
        return any(position < at and position in source.completed for position in executed)

    def _asked_of(self, request: Request) -> list[Request]:
        """The requests about whether the approved call happened: after one, it may have run again."""
        here = self._source.place(request.asked_by)
        return [
            one
            for one in self._journal.requests
            if one.kind == "outcome" and one.asked_by > request.asked_by and self._source.place(one.asked_by) == here
        ]

    def results(self) -> dict[str, Json]:
        """What calls have returned that ran outside of any step: a person said that they happened, and what of it."""
        found = dict(self._results_before())
        found |= {self._source.place(one.asked_by): said.result for one, said in self._happened()}
        if self._change.has_result:
            found[self._source.place(self._at)] = self._change.result
        return found

    def given(self) -> dict[str, GivenResult]:
        """More about these results."""
        before = self._run.fork.given if self._run.fork else {}
        found = {at: before[at] for at in self._results_before() if at in before}
        for request, _ in self._happened():
            found[self._source.place(request.asked_by)] = GivenResult(
                requests=self._requests_until(request.asked_by), executed=self._edited(request)
            )
        if self._change.has_result:
            requests = self._requests_until(self._at)
            found[self._source.place(self._at)] = GivenResult(requests=requests)
        return found

    def _results_before(self) -> dict[str, Json]:
        """The results that the run itself was given, as a fork, for calls that its model had made before the step."""
        fork = self._run.fork
        if fork is None:
            return {}
        made = self._requests_until(self._at)
        dropped = self._source.place(self._decided.asked_by) if self._decided else None
        later = [ranks(self._source.place(one.position)) for one in self._journal.steps[self._at - 1 :]]
        first = min((one for one in later if one), default=(inf,))
        return {
            at: value
            for at, value in fork.results.items()
            if (fork.given[at].requests <= made if at in fork.given else ranks(at) < first) and at != dropped
        }

    def _requests_until(self, position: int) -> int:
        return sum(one.position < position for one in self._asked(self.is_root_request))

    def _happened(self) -> Iterator[tuple[Request, Decision]]:
        for request in self._journal.requests:
            said = self._message(request) if request.outcome == "happened" else None
            if request.asked_by < self._at and isinstance(said, Decision):
                yield request, said

    def _edited(self, outcome: Request) -> dict[str, Json] | None:
        """The arguments that a call ran with of which a person said that it happened, if a reviewer gave them."""
        place = self._source.place(outcome.asked_by)
        approved = [
            one
            for one in self._journal.requests
            if one.outcome == "approved" and one.edited and self._source.place(one.asked_by) == place
        ]
        return self._source.arguments.get(outcome.asked_by) if approved else None

    def messages(self) -> dict[str, str]:
        """The messages to the agent's model, by the number of the request."""
        begun = sum(one.position <= self._at for one in self._asked(self.is_own_request))
        before = self._run.fork.messages if self._run.fork else {}
        kept = {number: text for number, text in before.items() if int(number) <= begun}
        here = str(self.requests(self.is_own_request) + 1)
        return {**kept, here: self._change.message} if self._change.message else kept

    def retried(self) -> tuple[int, ...]:
        """After how many requests somebody had the model asked again."""
        made = self._requests_until(self._at)
        before = [number for number in (self._run.fork.retried if self._run.fork else ()) if number <= made]
        return (*before, *(self._requests_until(one.after + 1) for one in self._retried_before()))

    def usage_limits(self) -> dict[str, Json] | None:
        """The limits as they stood at the step."""
        limits = dict(self._run.usage_limits or {})
        for one in self._retried_before():
            limits |= one.usage_limits
        return limits or None

    def _retried_before(self) -> list[_Retried]:
        return [one for one in self._source.retried if one.before <= self._at]


async def _note(source: _Source, event: HistoryEvent, converter: DataConverter) -> None:
    if event.HasField("workflow_execution_started_event_attributes"):
        started = event.workflow_execution_started_event_attributes
        if started.workflow_type.name == names.AGENT_WORKFLOW:
            source.run = await _input(started.input.payloads, converter)
    elif event.HasField("activity_task_scheduled_event_attributes"):
        scheduled = event.activity_task_scheduled_event_attributes
        headers = scheduled.header.fields
        # Of a step whose time is over in the task that has it run again, the retry counts.
        for timer in source.over:
            source.unstuck(timer, event.event_id)
        source.over.clear()
        source.steps.append(header_text(headers.get(names.HEADER_STEP)))
        source.calls.append(header_text(headers.get(names.HEADER_CALL)))
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
    elif event.HasField("timer_started_event_attributes"):
        await _note_stuck(source, event, converter)
    elif event.HasField("timer_canceled_event_attributes"):
        timer = event.timer_canceled_event_attributes.started_event_id
        if timer in source.stuck:
            source.unstuck(timer, event.event_id)
    elif event.HasField("timer_fired_event_attributes"):
        timer = event.timer_fired_event_attributes.started_event_id
        source.over += [timer] if timer in source.stuck else []


async def _note_stuck(source: _Source, event: HistoryEvent, converter: DataConverter) -> None:
    (summary,) = await converter.decode([event.user_metadata.summary])
    if isinstance(summary, str) and summary.startswith(_STUCK):
        carried = source.run and source.run.carried
        number = (carried.stuck if carried else 0) + len(source.stuck) + 1
        source.stuck[event.event_id] = (summary, number, len(source.steps))


async def _input(payloads: Any, converter: DataConverter) -> RunInput | None:
    try:
        return RunInput.model_validate((await converter.decode(list(payloads)))[0])
    except (ValidationError, IndexError):
        return None


async def _note_message(source: _Source, event_id: int, name: str, payloads: Any, converter: DataConverter) -> None:
    if (model := _MESSAGES.get(name)) is None:
        return
    try:
        message = model.model_validate((await converter.decode(list(payloads)))[0])
    except Exception:  # Nonsense that the run took no notice of either.
        return
    if isinstance(message, Retry):
        source.retries[event_id] = message
    else:
        source.messages[event_id] = message


def _check(journal: Journal, at: int, change: Change) -> None:
    """Raise RefusedError, saying why, for a step that there is not, or that the change does not fit."""
    last = len(journal.steps)
    if not 1 <= at <= last + 1:
        raise RefusedError(
            f"Run {journal.workflow_id!r} has no step {at}; it has 1 to {last}, and {last + 1} takes all over. "
            f"See `interlock journal {journal.workflow_id}`."
        )
    step = journal.steps[at - 1] if at <= last else None
    if change.message:
        _check_message(journal, at, step)
    if change.has_result and (step is None or step.kind not in _OF_CALLS):
        raise RefusedError(
            f"Step {at} is no tool call, so it cannot be given a result; these are: "
            f"{_positions(one for one in journal.steps if one.kind in _OF_CALLS)}."
        )
    request = _request_at(journal, at)
    if change.decision and (request is None or request.kind not in ("approval", "output", "")):
        asked = (
            one
            for one in journal.steps
            if (of := _request_at(journal, one.position)) and of.kind in ("approval", "output")
        )
        raise RefusedError(f"Nobody is asked for an approval at step {at}; that is so at: {_positions(asked)}.")


def _check_message(journal: Journal, at: int, step: Step | None) -> None:
    own = _positions(one for one in journal.steps if _is_own_request(journal, one))
    if step is None and journal.status == "completed":
        raise RefusedError(
            f"Run {journal.workflow_id!r} has completed: after its last step its model is asked nothing, so it would "
            f"not hear the message. Add it at one of these steps: {own}."
        )
    if step is not None and not _is_own_request(journal, step):
        raise RefusedError(
            f"Step {at} is no request to the model of {journal.agent!r}, so no message can be added to it; these are: "
            f"{own}."
        )


def _positions(steps: Any) -> str:
    return ", ".join(str(step.position) for step in steps) or "none"


def _request_at(journal: Journal, at: int) -> Request | None:
    return next((one for one in journal.requests if at == one.asked_by or at in one.steps), None)


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
