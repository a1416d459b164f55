"""Reads histories. Nothing else in Interlock does: whoever shows steps takes them from here."""

from collections.abc import AsyncIterable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.limits import request_of_timer
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Budget, Claim, Extension, extended
from interlock.journal._payloads import (
    UNREADABLE,
    Decoder,
    cut,
    made,
    moment,
    number_in,
    shown,
    shown_object,
    size,
    text_in,
    texts_in,
    time_in,
    usage_in,
)
from interlock.journal._requests import Requests
from interlock.journal._steps import ENDS, Steps, error_text, step_in
from interlock.journal._totals import totals
from interlock.journal.model import Journal, Request, Retry, Step, Stuck, SubRunLink, Via

_STUCK = "stuck: "  # How the summary of the timer begins that limits how long a run stays stuck.
_REUSED = " (reused)"  # How the summary of a step ends whose result was taken over.
_CLOSED = {
    "workflow_execution_completed_event_attributes": "completed",
    "workflow_execution_failed_event_attributes": "failed",
    "workflow_execution_canceled_event_attributes": "cancelled",
    "workflow_execution_terminated_event_attributes": "terminated",
    "workflow_execution_timed_out_event_attributes": "timed_out",
    "workflow_execution_continued_as_new_event_attributes": "continued",
}
_CHILD_ENDS = {
    "child_workflow_execution_completed_event_attributes": "completed",
    "child_workflow_execution_failed_event_attributes": "failed",
    "child_workflow_execution_canceled_event_attributes": "cancelled",
    "child_workflow_execution_terminated_event_attributes": "terminated",
    "child_workflow_execution_timed_out_event_attributes": "timed_out",
}


async def read_journal(
    events: AsyncIterable[HistoryEvent] | Iterable[HistoryEvent], converter: DataConverter = pydantic_data_converter
) -> Journal:
    """The journal of a history, such as `WorkflowHistory.from_json(...).events` has it.

    converter: decodes the payloads; what it cannot decode is shown as not readable.
    """
    reader = HistoryReader(converter)
    if isinstance(events, AsyncIterable):
        async for event in events:
            await reader.read(event)
    else:
        for event in events:
            await reader.read(event)
    return reader.journal()


