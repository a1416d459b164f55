"""The steps of a run, read from its history: each model call, tool call and judge, and how it went."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import AwareDatetime
from temporalio.api.common.v1 import Payload as TemporalPayload
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import default

from interlock.contracts import names
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Payload

StepKind = Literal["model", "tool", "judge", "other"]
StepStatus = Literal["scheduled", "completed", "failed", "timed_out", "cancelled"]


class Step(Payload):
    """One activity of a run.

    position: from 1, in the order in which the steps were scheduled. name: of the model, the tool or the activity.
    summary: the line that the Temporal UI shows. attempts: 0 until the step ends or starts for the last time.
    """

    position: int
    kind: StepKind
    agent: str
    name: str
    summary: str
    status: StepStatus = "scheduled"
    attempts: int = 0
    scheduled_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    error: str | None = None


_ENDS: dict[int, tuple[str, StepStatus]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("activity_task_completed_event_attributes", "completed"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("activity_task_failed_event_attributes", "failed"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("activity_task_timed_out_event_attributes", "timed_out"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("activity_task_canceled_event_attributes", "cancelled"),
}
_KINDS: tuple[tuple[str, StepKind], ...] = (
    ("__model_request", "model"),
    ("__model_request_stream", "model"),
    ("__call_tool", "tool"),
    ("__judge_call", "judge"),
)


class StepReader:
    """Turns the events of one history, in order, into steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._by_event: dict[int, int] = {}

    def read(self, event: HistoryEvent) -> Step | None:
        """The step that the event begins or changes, as it is now; None for events of other kinds."""
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            if event.activity_task_scheduled_event_attributes.activity_type.name == names.DESCRIBE_TOOL:
                return None  # How the gate prepares its question is no step of the agent.
            self._by_event[event.event_id] = len(self.steps)
            self.steps.append(_scheduled(event, len(self.steps) + 1))
            return self.steps[-1]
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
            started = event.activity_task_started_event_attributes
            return self._changed(started.scheduled_event_id, {"attempts": started.attempt})
        if end := _ENDS.get(event.event_type):
            attributes = getattr(event, end[0])
            failure = getattr(attributes, "failure", None)
            error = _innermost(failure) if failure else _told_as_failure(attributes)
            status: StepStatus = "failed" if error and end[1] == "completed" else end[1]
            return self._changed(
                attributes.scheduled_event_id, {"status": status, "ended_at": _time(event), "error": error}
            )
        return None

    def _changed(self, scheduled_event_id: int, change: Mapping[str, object]) -> Step | None:
        index = self._by_event.get(scheduled_event_id)
        if index is None:
            return None
        self.steps[index] = self.steps[index].model_copy(update=change)
        return self.steps[index]


async def read_steps(events: AsyncIterator[HistoryEvent]) -> list[Step]:
    """All steps of a history."""
    reader = StepReader()
    async for event in events:
        reader.read(event)
    return reader.steps


def steps_of(events: Iterable[HistoryEvent]) -> list[Step]:
    """All steps of a history that is at hand."""
    reader = StepReader()
    for event in events:
        reader.read(event)
    return reader.steps


def _scheduled(event: HistoryEvent, position: int) -> Step:
    activity_type = event.activity_task_scheduled_event_attributes.activity_type.name
    kind: StepKind = next((kind for suffix, kind in _KINDS if activity_type.endswith(suffix)), "other")
    summary = _text(event.user_metadata.summary) or activity_type
    agent = activity_type.removeprefix("agent__").partition("__")[0] if activity_type.startswith("agent__") else ""
    name = {
        "model": summary.removeprefix("model ").rpartition(", turn ")[0],
        "tool": summary.partition(":")[0],
        "judge": summary.removeprefix("judge ").partition(":")[0],
    }.get(kind, activity_type)
    return Step(position=position, kind=kind, agent=agent, name=name, summary=summary, scheduled_at=_time(event))


def _innermost(failure: Failure) -> str:
    while failure.HasField("cause"):
        failure = failure.cause
    kind = failure.application_failure_info.type if failure.HasField("application_failure_info") else ""
    message = masked_text(failure.message)
    return f"{kind}: {message}" if kind else message


# A tool that fails in a way the model is told about ends its activity well; its result says what it is.
_FAILURE_KINDS = {
    "model_retry": "ModelRetry",
    "tool_failed": "ToolFailed",
    "validation_error": "ValidationError",
    "run_cancelled": "RunCancelled",
}


def _told_as_failure(attributes: object) -> str | None:
    payloads = getattr(getattr(attributes, "result", None), "payloads", ())
    if not payloads or len(payloads[0].data) > 100_000:
        return None
    try:
        result = json.loads(payloads[0].data)
    except ValueError:
        return None
    kind = _FAILURE_KINDS.get(result.get("kind", "")) if isinstance(result, dict) else None
    message = masked_text(str(result.get("message") or result.get("title", ""))) if kind else ""
    return f"{kind}: {message}" if kind else None


def _text(payload: TemporalPayload) -> str:
    if not payload.data:
        return ""
    value = default().payload_converter.from_payload(payload, str)
    return str(value)


def _time(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(tzinfo=UTC)
