"""The activities of a history as steps."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import Header
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo

from interlock._rpc import header_text
from interlock.contracts import names
from interlock.contracts.masking import masked_text
from interlock.contracts.places import MODEL_SUFFIXES, step_parts
from interlock.journal._payloads import (
    UNREADABLE,
    Decoder,
    cut,
    model_usage_in,
    moment,
    shown,
    shown_object,
    size,
    text_in,
    texts_in,
    usage_in,
)
from interlock.journal.model import Step, StepKind, StepStatus

RETURNED = "returned"
ENDS: Mapping[int, tuple[str, StepStatus]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: ("activity_task_completed_event_attributes", "completed"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: ("activity_task_failed_event_attributes", "failed"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: ("activity_task_timed_out_event_attributes", "timed_out"),
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: ("activity_task_canceled_event_attributes", "cancelled"),
}
_OWN_KINDS: Mapping[str, StepKind] = {names.DESCRIBE_TOOL: "description", names.RECORD_VERDICT: "predicate"}
_KINDS: tuple[tuple[str, StepKind], ...] = (
    *((suffix, "model") for suffix in MODEL_SUFFIXES),
    ("__call_tool", "tool"),
    (names.JUDGE_SUFFIX, "judge"),
    ("__predicate", "predicate"),
    ("__guardrail", "guardrail"),
    ("__hook", "hook"),
    ("__handoff", "handoff"),
    ("__instructions", "instructions"),
)
# A tool that fails in a way the model is told about ends its activity well; its result says what it is.
_TOLD_FAILURES = {
    "model_retry": "ModelRetry",
    "tool_failed": "ToolFailed",
    "validation_error": "ValidationError",
    "run_cancelled": "RunCancelled",
}
_SDK_CALLS = ("function_call", "mcp_call", "mcp_approval_request")
_CALLBACKS = ("guardrail", "hook", "handoff", "instructions")
_SAY_WHAT_THEY_USED = ("judge", "predicate", *_CALLBACKS)  # When they failed, too.
_KEY_START = 16  # How much of its call's key is in the id of a run that a tool started.
_TIMEOUT = {"timed_out": "TimeoutError"}
_TOOL_OUTCOMES = {
    "tool_return": RETURNED,
    "tool_content_result": RETURNED,
    "approval_required": "asks for approval",
    "call_deferred": "waits for its result",
}


class Steps:
    """Collects the steps of one history in its order. root: the agents from the root to the run's own."""

    def __init__(self, decoder: Decoder) -> None:
        self.list: list[Step] = []
        self.root: tuple[str, ...] = ()
        self._decoder = decoder
        self._by_event: dict[int, int] = {}
        self._by_activity: dict[str, int] = {}
        self._paths: dict[str, tuple[str, ...]] = {}

    async def scheduled(self, event: HistoryEvent) -> tuple[Step, Any]:
        """A new step, and what its activity was given."""
        attributes = event.activity_task_scheduled_event_attributes
        reused = attributes.activity_type.name == names.RECALL_STEP
        activity_type = step_in(attributes.header)[1] if reused else attributes.activity_type.name
        given = await self._decoder.first(attributes.input)
        if reused and isinstance(given, dict):
            given = given.get("given")
        summary = await self._decoder.text(event.user_metadata.summary)
        kind = _kind(activity_type)
        context = given.get("serialized_run_context") if isinstance(given, dict) else None
        path = self._path(activity_type, given, context)
        step = Step(
            position=len(self.list) + 1,
            kind=kind,
            agent=path[-1] if path else "",
            agent_path=path,
            name=_name(kind, activity_type, given, summary),
            summary=cut(summary or activity_type, 300),
            scheduled_at=moment(event.event_time),
            bytes_in=size(attributes.input),
            arguments=shown_object(_arguments(kind, given)),
            request_id=text_in(context.get("interlock_ticket"), "request_id") if isinstance(context, dict) else "",
            call_id=text_in(given, "call_id") or text_in(context, "tool_call_id"),
            key=text_in(context, "interlock_key"),
            activity_type=activity_type,
            activity_id=attributes.activity_id,
            event_id=event.event_id,
            reused=reused,
            readable=given is not UNREADABLE,
        )
        self._by_event[event.event_id] = self._by_activity[attributes.activity_id] = len(self.list)
        self.list.append(step)
        return step, given

    async def started(self, event: HistoryEvent) -> Step | None:
        """The step whose last attempt began."""
        attributes = event.activity_task_started_event_attributes
        return self.change(
            self.by_event(attributes.scheduled_event_id),
            attempts=attributes.attempt,
            started_at=moment(event.event_time),
            worker=attributes.identity,
            last_error=await self._error(attributes.last_failure) if attributes.HasField("last_failure") else None,
        )

    async def ended(self, event: HistoryEvent) -> tuple[Step | None, Any]:
        """The step that ended, and what came back."""
        field, status = ENDS[event.event_type]
        attributes = getattr(event, field)
        step = self.by_event(attributes.scheduled_event_id)
        if step is None:
            return None, None
        at = moment(event.event_time)
        change: dict[str, Any] = {"status": status, "ended_at": at, "seconds": _seconds(step.scheduled_at, at)}
        result = None
        if status == "completed":
            result = await self._decoder.first(attributes.result)
            change |= {"bytes_out": size(attributes.result)} | _came_back(step, result)
        elif status != "cancelled":
            kind, message = await self._decoder.failure(attributes.failure)
            if step.kind in _SAY_WHAT_THEY_USED:
                used = await self._decoder.first(attributes.failure.application_failure_info.details)
                change |= {"usage": usage_in(used)}
            change |= {"error": error_text(kind, message), "error_type": kind or _TIMEOUT.get(status)}
        return self.change(step, **change), result

    async def pending(self, info: PendingActivityInfo) -> None:
        """What the server knows of a step in flight: its history tells of an attempt only once that has ended."""
        index = self._by_activity.get(info.activity_id)
        step = None if index is None else self.list[index]
        if step is None or step.ended_at is not None:
            return
        began = info.state == PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
        self.change(
            step,
            attempts=info.attempt if began else info.attempt - 1,
            started_at=moment(info.last_started_time) if began else None,
            worker=info.last_worker_identity,
            last_error=await self._error(info.last_failure) if info.HasField("last_failure") else None,
        )

    def close(self, at: datetime) -> None:
        """The run has ended: nobody waits any more for what is in flight."""
        for step in self.list:
            if step.ended_at is None:
                self.change(step, status="abandoned", ended_at=at, seconds=_seconds(step.scheduled_at, at))

    def change(self, step: Step | None, **change: Any) -> Step | None:
        """Change a step, and return it as it is now."""
        if step is None:
            return None
        self.list[step.position - 1] = step.model_copy(update=change)
        return self.list[step.position - 1]

    def by_event(self, event_id: int) -> Step | None:
        """The step that was scheduled at an event."""
        index = self._by_event.get(event_id)
        return None if index is None else self.list[index]

    def by_activity(self, activity_id: str) -> Step | None:
        """The step whose activity has this id."""
        index = self._by_activity.get(activity_id)
        return None if index is None else self.list[index]

    def by_key(self, start: str) -> Step | None:
        """The last step of the call whose idempotency key begins so."""
        return next((step for step in reversed(self.list) if step.key and step.key[:_KEY_START] == start), None)

    async def _error(self, failure: Failure) -> str:
        return error_text(*await self._decoder.failure(failure))

    def _path(self, activity_type: str, given: Any, context: Any) -> tuple[str, ...]:
        path = texts_in(context, "interlock_path") or texts_in(given, "agent_path")
        if path:
            self._paths[path[-1]] = path
            return path
        of = activity_type.removeprefix("agent__").partition("__")[0] if activity_type.startswith("agent__") else ""
        of = of or (text_in(given, "agent") if activity_type == names.DESCRIBE_TOOL else "")
        if not of:
            return self.root if activity_type in _OWN_KINDS else ()
        beyond = (of,) if self.root[-1:] != (of,) else ()
        return self._paths.get(of, (*self.root, *beyond))