class HistoryReader:
    """Turns the events of one history, read in order, into its journal. It keeps no event and no payload.

    run_id: of the execution; a history that was reset names the one that it came from.
    """

    def __init__(self, converter: DataConverter, *, run_id: str = "") -> None:
        self._decoder = Decoder(converter)
        self._plain = Decoder(DataConverter.default)
        self._steps = Steps(self._decoder)
        self._requests = Requests()
        self._retries: list[Retry] = []
        self._retries_by_event: dict[int, int] = {}
        self._retried: set[tuple[str, int]] = set()  # Which stuck step, empty for all, was retried in which task.
        self._stuck: dict[int, Stuck] = {}
        self._stuck_before = 0  # In the executions before.
        self._limits: dict[int, str] = {}  # The request whose limit a timer keeps.
        self._reached: list[tuple[str, datetime]] = []  # Requests whose limits the next workflow task sees reached.
        self._over: dict[int, int] = {}  # In which task the run saw that a stuck step's time is over.
        self._sub_runs: dict[str, SubRunLink] = {}
        self._head: dict[str, Any] = {"workflow_id": "", "run_id": run_id, "workflow_type": ""}
        self._head["started_at"] = datetime.now(UTC)
        self._rulings: list[dict[str, Any]] = []  # What the run took over of the decisions about another one.
        self._first_budget: Budget | None = None
        self._extensions: dict[tuple[str, str], Extension] = {}  # Of runs below, as they claim from this one.
        self._said = ""  # What the run last said of its status.
        self._task = 0  # How many workflow tasks are done; what arrives now comes with the next one.
        self._events = 0
        self._bytes = 0

    @property
    def steps(self) -> list[Step]:
        """The steps so far."""
        return self._steps.list

    @property
    def path(self) -> tuple[str, ...]:
        """The agents from the root to the run's own."""
        return self._steps.root

    @property
    def summary(self) -> str:
        """What the run was started with, in a line."""
        return str(self._head.get("summary", ""))

    @property
    def stuck(self) -> Mapping[int, Stuck]:
        """The times in which a step kept the run, by a number of their own."""
        return self._stuck

    @property
    def sub_runs(self) -> Mapping[str, SubRunLink]:
        """The runs below it, each under a key of its own."""
        return self._sub_runs

    @property
    def end(self) -> tuple[str, str]:
        """The status that the execution ended with, and why; empty while it is open."""
        return (str(self._head.get("status", "")), str(self._head.get("error") or ""))

    @property
    def continued_as(self) -> str:
        """The run id of the execution that goes on from this one; empty when none does."""
        return str(self._head.get("continued_as", ""))

    def request(self, request_id: str) -> Request | None:
        """A request as it stands."""
        return self._requests.one(request_id)

    def step_of(self, activity_id: str) -> Step | None:
        """The step whose activity has this id."""
        return self._steps.by_activity(activity_id)

    async def read(self, event: HistoryEvent) -> Step | None:
        """Take the next event. Returns the step that it begins or changes, as it is now."""
        self._events += 1
        self._bytes += event.ByteSize()
        field = event.WhichOneof("attributes")
        if field is None:
            return None
        attributes = getattr(event, field)
        if event.event_type in ENDS:
            return await self._step_ended(event)
        if field in _CLOSED:
            await self._closed(_CLOSED[field], event, attributes)
        elif field in _CHILD_ENDS:
            await self._child_ended(_CHILD_ENDS[field], event, attributes)
        else:
            handler = getattr(self, f"_on_{field.removesuffix('_event_attributes')}", None)
            return await handler(event, attributes) if handler else None
        return None

    async def pending(self, activities: Iterable[PendingActivityInfo]) -> None:
        """Add what the server says of the steps in flight."""
        for activity in activities:
            await self._steps.pending(activity)

    def journal(self) -> Journal:
        """What was read so far."""
        now = datetime.now(UTC)
        until = self._head.get("ended_at") or now
        requests = tuple(self._requests.all(until))
        parts = (self._steps.list, requests, tuple(self._stuck.values()), tuple(self._sub_runs.values()))
        return Journal(
            **{"status": self._status(requests), **self._head},
            budget=self._budget(requests),
            read_at=now,
            history_events=self._events,
            history_bytes=self._bytes,
            totals=totals(*parts, since=self._head["started_at"], until=until),
            steps=tuple(self._steps.list),
            requests=requests,
            retries=tuple(self._retries),
            stuck=parts[2],
            sub_runs=parts[3],
            stray=tuple(self._requests.stray),
        )

    # The run itself.

    async def _on_workflow_execution_started(self, event: HistoryEvent, attributes: Any) -> None:
        given = await self._decoder.first(attributes.input)
        agent = text_in(given, "agent") if attributes.workflow_type.name == names.AGENT_WORKFLOW else ""
        parent = given.get("parent") if isinstance(given, dict) else None
        fork = given.get("fork") if isinstance(given, dict) else None
        self._rulings = _objects_in(fork, "rulings")
        if agent and isinstance(given, dict):
            self._first_budget = made(Budget, given.get("budget"))
        carried = given.get("carried") if isinstance(given, dict) else None
        self._stuck_before = number_in(carried, "stuck")
        self._steps.root = (*texts_in(parent, "agent_path"), agent) if agent else ()
        self._head |= {
            "workflow_id": attributes.workflow_id,
            "run_id": self._head["run_id"] or attributes.original_execution_run_id,
            "workflow_type": attributes.workflow_type.name,
            "agent": agent,
            "agent_path": self._steps.root,
            "summary": cut(await self._decoder.text(event.user_metadata.summary), 300),
            "requested_by": shown(text_in(given, "requested_by")),
            "parent_id": text_in(parent, "workflow_id") or attributes.parent_workflow_execution.workflow_id,
            "started_at": moment(event.event_time),
            "first_run_id": attributes.first_execution_run_id,
            "continued_from": attributes.continued_execution_run_id,
            "forked_from": text_in(fork, "workflow_id"),
            "bytes_in": size(attributes.input),
            "readable": given is not UNREADABLE,
        }

    async def _on_workflow_execution_cancel_requested(self, event: HistoryEvent, attributes: Any) -> None:
        self._head.setdefault("cancel_requested_at", moment(event.event_time))

    async def _on_workflow_task_started(self, event: HistoryEvent, attributes: Any) -> None:
        self._requests.began(self._task + 1, moment(event.event_time))

    async def _on_workflow_task_completed(self, event: HistoryEvent, attributes: Any) -> None:
        self._task += 1
        reached, self._reached = self._reached, []
        for request_id, at in reached:
            if "cancel_requested_at" not in self._head:  # Otherwise it was withdrawn.
                self._requests.reached(request_id, at, self._task)

    async def _on_upsert_workflow_search_attributes(self, event: HistoryEvent, attributes: Any) -> None:
        fields = attributes.search_attributes.indexed_fields
        if names.ATTRIBUTE_STATUS in fields:
            # Search attributes are never encoded: the server reads them.
            self._said = await self._plain.text(fields[names.ATTRIBUTE_STATUS])

    async def _closed(self, status: str, event: HistoryEvent, attributes: Any) -> None:
        at = moment(event.event_time)
        self._steps.close(at)
        self._requests.close(at)
        for started, stuck in self._stuck.items():
            if stuck.until is None:
                self._stuck[started] = stuck.model_copy(update={"until": at, "outcome": "ended"})
        self._head |= {"status": status, "ended_at": at, **await self._end(status, attributes)}

    async def _end(self, status: str, attributes: Any) -> dict[str, Any]:
        if status == "completed":
            output = await self._decoder.first(attributes.result)
            used = usage_in(output.get("usage")) if isinstance(output, dict) and self._head["agent"] else None
            return {"usage": used, "bytes_out": size(attributes.result)} | (
                {"readable": False} if output is UNREADABLE else {}
            )
        if status == "failed":
            kind, message = await self._decoder.failure(attributes.failure)
            return {"error": error_text(kind, message), "error_type": kind or None}
        if status == "terminated":
            return {"error": cut(masked_text(attributes.reason)) or None}
        return {"continued_as": attributes.new_execution_run_id} if status in ("continued", "timed_out") else {}

    # Its steps.

    async def _on_activity_task_scheduled(self, event: HistoryEvent, attributes: Any) -> Step | None:
        step, given = await self._steps.scheduled(event)
        if step.kind == "description":
            label = step.summary.removeprefix("ask about ").removesuffix(_REUSED)
            return self._asked(
                self._steps.change(step, request_id=self._requests.ask(step, given, label)), attributes, given
            )
        if step.kind == "judge":
            label = step.summary.removeprefix("judge ").removesuffix(_REUSED)
            return self._steps.change(step, request_id=self._requests.judge(step, label))
        if step.request_id:
            self._requests.executed(step, given.get("tool_args"), self._task)
        return step

    def _asked(self, step: Step | None, attributes: Any, question: Any) -> Step | None:
        arguments = question.get("arguments") if isinstance(question, dict) else None
        here = (step_in(attributes.header)[0], digest(arguments))
        for ruling in self._rulings:
            if step and (text_in(ruling, "place"), text_in(ruling, "arguments_digest")) == here:
                self._rulings.remove(ruling)
                self._requests.take_over(step, ruling, step.scheduled_at)
                break
        return step

    async def _on_activity_task_started(self, event: HistoryEvent, attributes: Any) -> Step | None:
        return await self._steps.started(event)

    async def _step_ended(self, event: HistoryEvent) -> Step | None:
        step, result = await self._steps.ended(event)
        if step is not None and step.kind == "description":
            self._requests.described(step, result, self._task + 1)
        elif step is not None and step.kind == "judge":
            self._requests.judged(step, result, self._task + 1)
        return step

    # What people say to it.

    async def _on_workflow_execution_signaled(self, event: HistoryEvent, attributes: Any) -> None:
        await self._message(event, attributes.signal_name, attributes.input, "signal", self._task + 1)

    async def _on_workflow_execution_update_accepted(self, event: HistoryEvent, attributes: Any) -> None:
        asked = attributes.accepted_request.input
        await self._message(event, asked.name, asked.args, "update", self._task)

    async def _on_workflow_execution_update_completed(self, event: HistoryEvent, attributes: Any) -> None:
        accepted = attributes.accepted_event_id
        failed = attributes.outcome.HasField("failure")
        self._requests.confirm(accepted, None if failed else await self._decoder.first(attributes.outcome.success))
        if failed and accepted in self._retries_by_event:
            index = self._retries_by_event[accepted]
            _, why = await self._decoder.failure(attributes.outcome.failure)
            self._retries[index] = self._retries[index].model_copy(update={"refused": why})

    async def _message(self, event: HistoryEvent, name: str, args: Payloads, via: Via, task: int) -> None:
        at = moment(event.event_time)
        if name in (names.DECIDE_APPROVAL, names.SUBMIT_DECISION):
            said = await self._decoder.first(args)
            self._requests.decide(said, at=at, via=via, task=task, event_id=event.event_id)
        elif name in (names.COMPLETE_TOOL_CALL, names.SUBMIT_TOOL_RESULT):
            said = await self._decoder.first(args)
            self._requests.complete(said, at=at, via=via, task=task, event_id=event.event_id)
        elif name in (names.RETRY_RUN, names.SUBMIT_RETRY):
            self._retries_by_event[event.event_id] = len(self._retries)
            self._retries.append(_retry(await self._decoder.first(args), at, via))
            self._retried.add((self._retries[-1].step, task))
            self._keep_retried()
        elif name == names.REPORT_SUB_RUN:
            self._report(await self._decoder.first(args), at, event)
        elif name == names.CLAIM_BUDGET and (claim := made(Claim, await self._decoder.first(args))):
            self._extensions |= {(one.run_id, one.request_id): one for one in claim.extensions}

    # What it waits for when a step has failed for good.

    async def _on_timer_started(self, event: HistoryEvent, attributes: Any) -> None:
        summary = await self._decoder.text(event.user_metadata.summary)
        if request_id := request_of_timer(summary):
            self._limits[event.event_id] = request_id
        if summary.startswith(_STUCK) and self._head["agent"]:
            label = cut(summary.removeprefix(_STUCK), 300)
            self._stuck[event.event_id] = Stuck(label=label, since=moment(event.event_time))

    async def _on_timer_fired(self, event: HistoryEvent, attributes: Any) -> None:
        if request_id := self._limits.get(attributes.started_event_id):
            self._reached.append((request_id, moment(event.event_time)))
        self._over[attributes.started_event_id] = self._task + 1
        self._unstick(attributes.started_event_id, event, "given_up")
        self._keep_retried()

    async def _on_timer_canceled(self, event: HistoryEvent, attributes: Any) -> None:
        self._unstick(attributes.started_event_id, event, "retried")

    def _unstick(self, started: int, event: HistoryEvent, outcome: str) -> None:
        if started in self._stuck:
            change = {"until": moment(event.event_time), "outcome": outcome}
            self._stuck[started] = self._stuck[started].model_copy(update=change)

    def _keep_retried(self) -> None:
        """Of a step whose time is over in the task that has it retried, the retry counts."""
        for number, started in enumerate(self._stuck, self._stuck_before + 1):
            task = self._over.get(started, 0)
            if self._retried & {("", task), (str(number), task)}:
                self._stuck[started] = self._stuck[started].model_copy(update={"outcome": "retried"})

    # The runs below it.

    def _report(self, report: Any, at: datetime, event: HistoryEvent) -> None:
        workflow_id = text_in(report, "workflow_id")
        if not workflow_id.startswith(f"{self._head['workflow_id']}/"):
            return  # A stranger's: the run took no notice of it either.
        run_id = event.workflow_execution_signaled_event_attributes.external_workflow_execution.run_id
        known = self._sub_runs.get(f"{workflow_id} {run_id}")
        if known is None:
            step = self._starter(workflow_id)
            known = SubRunLink(
                workflow_id=workflow_id,
                run_id=run_id,
                workflow_type=names.AGENT_WORKFLOW,
                agent=cut(text_in(report, "agent"), 200),
                position=step.position if step else None,
                started_at=at,
            )
            if step and workflow_id not in step.sub_runs:
                self._steps.change(step, sub_runs=(*step.sub_runs, workflow_id))
        if known.usage is None and (used := usage_in(report.get("usage"))):
            known = known.model_copy(update={"usage": used, "ended_at": at, "status": "ended"})
        self._sub_runs[f"{workflow_id} {run_id}"] = known  # A call that runs again may have started its run over.

    def _starter(self, workflow_id: str) -> Step | None:
        # The id ends with the key of the call that started the run (formerly: the id of the call's activity), and with
        # which of the call's runs this one is.
        parts = workflow_id.rsplit("-", 2)
        return (self._steps.by_activity(parts[1]) or self._steps.by_key(parts[1])) if len(parts) == 3 else None

    async def _on_start_child_workflow_execution_initiated(self, event: HistoryEvent, attributes: Any) -> None:
        self._sub_runs[f"event {event.event_id}"] = SubRunLink(
            workflow_id=attributes.workflow_id,
            workflow_type=attributes.workflow_type.name,
            started_at=moment(event.event_time),
        )

    async def _on_child_workflow_execution_started(self, event: HistoryEvent, attributes: Any) -> None:
        self._change_child(attributes, run_id=attributes.workflow_execution.run_id)

    async def _child_ended(self, status: str, event: HistoryEvent, attributes: Any) -> None:
        error = None
        if status == "failed":
            kind, message = await self._decoder.failure(attributes.failure)
            error = error_text(kind, message)
        self._change_child(attributes, status=status, ended_at=moment(event.event_time), error=error)

    def _change_child(self, attributes: Any, **change: Any) -> None:
        key = f"event {attributes.initiated_event_id}"
        if key in self._sub_runs:
            self._sub_runs[key] = self._sub_runs[key].model_copy(update=change)

    def _budget(self, requests: Iterable[Request]) -> Budget | None:
        """The budget with all that it was extended by."""
        budget = self._first_budget
        own = [
            {**(one.answer.arguments or one.proposed or {}), "run_id": "", "request_id": one.request_id}
            for one in requests
            if one.kind == "budget" and one.outcome == "approved" and one.answer
        ]
        for extension in (*(made(Extension, one) for one in own), *self._extensions.values()):
            budget = extended(budget, extension) if budget and extension else budget
        return budget

    def _status(self, requests: Iterable[Request]) -> str:
        if not self._head["agent"]:
            return "running"
        open_kinds = {request.kind for request in requests if request.outcome == "open"}
        if self._said == "stuck" or any(stuck.until is None for stuck in self._stuck.values()):
            return "stuck"
        if open_kinds - {"tool_result"}:
            return "awaiting_approval"
        return "awaiting_tool_result" if open_kinds else "running"


def _objects_in(value: Any, name: str) -> list[dict[str, Any]]:
    found = value.get(name) if isinstance(value, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _retry(message: Any, at: datetime, via: Via) -> Retry:
    return Retry(
        step=shown(text_in(message, "step")),
        by=shown(text_in(message, "requested_by")),
        at=at,
        requested_at=time_in(message, "requested_at"),
        via=via,
        reason=shown(text_in(message, "reason")),
        usage_limits=shown_object(message.get("usage_limits")) if isinstance(message, dict) else None,
        refused="" if isinstance(message, dict) else "it could not be read",
    )
