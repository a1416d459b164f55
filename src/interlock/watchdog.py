"""The watchdog: finds the open runs that do not get on, and says for each why, and what to do."""

import asyncio
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import AwareDatetime
from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType, PendingActivityState, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import own_failure
from interlock._versions import Workers, pin_of, workers_of
from interlock.contracts import names
from interlock.contracts.errors import RefusedError, UnavailableError
from interlock.contracts.failures import bounded
from interlock.contracts.limits import limit_words
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import ApprovalRequest, Payload, RunState, StuckStep

if TYPE_CHECKING:
    from interlock.client import Client

FindingKind = Literal[
    "task_failing",
    "no_worker",
    "no_answer",
    "step_failing",
    "step_not_taken",
    "step_paused",
    "stuck",
    "orphaned",
    "waits_for_a_person",
    "waits_for_its_turn",
]

_LOOKED_AT_ONCE = 20
_FAILED_ATTEMPTS = 2
_LAST_EVENTS = 5
_UNANSWERED = 3
# The server takes a task back when something arrives while it is under way. The next attempt has it.
_BY_THE_SERVER = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
_LOOK_AGAIN = "Look again in a minute. If it stays so, see what the workers log."
_ASKED = ("stuck", "awaiting_approval", "awaiting_tool_result")
_MESSAGE_CHARACTERS = 300
_WAITS_FOR = {"approval": "an approval", "tool_result": "its result", "budget": "a larger budget", "output": "a review"}


class Finding(Payload):
    """One reason why a run does not get on.

    kind: `task_failing` (its workflow task fails again and again), `no_worker` (for its task queue and version),
    `no_answer` (a worker is there and does not say how the run stands), `step_failing` (it is tried again),
    `step_not_taken`, `step_paused`, `stuck` (until it is retried), `orphaned` (the run whose tool started it has
    ended), `waits_for_a_person` (for long), `waits_for_its_turn` (in its session).
    wrong: false for what only waits, as it is meant to. what, todo: one line each, without secrets. since: null where
    nobody knows.
    """

    kind: FindingKind
    wrong: bool = True
    what: str
    todo: str
    since: AwareDatetime | None = None


class RunTrouble(Payload):
    """An open run and what was found, the worst first."""

    workflow_id: str
    run_id: str
    agent: str
    task_queue: str
    findings: tuple[Finding, ...]

    @property
    def wrong(self) -> bool:
        """Whether something is wrong, and not only long in waiting."""
        return any(finding.wrong for finding in self.findings)


