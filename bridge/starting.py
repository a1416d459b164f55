"""Starts the run of a task, or finds the one that is there: what happens on a retry, a clear and a changed input."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, Protocol

from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import CLOSED, server_errors
from interlock.bridge.endings import run_of
from interlock.bridge.errors import ForeignRunError, InputChangedError, RunVanishedError
from interlock.bridge.identity import Note, TaskIdentity
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import InputDiffersError, RefusedError
from interlock.contracts.payloads import Json, RunInput, Usage
from interlock.journal import Journal

OnRetry = Literal["attach", "new"]
OnClear = Literal["continue", "attach", "new"]
OnChangedInput = Literal["fail", "attach", "new"]
OnVanishedRun = Literal["fail", "new"]
OnNewDagRun = Literal["new", "attach"]

_ENDS_WITHIN_SECONDS = 15  # How long a run that is to make way may clean up.


@dataclass(frozen=True)
class Policies:
    """What a task does when there is a run already.

    on_retry: `attach`: an open run goes on, one that is stuck is retried in place, one that has ended without a result
    begins again where it stopped; `new`: start over.
    on_clear: `continue`: a finished run is started over, an open one goes on; `attach`: the finished one's result is
    read again; `new`: start over whatever it does.
    on_changed_input: `fail`, naming the fields; `attach`: keep the input the run was started with; `new`: start over.
    on_vanished_run: `fail`, or start a `new` one, when Temporal no longer has a run that this task has started.
    on_new_dag_run: of a task with a workflow id of its own that another Dag run used before: `new` or `attach`.
    """

    on_retry: OnRetry = "attach"
    on_clear: OnClear = "continue"
    on_changed_input: OnChangedInput = "fail"
    on_vanished_run: OnVanishedRun = "fail"
    on_new_dag_run: OnNewDagRun = "new"


class Job(Protocol):
    """What a task wants to run."""

    @property
    def workflow_type(self) -> str:
        """The workflow's name."""
        ...

    @property
    def digests(self) -> Mapping[str, str] | None:
        """A digest of each field of the input; None where it is not made before it is needed."""
        ...

    async def start(self, client: Client, id: str, note: Note, *, restart: bool) -> str:
        """Start it and return the run id. Raises WorkflowAlreadyStartedError when the id is taken."""
        ...

    async def go_on(self, client: Client, id: str, run_id: str, note: Note) -> str:
        """Start it over where an execution that has ended without a result stopped, and return the run id."""
        ...


@dataclass(frozen=True)
class Begun:
    """The run of a task.

    how: `started`; `attached` to one that was there, open or finished; `continued`: started again where it had stopped.
    reused: how many steps were complete by then. used: by then. retried: the stuck steps that run again.
    """

    workflow_id: str
    run_id: str
    how: Literal["started", "attached", "continued"]
    reused: int = 0
    used: Usage = field(default_factory=Usage)
    retried: tuple[str, ...] = ()


class AgentJob:
    """A run of an agent. make: makes its input; called once, and only when a run is started with it.

    eager: the input is compared with that of a run which is there, so it is made for that too. memo: for whoever finds
    the run.
    """

    workflow_type = names.AGENT_WORKFLOW

    def __init__(self, make: Callable[[], RunInput], *, eager: bool, memo: Mapping[str, Json] | None = None) -> None:
        self._input = lru_cache(maxsize=1)(make)
        self._eager = eager
        self._memo = memo or {}

    @property
    def digests(self) -> dict[str, str] | None:
        """See `Job`."""
        return self._digests() if self._eager else None

    async def start(self, client: Client, id: str, note: Note, *, restart: bool) -> str:
        """See `Job`."""
        note = replace(note, digests=self._digests())
        try:
            run = await client.start_run(id, self._input(), restart=restart, memo={**self._memo, **note.memo()})
        except InputDiffersError as error:
            raise WorkflowAlreadyStartedError(id, self.workflow_type) from error
        if not run.started_run_id:
            raise WorkflowAlreadyStartedError(id, self.workflow_type)
        return run.started_run_id

    async def go_on(self, client: Client, id: str, run_id: str, note: Note) -> str:
        """See `Job`."""
        journal = await client.journal(id, run_id=run_id)
        if not journal.steps:
            return await self.start(client, id, note, restart=True)
        try:
            plan = await client.plan_fork(id, at=len(journal.steps) + 1, run_id=run_id)
        except RefusedError:  # Of another version, or its history is no longer whole: then it starts over.
            return await self.start(client, id, note, restart=True)
        run = await client.fork(
            plan,
            id=id,
            requested_by=journal.requested_by,
            stuck_seconds=plan.run.options.stuck_seconds,
            restart=True,
            memo={**self._memo, **note.memo()},
        )
        if not run.started_run_id:
            raise WorkflowAlreadyStartedError(id, self.workflow_type)
        return run.started_run_id

    def _digests(self) -> dict[str, str]:
        fields = self._input().model_dump(mode="json", exclude={"options", "requested_by"}, exclude_none=True)
        return {name: digest(value)[:16] for name, value in fields.items()}