def step_in(header: Header) -> tuple[str, str]:
    """The place of a step among the run's tool calls, and the activity that it is; empty in an older history."""
    try:
        return step_parts(header_text(header.fields[names.HEADER_STEP]))
    except Exception:  # Bytes that are no text.
        return "", ""


def _kind(activity_type: str) -> StepKind:
    if activity_type in _OWN_KINDS:
        return _OWN_KINDS[activity_type]
    if not activity_type.startswith("agent__"):
        return "other"
    return next((kind for suffix, kind in _KINDS if activity_type.endswith(suffix)), "other")


def _name(kind: StepKind, activity_type: str, given: Any, summary: str) -> str:
    found = {
        "model": summary.removeprefix("model ").rpartition(", turn ")[0],
        "tool": text_in(given, "name") or summary.partition(":")[0],
        "judge": text_in(given, "tool") or summary.removeprefix("judge ").partition(":")[0],
        "description": text_in(given, "tool"),
        "predicate": summary.removeprefix("predicate ").partition(" needs ")[0],
        **{one: summary.removeprefix(f"{one} ") for one in _CALLBACKS},
    }.get(kind, "")
    return cut(found or activity_type, 200)


def _arguments(kind: StepKind, given: Any) -> Any:
    name = {"tool": "tool_args", "judge": "arguments"}.get(kind)
    return given.get(name) if name and isinstance(given, dict) else None


