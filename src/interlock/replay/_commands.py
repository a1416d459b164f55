"""What workflow code asks of Temporal, as a history records it and as a build under replay wants it."""

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any, Literal

from temporalio.api.common.v1 import Payload as TemporalPayload
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.sdk.v1 import UserMetadata
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.converter import default
from temporalio.worker import WorkflowInstance, WorkflowInstanceDetails

from interlock._activations import GuardedRunner
from interlock.contracts import names
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Payload

CommandKind = Literal["activity", "timer", "child_workflow", "signal", "cancellation", "end"]


class Command(Payload):
    """One thing that a run asks Temporal for.

    name: of the activity, the child workflow or the signal; how the run ends; empty for a timer.
    summary: the line that people know it by. step: the position, in the run's journal, of an activity that is recorded.
    """

    kind: CommandKind
    name: str
    summary: str = ""
    step: int | None = None

    @property
    def label(self) -> str:
        """For people."""
        if self.kind == "end":
            return f"the run's end ({self.summary or self.name})"
        if self.kind != "activity":
            what = self.name or self.summary
            return f"a {self.kind.replace('_', ' ')}{f' ({what})' if what else ''}"
        if self.name == names.DESCRIBE_TOOL:
            return f"the question about {self.summary.removeprefix('ask about ')!r}"
        return repr(self.summary or self.name)

    def same(self, other: "Command") -> bool:
        """Whether Temporal takes one for the other; inputs and summaries do not count."""
        return (self.kind, self.name) == (other.kind, other.name)


Tasks = dict[int, list[Command]]
"""Commands by the workflow task that gave them, named by the event that started it."""

# By the fields of Temporal's messages: what a build wants, what a history has, and the kind of both. What a history has
# beside these follows from them, or comes from the SDK: search attributes, version markers, accepted updates.
_KINDS: tuple[tuple[str, str, CommandKind], ...] = (
    ("schedule_activity", "activity_task_scheduled_event_attributes", "activity"),
    ("start_timer", "timer_started_event_attributes", "timer"),
    (
        "start_child_workflow_execution",
        "start_child_workflow_execution_initiated_event_attributes",
        "child_workflow",
    ),
    (
        "signal_external_workflow_execution",
        "signal_external_workflow_execution_initiated_event_attributes",
        "signal",
    ),
    (
        "request_cancel_external_workflow_execution",
        "request_cancel_external_workflow_execution_initiated_event_attributes",
        "cancellation",
    ),
    ("complete_workflow_execution", "workflow_execution_completed_event_attributes", "end"),
    ("fail_workflow_execution", "workflow_execution_failed_event_attributes", "end"),
    ("cancel_workflow_execution", "workflow_execution_canceled_event_attributes", "end"),
    (
        "continue_as_new_workflow_execution",
        "workflow_execution_continued_as_new_event_attributes",
        "end",
    ),
)
_ENDS = {
    "complete_workflow_execution": "completed",
    "fail_workflow_execution": "failed",
    "cancel_workflow_execution": "cancelled",
    "continue_as_new_workflow_execution": "continued as new",
}


def recorded(events: Iterable[HistoryEvent]) -> Tasks:
    """The commands that a history records, of its completed workflow tasks."""
    started: dict[int, int] = {}
    tasks: Tasks = {}
    steps = count(1)
    for event in events:
        if event.HasField("workflow_task_completed_event_attributes"):
            started[event.event_id] = event.workflow_task_completed_event_attributes.started_event_id
            tasks[started[event.event_id]] = []
        for wanted, field, kind in _KINDS:
            if event.HasField(field):  # type: ignore[arg-type]
                attributes = getattr(event, field)
                command = _command(wanted, kind, attributes, event.user_metadata)
                if kind == "activity":
                    command = command.model_copy(update={"step": next(steps)})
                tasks[started[attributes.workflow_task_completed_event_id]].append(command)
    return tasks


class Recorder(GuardedRunner):
    """Runs workflow code and keeps what the last run wanted. tasks: as for `recorded`. failure: of the code itself."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: Tasks = {}
        self.failure = ""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        self.tasks, self.failure = {}, ""
        instance: Any = _Recorded(super().create_instance(det), self)
        return instance  # type: ignore[no-any-return]

    def keep(self, task: int, completion: WorkflowActivationCompletion) -> None:
        """Take what the code wants in a task."""
        if completion.HasField("failed"):
            self.failure = self.failure or _told(completion.failed.failure)
        commands = list(_wanted(completion.successful.commands))
        self.tasks.setdefault(task, []).extend(commands)


class _Recorded:
    """A workflow instance that is listened to."""

    def __init__(self, instance: WorkflowInstance, recorder: Recorder) -> None:
        self._instance = instance
        self._recorder = recorder

    def activate(self, act: Any) -> WorkflowActivationCompletion:
        completion = self._instance.activate(act)
        self._recorder.keep(act.history_length, completion)
        return completion

    def __getattr__(self, name: str) -> Any:
        return getattr(self._instance, name)


def _wanted(commands: Iterable[WorkflowCommand]) -> Iterator[Command]:
    for command in commands:
        for field, _, kind in _KINDS:
            if command.HasField(field):  # type: ignore[arg-type]
                yield _command(field, kind, getattr(command, field), command.user_metadata)


def _command(field: str, kind: CommandKind, attributes: Any, metadata: UserMetadata) -> Command:
    if kind == "end":
        return Command(kind=kind, name=_ENDS[field], summary=_how_it_ends(field, attributes))
    named = {"activity": "activity_type", "child_workflow": "workflow_type", "signal": "signal_name"}.get(kind)
    name = getattr(attributes, named) if named else ""
    # In a history the name of a type is in a message of its own.
    return Command(kind=kind, name=getattr(name, "name", name), summary=_text(metadata.summary))


def _how_it_ends(field: str, attributes: Any) -> str:
    return f"failed with {_told(attributes.failure)}" if field == "fail_workflow_execution" else ""


def _told(failure: Failure) -> str:
    kind = failure.application_failure_info.type
    return f"{kind}: {masked_text(failure.message)}" if kind else masked_text(failure.message)


def _text(payload: TemporalPayload) -> str:
    if not payload.data:
        return ""
    try:
        return str(default().payload_converter.from_payload(payload, str))
    except Exception:  # Somebody else's encoding; the name has to do.
        return ""