class Watchdog:
    """Looks at the open runs of a namespace, on whatever task queue they are.

    waits_long_seconds: after how long an open request of a run is worth a word. not_taken_seconds: and a step that no
    worker takes. looked: called after each run with how many were looked at, and of how many.
    """

    def __init__(
        self,
        client: "Client",
        *,
        waits_long_seconds: float,
        looked: Callable[[int, int], None] = lambda number, of: None,
        not_taken_seconds: float = 30,
    ) -> None:
        self._client = client
        self._waits_long = timedelta(seconds=waits_long_seconds)
        self._not_taken = timedelta(seconds=not_taken_seconds)
        self._looked = looked
        self._workers: dict[str, asyncio.Task[Workers]] = {}
        self._open: dict[str, asyncio.Task[bool]] = {}
        self._unanswered: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(_LOOKED_AT_ONCE)

    async def look(self, limit: int) -> list[RunTrouble]:
        """The runs in trouble, of at most `limit` open ones, the newest."""
        query = f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus = 'Running'"
        runs = [one async for one in self._client.temporal.list_workflows(query, limit=limit)]
        found: list[RunTrouble] = []
        for number, looking in enumerate(asyncio.as_completed([self._look_at(one) for one in runs]), 1):
            if (trouble := await looking) is not None:
                found.append(trouble)
            self._looked(number, len(runs))
        return sorted(found, key=lambda trouble: (not trouble.wrong, trouble.workflow_id))

    async def _look_at(self, execution: Any) -> RunTrouble | None:
        async with self._slots:
            handle = self._client.temporal.get_workflow_handle(execution.id, run_id=execution.run_id)
            try:
                described = await handle.describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise
            if described.status is not WorkflowExecutionStatus.RUNNING:
                return None
            findings = [finding async for finding in self._findings(described)]
            if not findings:
                return None
            return RunTrouble(
                workflow_id=described.id,
                run_id=described.run_id or "",
                agent=str(await described.memo_value(names.MEMO_AGENT, "")),
                task_queue=described.task_queue,
                findings=tuple(sorted(findings, key=lambda finding: not finding.wrong)),
            )

    async def _findings(self, described: WorkflowExecutionDescription) -> AsyncIterator[Finding]:
        workers, pinned_to = await self._workers_of(described.task_queue), pin_of(described)
        served = workers.serve(pinned_to)
        if not served:
            yield Finding(
                kind="no_worker",
                what=f"No worker takes its tasks from task queue {described.task_queue!r}.",
                todo=workers.todo(pinned_to),
            )
        if failing := await self._task_failing(described):
            yield failing
        for activity in described.raw_description.pending_activities:
            if finding := _of_step(activity, described.id, self._not_taken):
                yield finding
        if orphaned := await self._orphaned(described):
            yield orphaned
        if served and not described.raw_description.HasField("pending_workflow_task"):
            async for finding in self._of_state(described):
                yield finding

    async def _task_failing(self, described: WorkflowExecutionDescription) -> Finding | None:
        if not described.raw_description.HasField("pending_workflow_task"):
            return None
        task = described.raw_description.pending_workflow_task
        since = task.original_scheduled_time.ToDatetime(tzinfo=UTC)
        event = await self._last_task(described) if task.attempt > 1 else None
        if event is None:
            return _late(since) if datetime.now(UTC) - since > self._not_taken else None
        give_up = f"To give the run up: temporal workflow terminate --workflow-id {shlex.quote(described.id)}"
        if event.HasField("workflow_task_timed_out_event_attributes"):
            what = f"Workers take its workflow task and do not answer: attempt {task.attempt}."
            todo = "See what the workers log: one that is blocked says `run.blocked`, one that is lost says nothing."
            return Finding(kind="task_failing", what=what, todo=f"{todo} {give_up}", since=since)
        failed = event.workflow_task_failed_event_attributes
        what = f"Its workflow task fails, attempt {task.attempt}: {_words(failed.failure)}"
        return Finding(kind="task_failing", what=what, todo=f"{_remedy(failed)} {give_up}", since=since)

    async def _last_task(self, described: WorkflowExecutionDescription) -> HistoryEvent | None:
        """How the last recorded attempt of the pending workflow task went; None when it was the first."""
        page = await self._client.temporal.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.temporal.namespace,
                execution=ExecutionId(workflow_id=described.id, run_id=described.run_id or ""),
                maximum_page_size=_LAST_EVENTS,
            )
        )
        for event in page.history.events:
            if event.workflow_task_failed_event_attributes.cause in _BY_THE_SERVER:
                return None
            if event.event_type in (
                EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
                EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
            ):
                return event
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                return None
        return None

    async def _orphaned(self, described: WorkflowExecutionDescription) -> Finding | None:
        parent = str(await described.memo_value(names.MEMO_PARENT, ""))
        if not parent or await self._is_open(parent):
            return None
        return Finding(
            kind="orphaned",
            what=f"Run {parent!r}, whose tool started it, has ended: nobody waits for it.",
            todo=f"interlock runs cancel {shlex.quote(described.id)}",
        )

    async def _of_state(self, described: WorkflowExecutionDescription) -> AsyncIterator[Finding]:
        key = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
        if described.typed_search_attributes.get(key, "stuck") not in _ASKED:
            return
        if self._unanswered[described.task_queue] >= _UNANSWERED:
            return  # Each question that nobody answers takes its time, and enough runs of this queue tell of it.
        try:
            state = await self._client.attach(described.id).state()
        except RefusedError:
            return  # It has ended meanwhile.
        except UnavailableError:
            self._unanswered[described.task_queue] += 1
            described = await self._client.temporal.get_workflow_handle(described.id).describe()
            yield await self._task_failing(described) or _silent()
            return
        for finding in _of_state(state, described.id, self._waits_long):
            yield finding

    def _workers_of(self, task_queue: str) -> "asyncio.Task[Workers]":
        if task_queue not in self._workers:
            on_it = type(self._client)(self._client.temporal, task_queue=task_queue)
            self._workers[task_queue] = asyncio.ensure_future(workers_of(on_it))
        return self._workers[task_queue]

    def _is_open(self, workflow_id: str) -> "asyncio.Task[bool]":
        async def ask() -> bool:
            try:
                described = await self._client.temporal.get_workflow_handle(workflow_id).describe()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return False
                raise
            return described.status is WorkflowExecutionStatus.RUNNING

        if workflow_id not in self._open:
            self._open[workflow_id] = asyncio.ensure_future(ask())
        return self._open[workflow_id]


