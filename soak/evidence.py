"""What is known of runs from outside: their histories, the ledger, and what was asked and answered."""

import json
import time
from collections import defaultdict
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
from soak.script import Adapter
from soak.steps import Steps

ActivityStatus = Literal["open", "completed", "failed", "timed_out", "cancelled"]


@dataclass(frozen=True)
class Activity:
    """One activity of a history. run: the execution. attempt, pid: of the attempt that was started last, and of its
    worker's process."""

    step: str
    run: str
    activity: str
    status: ActivityStatus = "open"
    attempt: int = 0
    pid: int = 0


@dataclass(frozen=True)
class RunRecord:
    """One run and its history, over all its executions.

    executions: how many; a run goes on in another one when its history has become long. answers: the ids of the
    requests whose answers were accepted, one for each time. failed_tasks: why workflow tasks failed. requests: model
    calls by the run's own count, those of its sub-agents included. began, ended: seconds of the monotonic clock.
    """

    workflow: str
    agent: str
    status: str
    executions: int = 1
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
    adapter: Adapter = "pydantic-ai"


async def read_runs(client: Client) -> list[RunRecord]:
    """Every run on the client's task queue."""
    query = f"TaskQueue = '{client.task_queue}' AND WorkflowType = '{names.AGENT_WORKFLOW}'"
    executions: dict[str, list[WorkflowExecution]] = defaultdict(list)
    async for execution in client.temporal.list_workflows(query):
        executions[execution.id].append(execution)
    return [await _run(client, sorted(chain, key=lambda one: one.start_time)) for chain in executions.values()]


async def _run(client: Client, executions: Sequence[WorkflowExecution]) -> RunRecord:
    first, last = executions[0], executions[-1]
    histories = {one.run_id: await _events(client, one) for one in executions}
    output = _output(histories[last.run_id][-1])
    return RunRecord(
        workflow=last.id,
        agent=str(await first.memo_value(names.MEMO_AGENT)),
        status=last.status.name.lower() if last.status else "",
        executions=len(executions),
        output=str(output.get("output", "")),
        requests=output.get("usage", {}).get("requests", 0),
        activities=[one for run, events in histories.items() for one in _activities(run, events)],
        answers=[answer for events in histories.values() for answer in _answers(events)],
        failed_tasks=[
            event.workflow_task_failed_event_attributes.failure.message
            for events in histories.values()
            for event in events
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        ],
        began=_monotonic(first.start_time),
        ended=_monotonic(last.close_time) if last.close_time else float("inf"),
    )


async def _events(client: Client, execution: WorkflowExecution) -> list[HistoryEvent]:
    handle = client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
    return list((await handle.fetch_history()).events)


def _output(last: HistoryEvent) -> dict[str, Any]:
    if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        return {}
    output: dict[str, Any] = _json(last.workflow_execution_completed_event_attributes.result.payloads[0])
    return output


def _activities(run: str, events: Sequence[HistoryEvent]) -> Iterator[Activity]:
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
    steps = Steps()
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            attempt, pid = started.get(event.event_id, (0, 0))
            step = steps.name(scheduled.activity_type.name, _json(scheduled.input.payloads[0]), scheduled.header.fields)
            yield Activity(step, run, scheduled.activity_id, ended.get(event.event_id, "open"), attempt, pid)


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
