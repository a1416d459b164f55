"""The requests of a run and their answers: which one counted, told from what the run did next.

A history holds every answer that arrived, but not what became of one that came by signal. The run takes the first valid
one. An answer by update is in the history only if it was valid. An approved call is scheduled in the workflow task that
took the answer, with the number of its request on it. So an update settles a request for certain, a call points at its
answer, and where there is neither, the first answer that looks valid is taken for the one.

The limit of a request is in the result of the step that described its tool, and each of its stages has a timer. One
that has fired tells that the request was open until then; what came with it, in the same workflow task, came before.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from interlock.contracts.canonical import digest
from interlock.contracts.limits import escalated, standing
from interlock.contracts.masking import masked
from interlock.contracts.payloads import Limited, TimeLimit
from interlock.journal._payloads import made, shown, shown_object, text_in, texts_in, time_in
from interlock.journal.model import Answer, Request, Step, Via

_OUTCOMES = {
    "approve": "approved",
    "reject": "rejected",
    "complete": "completed",
    "fail": "failed",
    "happened": "happened",
    "not_happened": "not_happened",
    "give_up": "given_up",
    "deny": "timed_out",
}
_FITTING = {
    "approval": ("approve", "reject"),
    "tool_result": ("reject", "complete", "fail"),
    "outcome": ("happened", "not_happened", "give_up"),
    "budget": ("approve", "reject"),
    "output": ("approve", "reject", "give_up"),
}
_OPEN: dict[str, Any] = {"outcome": "open", "answer": None, "ignored": (), "settled_at": None, "edited": False}
_NEVER = (-1, -1)
_WITHOUT = TimeLimit()
_LETS_RUN = ("approve", "not_happened")


@dataclass
class _Candidate:
    """An answer. task: the number of the workflow task that got it, which began at began, once it has. certain: the
    run said that it counted.

    edited: a digest of what it would have instead, as the person saw and wrote it; empty when it is as asked.
    """

    answer: Answer
    task: int
    certain: bool = False
    began: datetime | None = None
    edited: str = ""


@dataclass
class _Asked:
    """A request. ready: the workflow task that opened it to people; what came with that task was too early.

    seen_digest: of the arguments as a person sees them.
    run_in: the workflow tasks that scheduled its call. looked_at: how many answers and calls there were when the one
    that counted was last found.
    limit: how long it waits. opened_at: since when, by the run's clock. passed: how many stages of the limit were
    reached; when the last of these was, the request was open before the workflow task open_before, and said before of
    its limit.
    """

    request: Request
    proposed_digest: str
    seen_digest: str
    limit: TimeLimit = _WITHOUT
    opened_at: datetime | None = None
    passed: int = 0
    open_before: int = 0
    before: dict[str, Any] = field(default_factory=dict)
    ready: int | None = None
    judged: bool = False
    answers: list[_Candidate] = field(default_factory=list)
    run_in: list[int] = field(default_factory=list)
    executed_digest: str = ""
    looked_at: tuple[int, int] = (0, 0)


class Requests:
    """Collects the requests of one history in its order."""

    def __init__(self) -> None:
        self.stray: list[Answer] = []
        self._asked: dict[str, _Asked] = {}
        self._unsettled: list[_Asked] = []
        self._updates: dict[int, _Candidate] = {}

    def ask(self, step: Step, question: Any, label: str) -> str:
        """A tool is described because a call of it is about to be asked about. Returns the number of the request."""
        request_id = text_in(question, "request_id") or str(len(self._asked) + 1)
        arguments = question.get("arguments") if text_in(question, "request_id") else None
        request = Request(
            request_id=request_id,
            kind=text_in(question, "kind"),
            agent_path=texts_in(question, "agent_path") or step.agent_path,
            tool=step.name,
            label=label,
            call_id=text_in(question, "call_id"),
            proposed=shown_object(arguments),
            asked_at=step.scheduled_at,
            asked_by=step.position,
        )
        self._asked[request_id] = _Asked(request, _digest(arguments), _digest(masked(arguments)))
        self._unsettled.append(self._asked[request_id])
        return request_id

    def described(self, step: Step, description: Any, task: int) -> None:
        """The tool is described, or will never be."""
        asked = self._asked[step.request_id]
        if step.status == "completed":
            asked.ready = task
            asked.limit = _limit_in(description)
        else:
            self._settle(asked, outcome="withdrawn", settled_at=step.ended_at)

    def judge(self, step: Step, label: str) -> str:
        """Judges are asked about a call. Returns the number of the request; empty when there is none."""
        for asked in self._asked.values():
            request = asked.request
            same = request.call_id == step.call_id if request.call_id and step.call_id else request.label == label
            if same and not asked.judged and request.outcome == "open":
                asked.judged = True
                asked.request = request.model_copy(update={"judged_by": step.position})
                return request.request_id
        return ""

    def judged(self, step: Step, verdict: Any, task: int) -> None:
        """The judges have spoken, or failed to: then a person is asked."""
        asked = self._asked.get(step.request_id)
        if asked is None:
            return
        asked.ready = task
        word = text_in(verdict, "verdict")
        if word in _OUTCOMES and step.ended_at is not None:
            answer = Answer(
                request_id=step.request_id,
                verdict=word,
                by=text_in(verdict, "by"),
                at=step.ended_at,
                via="judge",
                reason=shown(text_in(verdict, "reason")),
                arguments=shown_object(verdict.get("arguments")),
                result=shown(verdict.get("result")),
            )
            asked.answers.append(_Candidate(answer, task))

    def decide(self, decision: Any, *, at: datetime, via: Via, task: int, event_id: int) -> None:
        """Somebody decides about a request."""
        request_id = text_in(decision, "request_id")
        answer = _answer(decision, request_id, text_in(decision, "verdict"), at, via, event_id)
        self._add(answer, task, _edited(decision))

    def complete(self, completion: Any, *, at: datetime, via: Via, task: int, event_id: int) -> None:
        """Somebody reports the result of a call."""
        request_id = self._request_of(text_in(completion, "call_id"))
        failed = isinstance(completion, dict) and completion.get("error") is not None
        self._add(_answer(completion, request_id, "fail" if failed else "complete", at, via, event_id), task)

    def take_over(self, step: Step, ruling: Any, at: datetime) -> None:
        """A forked run settles a request as the run that it was forked from did."""
        asked = self._asked[step.request_id]
        message = ruling.get("decision") or ruling.get("completion")
        failed = isinstance(message, dict) and message.get("error") is not None
        verdict = text_in(message, "verdict") or ("fail" if failed else "complete")
        if ruling.get("denied_by_limit") is True:
            message, verdict = {"reason": "the call was denied"}, "deny"
        answer = _answer(message, step.request_id, verdict, at, "fork", 0)
        asked.answers.append(_Candidate(answer, 0, certain=True, edited=_edited(message)))

    def confirm(self, event_id: int, receipt: Any) -> None:
        """The update that was accepted at this event is done. receipt: None when it changed nothing after all."""
        candidate = self._updates.pop(event_id, None)
        if candidate is None:
            return
        if receipt is None:
            candidate.certain = False
            candidate.answer = candidate.answer.model_copy(update={"ignored": "another message came first"})
        elif named := text_in(receipt, "request_id"):  # It may have been given under the model's id for the call.
            candidate.answer = candidate.answer.model_copy(update={"request_id": named})
        self._attach(candidate)

    def executed(self, step: Step, arguments: Any, task: int) -> None:
        """An approved call is scheduled."""
        asked = self._asked.get(step.request_id)
        if asked is None:
            return
        asked.run_in.append(task)
        asked.executed_digest = _digest(arguments)
        asked.request = asked.request.model_copy(
            update={"executed": step.arguments, "steps": (*asked.request.steps, step.position)}
        )

    def began(self, task: int, at: datetime) -> None:
        """A workflow task has begun, for the first time or anew: that is what the run's clock says in it."""
        for asked in self._unsettled:
            if not asked.limit.stages:
                continue
            if asked.ready == task:
                asked.opened_at = at
                self._settle(asked, **standing(asked.limit, at, 0))
            for one in asked.answers:
                if one.task == task:
                    one.began = at
                    asked.looked_at = _NEVER

    def reached(self, request_id: str, at: datetime, task: int) -> None:
        """A workflow task is over that saw the limit of a request reach its next stage."""
        asked = self._asked.get(request_id)
        if asked is None or asked.opened_at is None or asked.passed >= len(asked.limit.stages):
            return
        stage = asked.limit.stages[asked.passed]
        asked.passed, asked.open_before = asked.passed + 1, task
        asked.before = {name: getattr(asked.request, name) for name in Limited.model_fields}
        if _counted(asked) is not None:
            return  # It came with the end of the time.
        if asked.request.outcome != "open":  # By an answer that only looked valid.
            self._settle(asked, **_OPEN)
            self._unsettled = [*(one for one in self._unsettled if one is not asked), asked]
        asked.looked_at = _NEVER
        change = standing(asked.limit, asked.opened_at, asked.passed)
        if stage.then == "escalate":
            self._settle(asked, **change, **escalated(asked.request, stage, at))
        else:
            reason = "the call was denied" if stage.then == "deny" else "the run ended"
            answer = Answer(request_id=request_id, verdict=stage.then, at=at, via="limit", reason=reason)
            asked.answers.append(_Candidate(answer, task, certain=True))

    def close(self, at: datetime) -> None:
        """The run has ended: what is open is withdrawn."""
        for request in self.open():
            self._settle(self._asked[request.request_id], outcome="withdrawn", settled_at=at)

    def one(self, request_id: str) -> Request | None:
        """A request as it stands."""
        asked = self._asked.get(request_id)
        return None if asked is None else self._found(asked)

    def open(self) -> list[Request]:
        """Those that wait."""
        self._unsettled = [asked for asked in self._unsettled if self._found(asked).outcome == "open"]
        return [asked.request for asked in self._unsettled]

    def all(self, now: datetime) -> Iterator[Request]:
        """The requests as they stand, in the order in which they were asked."""
        for asked in self._asked.values():
            request = self._found(asked)
            until = request.settled_at or now
            yield request.model_copy(update={"waited_seconds": (until - request.asked_at).total_seconds()})

    def _add(self, answer: Answer, task: int, edited: str = "") -> None:
        if answer.via == "update":
            self._updates[answer.event_id] = _Candidate(answer, task, certain=True, edited=edited)
        else:
            self._attach(_Candidate(answer, task, edited=edited))

    def _attach(self, candidate: _Candidate) -> None:
        asked = self._asked.get(candidate.answer.request_id)
        if asked is None:
            self.stray.append(candidate.answer)
        else:
            asked.answers.append(candidate)

    def _request_of(self, call_id: str) -> str:
        if call_id in self._asked:
            return call_id
        waiting = self.open()
        fitting = [request for request in waiting if request.call_id == call_id]
        if not fitting:  # An older history does not say which call a request is about.
            fitting = [request for request in waiting if not request.call_id]
        return fitting[0].request_id if len(fitting) == 1 else call_id

    def _found(self, asked: _Asked) -> Request:
        """A request, with the answer that counted."""
        known = (len(asked.answers), len(asked.run_in))
        counted = _counted(asked) if known != asked.looked_at else None
        if asked.request.outcome != "withdrawn" and counted is not None:
            # An update is in the history behind the task that took it, and so behind the limit's stage in that task.
            overtaken = counted.answer.via == "update" and counted.task == asked.open_before
            self._settle(asked, **_settlement(asked, counted), **(asked.before if overtaken else {}))
        asked.looked_at = known
        return asked.request

    def _settle(self, asked: _Asked, **found: Any) -> None:
        asked.request = asked.request.model_copy(update=found)