def _late(since: datetime) -> Finding:
    return Finding(
        kind="no_answer",
        what="Its workflow task waits for a worker, although one is there.",
        todo=_LOOK_AGAIN,
        since=since,
    )


def _silent() -> Finding:
    return Finding(
        kind="no_answer", what="A worker is there, but it did not say in time how the run stands.", todo=_LOOK_AGAIN
    )


def _of_step(activity: PendingActivityInfo, workflow_id: str, not_taken: timedelta) -> Finding | None:
    name = activity.activity_type.name
    failed = activity.attempt - 1
    if activity.paused:
        return Finding(
            kind="step_paused",
            what=f"Step {name!r} is paused.",
            todo=f"temporal activity unpause --workflow-id {shlex.quote(workflow_id)} --activity-id "
            f"{shlex.quote(activity.activity_id)}",
        )
    if activity.last_failure.application_failure_info.type == names.TURN_NOT_YET:
        return Finding(
            kind="waits_for_its_turn",
            wrong=False,
            what=_words(activity.last_failure).removeprefix(f"{names.TURN_NOT_YET}: "),
            todo="See what that run waits for: interlock runs show RUN",
        )
    if failed >= _FAILED_ATTEMPTS:
        of = f" of {activity.maximum_attempts}" if activity.maximum_attempts else ", and is tried for ever"
        return Finding(
            kind="step_failing",
            what=f"Step {name!r} has failed {failed} times{of}: {_words(activity.last_failure) or 'timed out'}",
            todo="Remove the cause; it is tried again by itself.",
        )
    scheduled = activity.scheduled_time.ToDatetime(tzinfo=UTC)
    waits = activity.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    if waits and not failed and datetime.now(UTC) - scheduled > not_taken:
        return Finding(
            kind="step_not_taken",
            what=f"No worker has taken step {name!r}.",
            todo="The workers are gone or have no slot left: start more, or raise INTERLOCK_MAX_CONCURRENT_ACTIVITIES.",
            since=scheduled,
        )
    return None


def _of_state(state: RunState, workflow_id: str, waits_long: timedelta) -> Iterator[Finding]:
    run = shlex.quote(workflow_id)
    for step in state.stuck:
        yield Finding(kind="stuck", what=_stuck(step), todo=f"interlock runs retry {run}", since=step.since)
    long_ago = datetime.now(UTC) - waits_long
    for request in state.requests:
        if request.requested_at < long_ago:
            yield Finding(
                kind="waits_for_a_person",
                wrong=False,
                what=_asks(request),
                todo=f"interlock approvals list, then answer request {request.request_id} of {run}",
                since=request.requested_at,
            )


def _stuck(step: StuckStep) -> str:
    failure = ": ".join(filter(None, (step.error_type, bounded(step.message, _MESSAGE_CHARACTERS))))
    return f"Stuck, until {step.ends_at:%Y-%m-%d %H:%M} UTC: {step.label} failed for good: {failure}"


def _asks(request: ApprovalRequest) -> str:
    waits_for = _WAITS_FOR.get(request.kind, "word whether it happened")
    limit = f" ({words})" if (words := limit_words(request)) else ""
    return f"Request {request.request_id} waits for {waits_for}{limit}: {call_label(request.tool, request.arguments)}"


def _words(failure: Failure) -> str:
    failure = own_failure(failure)
    kind = failure.application_failure_info.type
    return ": ".join(filter(None, (kind, " ".join(bounded(failure.message, _MESSAGE_CHARACTERS).split()))))


def _remedy(failed: Any) -> str:
    if failed.cause == WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR:
        return (
            "The workers' code is not what the run was written by. Start a worker of that build, or see where they "
            "differ with `interlock replay MODULE:APP --running`."
        )
    if failed.failure.application_failure_info.type == LookupError.__name__:
        return "Start a worker whose app has the agent."
    return "Repair what the workers run and start them again: the run goes on from where it is."