@dataclass(frozen=True)
class WorkflowJob:
    """Any workflow, by its name. arguments: as JSON. memo: for whoever finds the run."""

    workflow_type: str
    arguments: tuple[Json, ...] = ()
    task_queue: str = ""
    execution_timeout: timedelta | None = None
    memo: Mapping[str, Json] = field(default_factory=dict)
    summary: str = ""

    @property
    def digests(self) -> dict[str, str]:
        """See `Job`."""
        return {"workflow": digest(self.workflow_type)[:16], "arguments": digest(list(self.arguments))[:16]}

    async def start(self, client: Client, id: str, note: Note, *, restart: bool) -> str:
        """See `Job`."""
        policy = WorkflowIDReusePolicy.ALLOW_DUPLICATE if restart else WorkflowIDReusePolicy.REJECT_DUPLICATE
        handle: WorkflowHandle[Any, Any] = await client.temporal.start_workflow(
            self.workflow_type,
            args=list(self.arguments),
            id=id,
            task_queue=self.task_queue or client.task_queue,
            id_reuse_policy=policy,
            execution_timeout=self.execution_timeout,
            memo={**self.memo, **note.memo()},
            static_summary=self.summary or None,
        )
        return handle.first_execution_run_id or ""

    async def go_on(self, client: Client, id: str, run_id: str, note: Note) -> str:
        """See `Job`: Temporal has no other way than to start a workflow over."""
        return await self.start(client, id, note, restart=True)


async def begin(
    client: Client,
    job: Job,
    task: TaskIdentity,
    policies: Policies,
    *,
    workflow_id: str = "",
    known: bool | None = None,
    run_id: str = "",
) -> Begun:
    """Start the run of a task, or find it, by the policies. Asking twice is one run.

    workflow_id: in place of the task's own. known: whether this task has begun before, since it was cleared last; None
    where nothing tells. run_id: of the execution that it had then.
    Raises ForeignRunError, InputChangedError, RunVanishedError, or what the client raises.
    """
    place = workflow_id or task.workflow_id
    note = Note.by(task, job.digests or {})
    with server_errors(place):
        for _ in range(3):
            found = await _describe(client, place, run_id)
            if found is None:
                if known and policies.on_vanished_run == "fail":
                    raise RunVanishedError(_VANISHED.format(place)).about(place)
                try:
                    return Begun(place, await job.start(client, place, note, restart=False), "started")
                except WorkflowAlreadyStartedError:
                    continue  # Another attempt of this task came first.
            try:
                return await _found(client, job, task, note, policies, found, known)
            except WorkflowAlreadyStartedError:
                continue
    raise ForeignRunError(f"Workflow id {place!r} is started by others again and again. Take another one.").about(place)


_VANISHED = (
    "Temporal no longer knows the run {!r} that this task has started: its retention time is over, or somebody deleted "
    "it. Set on_vanished_run='new' to start a new one, or clear the task."
)


Plan = Literal["start_over", "attach", "go_on", "busy", "changed"]


def plan_for(
    policies: Policies,
    task: TaskIdentity,
    theirs: Note,
    *,
    is_closed: bool,
    is_complete: bool,
    has_changed: bool,
    known: bool | None = None,
) -> Plan:
    """What a task does with the run that it finds. theirs: the note of the task that started it. known: see `begin`.

    `busy`: another Dag run's is in the way; `changed`: its input is not the task's any more.
    """
    is_retry = task.try_number > theirs.try_number and not task.rescheduled
    if theirs.run_id != task.run_id:
        if policies.on_new_dag_run == "new":
            return "start_over" if is_closed else "busy"
        is_retry = task.try_number > 1 and not task.rescheduled
    elif _is_cleared(task, theirs, known):
        if policies.on_clear == "new" or (policies.on_clear == "continue" and is_closed):
            return "start_over"
    elif is_retry and policies.on_retry == "new":
        return "start_over"
    if has_changed and policies.on_changed_input != "attach":
        return "start_over" if policies.on_changed_input == "new" else "changed"
    return "go_on" if is_closed and not is_complete and is_retry else "attach"


def _is_cleared(task: TaskIdentity, theirs: Note, known: bool | None) -> bool:
    """Whether the task was cleared since its run was started, and no try of it has gone by that yet: a retry of a
    cleared task is a retry."""
    # `clears` alone would take a retry for a clear when somebody has lowered the task's retries in between.
    cleared = task.max_tries != theirs.max_tries if theirs.max_tries >= 0 else task.clears > theirs.clears
    return cleared and not (task.try_number > task.clears + 1 if known is None else known)


async def attaches(
    client: Client, task: TaskIdentity, policies: Policies, *, workflow_id: str = "", known: bool | None = None
) -> bool:
    """Whether the task has a run already that it would go on with, so that no input is needed. known: see `begin`."""
    place = workflow_id or task.workflow_id
    with server_errors(place):
        found = await _describe(client, place)
        theirs = Note.read(await found.memo()) if found else None
    if found is None or theirs is None or _is_another_task(theirs, task):
        return False
    plan = plan_for(policies, task, theirs, **_how_it_stands(found), has_changed=False, known=known)
    return plan in ("attach", "go_on")


