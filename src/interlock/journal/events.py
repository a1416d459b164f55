"""The events of a run in their order, from its history alone: the same ones, with the same offsets, for every reader.

What a step said while it worked is in the history as batches. All else is told from what the run did.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from interlock.contracts import names
from interlock.contracts.payloads import EventBatch, Json, Payload, Said
from interlock.journal._answers import SPOKEN, answer_in
from interlock.journal._payloads import Decoder, moment
from interlock.journal._steps import ENDS
from interlock.journal.model import Request, Step, SubRunLink
from interlock.journal.reader import HistoryReader

_ENDED_WITH = "its worker was lost, or the attempt failed"


class RunEvent(Payload):
    """One event of a run; secrets are masked. Fields that say nothing about its kind are left at their defaults.

    offset: from 0, without gaps, over all executions of the run. at: when the run's history got it.
    kind: one of these; more may come.
    `run_started`: agent_path, text (what it was started with, in a line).
    `step_started`: step (its number, from 1, over all executions), step_kind (`model`, `tool`, `judge`, ...), name,
    agent_path, text (the step in a line); of a tool call_id and arguments.
    `text`, `thinking`: text, the next piece of what the model of a step says. Those of the attempt that counts, joined,
    are what the step has recorded, always.
    `call_delta`: a call that the model is writing: name, call_id, arguments (those that are whole now), size
    (characters so far). A preview: `call` follows.
    `call`: a call that the model has made: name, call_id, arguments.
    `progress`: done, total and text, as the step's tool says it.
    `attempt_failed`: attempt, error. What the step has said so far is void.
    `step_finished`: step, status (as in `Step`), attempt (how many there were), text (what came back, in a word),
    error.
    `approval_asked`: request_id, request_kind, name (the tool), arguments, text (the call in a line), call_id.
    `approval_escalated`: request_id, name, text (to whom it was, so far).
    `approval_decided`: request_id, name, status (the outcome), by, text (the reason), arguments (if others are to run).
    After `timed_out` another may follow, which holds: of an answer that came in the same moment.
    `approval_withdrawn`: request_id, name.
    `stuck`, `retried`: text (which step, in a line).
    `sub_run_started`, `sub_run_ended`: workflow_id, name (the agent), step. Its events are its own: read them there.
    `run_ended`: status (as in `RunReport`), error. The last one.
    """

    offset: int
    at: AwareDatetime
    kind: str
    agent_path: tuple[str, ...] = ()
    step: int | None = None
    step_kind: str = ""
    name: str = ""
    attempt: int | None = None
    text: str = ""
    call_id: str = ""
    arguments: dict[str, Json] | None = None
    size: int | None = None
    done: float | None = None
    total: float | None = None
    request_id: str = ""
    request_kind: str = ""
    status: str = ""
    by: str = ""
    error: str = ""
    workflow_id: str = ""


class _Speech:
    """What a step has said so far in the attempt that is known to be under way, or was the last."""

    def __init__(self) -> None:
        self.attempt = 1
        self.failed = 0  # The last attempt that was told to have failed.
        self.batches = 0
        self.said = dict.fromkeys(SPOKEN, "")


class EventReader:
    """Turns the history of one execution of a run, read in order, into events.

    offset: of its first event. steps: how many steps the executions before it had; both 0 for the first one.
    """

    def __init__(self, converter: DataConverter, *, offset: int = 0, steps: int = 0) -> None:
        self.offset = offset
        self._converter = converter
        self._first = offset == 0
        self._steps_before = steps
        self._decoder = Decoder(converter)
        self._history = HistoryReader(converter)
        self._speeches: dict[str, _Speech] = {}
        self._open: set[str] = set()
        self._escalated: dict[str, datetime] = {}
        self._over: dict[str, str] = {}  # What became of requests in the last workflow task.
        self._stuck: dict[int, str] = {}
        self._sub_runs: dict[str, str] = {}

    @property
    def steps(self) -> int:
        """How many steps there were, with those of the executions before."""
        return self._steps_before + len(self._history.steps)

    @property
    def continued_as(self) -> str:
        """The run id of the execution that the run goes on in; empty when it does not."""
        return self._history.continued_as

    def after(self) -> "EventReader":
        """A reader for the execution that the run goes on in."""
        return EventReader(self._converter, offset=self.offset, steps=self.steps)

    async def read(self, event: HistoryEvent) -> list[RunEvent]:
        """Take the next event of the history. Returns the run's events that it makes."""
        step = await self._history.read(event)
        at = moment(event.event_time)
        return [self._numbered(at, fields) for fields in await self._told(event, step)]

    def _numbered(self, at: Any, fields: dict[str, Any]) -> RunEvent:
        self.offset += 1
        return RunEvent(offset=self.offset - 1, at=at, **fields)

    async def _told(self, event: HistoryEvent, step: Step | None) -> list[dict[str, Any]]:
        kind = event.WhichOneof("attributes") or ""
        found: list[dict[str, Any]] = []
        if kind == "workflow_task_scheduled_event_attributes":
            self._open -= set(self._over)
            self._over.clear()
        if kind == "workflow_execution_started_event_attributes" and self._first:
            found.append({"kind": "run_started", "agent_path": self._history.path, "text": self._history.summary})
        elif kind == "workflow_execution_signaled_event_attributes":
            attributes = event.workflow_execution_signaled_event_attributes
            if attributes.signal_name == names.RECORD_EVENTS:
                return list(self._batch(await self._decoder.first(attributes.input)))
        elif kind == "activity_task_scheduled_event_attributes" and step:
            found += self._began(step)
        elif kind == "activity_task_started_event_attributes" and step:
            found += self._attempt(step, step.attempts, step.last_error or "")
        elif event.event_type in ENDS and step:
            found += await self._finished(event, step)
        return [*found, *self._changes()]

    # Steps.

    def _began(self, step: Step) -> Iterator[dict[str, Any]]:
        self._speeches[step.activity_id] = _Speech()
        if _is_shown(step):
            call = {"call_id": step.call_id, "arguments": step.arguments} if step.kind == "tool" else {}
            yield {"kind": "step_started", **self._of(step), "text": step.summary, **call}

    def _batch(self, given: Any) -> Iterator[dict[str, Any]]:
        batch = _read(given)
        step = self._history.step_of(batch.activity_id) if batch else None
        if batch is None or step is None or step.ended_at is not None or not _is_shown(step):
            return  # A stranger's, or of an attempt that the server had given up.
        speech = self._speeches.setdefault(step.activity_id, _Speech())
        yield from self._attempt(step, batch.attempt, "")
        if batch.attempt < speech.attempt or batch.attempt <= speech.failed or batch.number <= speech.batches:
            return
        speech.batches = batch.number
        for said in batch.said:
            yield from self._piece(step, speech, said)
        if batch.failed:
            yield from self._void(step, speech, batch.failed)

    def _piece(self, step: Step, speech: _Speech, said: Said) -> Iterator[dict[str, Any]]:
        of = {"kind": said.kind, **self._in(step), "attempt": speech.attempt}
        if said.kind in SPOKEN and said.text:
            speech.said[said.kind] += said.text
            yield {**of, "text": said.text}
        elif said.kind == "call_delta":
            call = {"call_id": said.call_id, "arguments": said.arguments, "size": said.size}
            yield {**of, "name": said.text, **call}
        elif said.kind == "progress":
            yield {**of, "text": said.text, "done": said.done, "total": said.total}

    def _attempt(self, step: Step, attempt: int, error: str) -> Iterator[dict[str, Any]]:
        """A later attempt than the one that is known of is under way: so that one has failed."""
        speech = self._speeches.setdefault(step.activity_id, _Speech())
        if attempt > speech.attempt and _is_shown(step):
            if speech.failed < attempt - 1:
                speech.attempt = attempt - 1
                yield from self._void(step, speech, error or _ENDED_WITH)
            speech.attempt, speech.batches = attempt, 0

    def _void(self, step: Step, speech: _Speech, error: str) -> Iterator[dict[str, Any]]:
        speech.failed = speech.attempt
        speech.said = dict.fromkeys(SPOKEN, "")
        yield {"kind": "attempt_failed", **self._in(step), "attempt": speech.attempt, "error": error}

    async def _finished(self, event: HistoryEvent, step: Step) -> list[dict[str, Any]]:
        speech = self._speeches.pop(step.activity_id, None) or _Speech()
        if step.kind == "description" and step.status == "completed":
            return list(self._asked(self._history.request(step.request_id)))
        if not _is_shown(step):
            return []
        found: list[dict[str, Any]] = []
        if step.kind == "model" and step.status == "completed":
            result = await self._decoder.first(event.activity_task_completed_event_attributes.result)
            found += self._rest(step, speech, result)
        elif step.status != "completed" and any(speech.said.values()):
            found += self._void(step, speech, step.error or step.status)
        end = {"status": step.status, "attempt": step.attempts, "text": step.outcome, "error": step.error or ""}
        return [*found, {"kind": "step_finished", **self._of(step), **end}]

    def _rest(self, step: Step, speech: _Speech, result: Any) -> Iterator[dict[str, Any]]:
        """What the recorded answer holds beyond what was said; all of it where that does not fit."""
        answer = answer_in(result)
        if not all(answer.said[kind].startswith(speech.said[kind]) for kind in SPOKEN):
            yield from self._void(step, speech, "it does not fit what was recorded")
        of = {**self._in(step), "attempt": step.attempts}
        for kind in SPOKEN:
            if rest := answer.said[kind][len(speech.said[kind]) :]:
                yield {**of, "kind": kind, "text": rest}
        for call in answer.calls:
            yield {**of, "kind": "call", "name": call.tool, "call_id": call.call_id, "arguments": call.arguments}

    def _of(self, step: Step) -> dict[str, Any]:
        return {**self._in(step), "step_kind": step.kind, "name": step.name}

    def _in(self, step: Step) -> dict[str, Any]:
        return {"step": self._steps_before + step.position, "agent_path": step.agent_path}

    # What the run waits for, what it has started, and its end.

    def _asked(self, request: Request | None) -> Iterator[dict[str, Any]]:
        if request is None:
            return
        self._open.add(request.request_id)
        yield {
            "kind": "approval_asked",
            "agent_path": request.agent_path,
            "name": request.tool,
            "request_id": request.request_id,
            "request_kind": request.kind,
            "arguments": request.proposed,
            "text": request.label,
            "call_id": request.call_id,
        }

    def _changes(self) -> Iterator[dict[str, Any]]:
        for request_id in sorted(self._open, key=_number):
            request = self._history.request(request_id)
            if request and request.escalated_at and request.escalated_at != self._escalated.get(request_id):
                self._escalated[request_id] = request.escalated_at
                yield {"kind": "approval_escalated", **_about(request), "text": ", ".join(request.escalated_to)}
            if request is not None and request.outcome not in ("open", self._over.get(request_id)):
                yield _settled(request)
                self._over[request_id] = request.outcome
                if request.outcome != "timed_out":
                    self._open.remove(request_id)
        for number, stuck in self._history.stuck.items():
            before, self._stuck[number] = self._stuck.get(number), stuck.outcome
            if before is None:
                yield {"kind": "stuck", "text": stuck.label}
            if stuck.outcome == "retried" != before:
                yield {"kind": "retried", "text": stuck.label}
        for key, link in self._history.sub_runs.items():
            before, self._sub_runs[key] = self._sub_runs.get(key), link.status
            if before is None:
                yield {"kind": "sub_run_started", **self._link(link)}
            if link.ended_at is not None and before in (None, "running"):
                yield {"kind": "sub_run_ended", **self._link(link)}
        status, error = self._history.end
        if status and status != "continued" and not self._history.continued_as:
            yield {"kind": "run_ended", "agent_path": self._history.path, "status": status, "error": error}

    def _link(self, link: SubRunLink) -> dict[str, Any]:
        step = None if link.position is None else self._steps_before + link.position
        return {"workflow_id": link.workflow_id, "name": link.agent or link.workflow_type, "step": step}


def _settled(request: Request) -> dict[str, Any]:
    of = _about(request)
    if request.outcome == "withdrawn" or request.answer is None:
        return {"kind": "approval_withdrawn", **of}
    answer = request.answer
    said = {"by": answer.by, "text": answer.reason, "arguments": answer.arguments}
    return {"kind": "approval_decided", **of, "status": request.outcome, **said}


def _about(request: Request) -> dict[str, Any]:
    return {"agent_path": request.agent_path, "name": request.tool, "request_id": request.request_id}


def _number(request_id: str) -> tuple[int, str]:
    return (int(request_id) if request_id.isdecimal() else 0, request_id)


def _is_shown(step: Step) -> bool:
    return step.kind != "description"


def _read(given: Any) -> EventBatch | None:
    try:
        return EventBatch.model_validate(given)
    except ValidationError:
        return None
