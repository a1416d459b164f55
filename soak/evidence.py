"""What is known of runs from outside: their histories, the ledger, and what was asked and answered."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecution

from interlock import Client
from interlock.contracts import names
from soak.crew import Kill
from soak.ledger import Line
from soak.steps import step_of

ActivityStatus = Literal["open", "completed", "failed", "timed_out", "cancelled"]


@dataclass(frozen=True)
class Activity:
    """One activity of a history. attempt, pid: of the attempt that was started last, and its worker's process."""

    step: str
    activity: str
    status: ActivityStatus = "open"
    attempt: int = 0
    pid: int = 0


@dataclass(frozen=True)
class RunRecord:
    """One run and its history.

    answers: the ids of the requests whose answers were accepted, one for each time. failed_tasks: why workflow tasks
    failed. requests: model calls by the run's own count, those of its sub-agents included. began, ended: seconds of
    the monotonic clock.
    """

    workflow: str
    agent: str
    status: str
    output: str = ""
    requests: int = 0
    activities: Sequence[Activity] = ()
    answers: Sequence[str] = ()
    failed_tasks: Sequence[str] = ()
    began: float = 0
    ended: float = 0


@dataclass(frozen=True)
class Question:
    """A request that the operator saw. said: the verdict."""

    workflow: str
    request_id: str
    kind: str
    step: str
    said: str
    at: float = 0


@dataclass(frozen=True)
class Outage:
    """A time without a server, seconds of the monotonic clock."""

    began: float
    ended: float


@dataclass(frozen=True)
class Evidence:
    """All that is known of the runs of one task queue."""

    lines: Sequence[Line]
    runs: Sequence[RunRecord]
    questions: Sequence[Question] = ()
    kills: Sequence[Kill] = ()
    outages: Sequence[Outage] = ()


async def read_runs(client: Client) -> list[RunRecord]:
    """Every run on the client's task queue."""
    query = f"TaskQueue = '{client.task_queue}' AND WorkflowType = '{names.AGENT_WORKFLOW}'"
    return [await _run(client, execution) async for execution in client.temporal.list_workflows(query)]


async def _run(client: Client, execution: WorkflowExecution) -> RunRecord:
    events = list((await client.temporal.get_workflow_handle(execution.id).fetch_history()).events)
    output = _output(events[-1])
    return RunRecord(
        workflow=execution.id,
        agent=str(await execution.memo_value(names.MEMO_AGENT)),
        status=execution.status.name.lower() if execution.status else "",
        output=str(output.get("output", "")),
        requests=output.get("usage", {}).get("requests", 0),
        activities=list(_activities(events)),
        answers=list(_answers(events)),
        failed_tasks=[
            event.workflow_task_failed_event_attributes.failure.message
            for event in events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        ],
        began=_monotonic(execution.start_time),
        ended=_monotonic(execution.close_time) if execution.close_time else float("inf"),
    )


def _output(last: HistoryEvent) -> dict[str, Any]:
    if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        return {}
    output: dict[str, Any] = _json(last.workflow_execution_completed_event_attributes.result.payloads[0])
    return output


def _activities(events: Sequence[HistoryEvent]) -> Iterator[Activity]:
    started: dict[int, tuple[int, int]] = {}
    ended: dict[int, ActivityStatus] = {}
    ends: dict[int, tuple[str, ActivityStatus]] = {
        EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("activity_task_completed_event_attributes", "completed"),
        EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("activity_task_failed_event_attributes", "failed"),
        EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("activity_task_timed_out_event_attributes", "timed_out"),
        EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("activity_task_canceled_event_attributes", "cancelled"),
    }
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            start = event.activity_task_started_event_attributes
            started[start.scheduled_event_id] = (start.attempt, int(start.identity.partition("@")[0]))
        elif end := ends.get(event.event_type):
            ended[getattr(event, end[0]).scheduled_event_id] = end[1]
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            attempt, pid = started.get(event.event_id, (0, 0))
            step = step_of(scheduled.activity_type.name, _json(scheduled.input.payloads[0]))
            yield Activity(step, scheduled.activity_id, ended.get(event.event_id, "open"), attempt, pid)


def _answers(events: Sequence[HistoryEvent]) -> Iterator[str]:
    asked: dict[int, str] = {}
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
            request = event.workflow_execution_update_accepted_event_attributes.accepted_request
            asked[event.event_id] = _json(request.input.args.payloads[0])["request_id"]
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED:
            completed = event.workflow_execution_update_completed_event_attributes
            if completed.outcome.HasField("success"):
                yield asked[completed.accepted_event_id]


def _json(payload: Any) -> Any:
    return json.loads(payload.data)


def _monotonic(at: datetime) -> float:
    return at.timestamp() - (time.time() - time.monotonic())