async def _found(
    client: Client,
    job: Job,
    task: TaskIdentity,
    note: Note,
    policies: Policies,
    found: WorkflowExecutionDescription,
    known: bool | None,
) -> Begun:
    stands = _how_it_stands(found)
    theirs = Note.read(await found.memo())
    if found.workflow_type != job.workflow_type or theirs is None or _is_another_task(theirs, task):
        raise ForeignRunError(
            f"Workflow id {found.id!r} belongs to {'an ended' if stands['is_closed'] else 'an open'} "
            f"{found.workflow_type!r} that {_whose(theirs)} has started. Give this task another workflow_id."
        ).about(found.id, found.run_id)
    changed: tuple[str, ...] = ()
    if job.digests is None:
        note = replace(note, digests=theirs.digests)
    else:
        changed = tuple(name for name in {**theirs.digests, **note.digests} if _differs(name, theirs, note))
    plan = plan_for(policies, task, theirs, **stands, has_changed=bool(changed), known=known)
    if plan == "busy":
        raise ForeignRunError(
            f"Run {found.id!r} of Dag run {theirs.run_id!r} is open, so this Dag run cannot start it anew. Wait for "
            "it, give this task another workflow_id, or set on_new_dag_run='attach'."
        ).about(found.id, found.run_id)
    if plan == "changed":
        raise InputChangedError(
            f"Run {found.id!r} was started with another input: {', '.join(changed)} changed since. A run's input is "
            "fixed at its start. Make the task's templates render the same on each try, or set on_changed_input to "
            "'attach' (keep the run's input) or 'new' (start over); clearing the finished task starts over too."
        ).about(found.id, found.run_id)
    if plan == "start_over":
        if not stands["is_closed"]:
            await _end(client, found)
        return Begun(found.id, await job.start(client, found.id, note, restart=True), "started")
    if task.rescheduled and (theirs.run_id, theirs.try_number) == (task.run_id, task.try_number):
        return Begun(found.id, found.run_id, "started")
    journal = await client.journal(found.id, run_id=found.run_id) if task.try_number > 1 else None
    reused, used = _so_far(journal)
    if plan == "go_on":
        return Begun(found.id, await job.go_on(client, found.id, found.run_id, note), "continued", reused, used)
    retried: tuple[str, ...] = ()
    is_stuck = journal is not None and any(one.outcome == "open" for one in journal.stuck)
    if is_stuck and not stands["is_closed"] and not task.rescheduled:
        retried = await _retry(client, found.id, task)
    return Begun(found.id, found.run_id, "attached", reused, used, retried)


def _how_it_stands(found: WorkflowExecutionDescription) -> dict[str, bool]:
    return {
        "is_closed": found.status in CLOSED,
        "is_complete": found.status is WorkflowExecutionStatus.COMPLETED,
    }


async def _retry(client: Client, id: str, task: TaskIdentity) -> tuple[str, ...]:
    try:
        receipt = await client.attach(id).retry(
            reason=f"try {task.try_number} of the task", by=f"airflow:{task.dag_id}.{task.task_id}"
        )
    except RefusedError:  # Somebody else has had it retried meanwhile.
        return ()
    return receipt.steps


def _so_far(journal: Journal | None) -> tuple[int, Usage]:
    if journal is None:
        return 0, Usage()
    return sum(step.status == "completed" and step.kind != "description" for step in journal.steps), (
        journal.usage or journal.totals.usage
    )


def _differs(name: str, theirs: Note, ours: Note) -> bool:
    return theirs.digests.get(name) != ours.digests.get(name)


def _is_another_task(theirs: Note, task: TaskIdentity) -> bool:
    # The Dag run may be another one, where the task has a workflow id of its own.
    return (theirs.dag_id, theirs.task_id, theirs.map_index) != (task.dag_id, task.task_id, task.map_index)


def _whose(note: Note | None) -> str:
    if note is None:
        return "somebody outside of Airflow"
    mapped = f" [{note.map_index}]" if note.map_index >= 0 else ""
    return f"task {note.task_id!r}{mapped} of Dag {note.dag_id!r}"


async def _describe(client: Client, id: str, run_id: str = "") -> WorkflowExecutionDescription | None:
    try:
        return await run_of(client, id, run_id)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "amespace" not in error.message:
            return None
        raise


async def _end(client: Client, found: WorkflowExecutionDescription) -> None:
    """End an open run that is to make way: it may clean up for a while."""
    handle = client.temporal.get_workflow_handle(found.id, run_id=found.run_id)
    await handle.cancel()
    try:
        async with asyncio.timeout(_ENDS_WITHIN_SECONDS):
            await handle.result()
    except WorkflowFailureError:
        return
    except TimeoutError:
        await handle.terminate(reason="Airflow starts this task's run over.")