def _counted(asked: _Asked) -> _Candidate | None:
    # An update was taken for certain: then the limit, seen in the same task, came to nothing.
    certain = sorted((one for one in asked.answers if one.certain), key=lambda one: one.answer.via == "limit")
    led_to_calls = [one for one in asked.answers if one.task in asked.run_in and one.answer.verdict in _LETS_RUN]
    valid = [one for one in asked.answers if not _unfit(one, asked)]
    return next(iter([*certain, *led_to_calls, *valid]), None)


def _settlement(asked: _Asked, counted: _Candidate) -> dict[str, Any]:
    verdict = counted.answer.verdict
    edited = counted.answer.arguments is not None
    ran: dict[str, Any] = {}
    if asked.request.kind == "output" and verdict == "approve":  # No step runs it: it is what the run ends with.
        ran = {"executed": counted.answer.arguments or asked.request.proposed}
        edited = counted.edited not in ("", asked.seen_digest)
    if asked.executed_digest and asked.proposed_digest:
        edited = asked.executed_digest != asked.proposed_digest
    return {
        "kind": asked.request.kind or _kind(verdict),
        "outcome": "timed_out" if counted.answer.via == "limit" else _OUTCOMES.get(verdict, verdict),
        "answer": counted.answer,
        "ignored": tuple(_ignored(one, counted, asked) for one in asked.answers if one is not counted),
        "settled_at": counted.answer.at,
        "edited": edited,
        **ran,
    }