def _came_back(step: Step, result: Any) -> dict[str, Any]:
    """What the result of a completed activity says, by what kind of step it is."""
    if result is UNREADABLE:
        return {"readable": False}
    if step.kind == "model":
        return {
            "usage": model_usage_in(result),
            "outcome": _model_outcome(result),
            "name": step.name or text_in(result, "model_name"),
        }
    if step.kind == "tool":
        return _tool_result(result)
    if step.kind == "judge" and isinstance(result, dict):
        return {"usage": usage_in(result.get("usage")), "outcome": cut(text_in(result, "verdict"), 50)}
    said = result if isinstance(result, dict) else {}
    used = {"usage": usage_in(said.get("usage") or said.get("usage_delta"))}
    if step.kind == "predicate":
        return {**used, "outcome": _predicate_outcome(step, result)}
    if step.kind == "guardrail":
        return {**used, "outcome": _guardrail_outcome(said.get("value"))}
    return used


def _predicate_outcome(step: Step, result: Any) -> str:
    word = result.get("value") if isinstance(result, dict) else result
    if step.summary.endswith((" enabled?", " approved?")):
        return "yes" if word else "no"
    return "needs approval" if word is True else "needs no approval"


def _guardrail_outcome(said: Any) -> str:
    """What a guardrail said: it stops a run, or replaces what a call gets or gives."""
    behavior = said.get("behavior") if isinstance(said, dict) else None
    if (isinstance(said, dict) and said.get("tripwire_triggered") is True) or text_in(
        behavior, "type"
    ) == "raise_exception":
        return "stops the run"
    return "replaces the call" if text_in(behavior, "type") == "reject_content" else "lets it pass"


def _model_outcome(result: Any) -> str:
    found = (result.get("parts") or result.get("output")) if isinstance(result, dict) else None
    parts = found if isinstance(found, list) else []
    calls = [shown(text_in(part, "tool_name")) for part in parts if text_in(part, "part_kind") == "tool-call"]
    calls += [shown(text_in(part, "name")) for part in parts if text_in(part, "type") in _SDK_CALLS]
    if not calls:
        return "answers"
    named = [f"{name} ×{count}" if count > 1 else name for name, count in Counter(calls).items()]  # noqa: RUF001
    return cut(f"calls {', '.join(named)}", 200)


def _tool_result(result: Any) -> dict[str, Any]:
    word = text_in(result, "kind")
    if word not in _TOLD_FAILURES:
        return {"outcome": _TOOL_OUTCOMES.get(word, RETURNED)}
    kind = _TOLD_FAILURES[word]
    message = cut(masked_text(text_in(result, "message") or text_in(result, "title")))
    return {"status": "failed", "error": f"{kind}: {message}", "error_type": kind}


def error_text(kind: str, message: str) -> str:
    """`Type: message`, or the message of what has no type."""
    return f"{kind}: {message}" if kind else message


def _seconds(since: datetime, until: datetime) -> float:
    return (until - since).total_seconds()