def _unfit(one: _Candidate, asked: _Asked) -> str:
    if one.answer.ignored:
        return one.answer.ignored
    if one.answer.verdict not in _FITTING.get(asked.request.kind, _OUTCOMES):
        return "it does not answer what was asked"
    if asked.request.kind == "output" and one.answer.verdict == "reject" and not one.answer.reason.strip():
        return "it does not say what to change"
    if one.answer.via == "judge":
        return ""
    if asked.ready is None or asked.ready >= one.task:
        return "the request was not open yet"
    if _is_late(one, asked):
        return "the time for an answer was over"
    return "it was not valid" if one.task < asked.open_before else ""


def _is_late(one: _Candidate, asked: _Asked) -> bool:
    """Whether the run refused an answer by the clocks: its own, and that of the sender."""
    expires_at, decided_at = asked.request.expires_at, one.answer.decided_at
    if expires_at is None or decided_at is None or decided_at < expires_at:
        return False
    return one.began is None or one.began >= expires_at


def _ignored(one: _Candidate, counted: _Candidate, asked: _Asked) -> Answer:
    why = _unfit(one, asked) or ("the request was settled already" if one.task >= counted.task else "it was not valid")
    return one.answer.model_copy(update={"ignored": why})


def _kind(verdict: str) -> str:
    return next((kind for kind, fitting in _FITTING.items() if verdict in fitting and verdict != "reject"), "")


def _answer(message: Any, request_id: str, verdict: str, at: datetime, via: Via, event_id: int) -> Answer:
    fields = message if isinstance(message, dict) else {}
    return Answer(
        request_id=shown(request_id),
        verdict=shown(verdict),
        by=shown(text_in(fields, "decided_by") or text_in(fields, "completed_by")),
        at=at,
        decided_at=time_in(fields, "decided_at") or time_in(fields, "completed_at"),
        via=via,
        reason=shown(text_in(fields, "reason") or text_in(fields, "error")),
        arguments=shown_object(fields.get("arguments")),
        result=shown(fields.get("result")),
        ignored="" if fields else "it could not be read",
        event_id=event_id,
    )


def _limit_in(description: Any) -> TimeLimit:
    given = description.get("time_limit") if isinstance(description, dict) else None
    return made(TimeLimit, given) or _WITHOUT


def _edited(decision: Any) -> str:
    return _digest(masked(decision.get("arguments"))) if isinstance(decision, dict) else ""


def _digest(arguments: Any) -> str:
    return digest(arguments) if isinstance(arguments, dict) else ""
