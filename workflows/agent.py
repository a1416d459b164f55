"""AgentWorkflow: one run of an agent. Its history is the journal; nothing else holds the run's state."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from interlock.contracts import names
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.failures import LARGEST_OUTPUT_BYTES, output_too_large, problems
    from interlock.contracts.payloads import (
        MOST_REVIEW_ROUNDS,
        ApprovalRequest,
        Carried,
        Claim,
        Decision,
        EventBatch,
        Grant,
        Receipt,
        Retry,
        RetryReceipt,
        RunInput,
        RunOutput,
        RunState,
        RunStatusName,
        StepCalls,
        SubRun,
        ToolCompletion,
        Usage,
    )
    from interlock.contracts.ports import AgentRunner, Continuation, Runners
    from interlock.contracts.sessions import TurnNotice
    from interlock.workflows.conversation import Conversations
    from interlock.workflows.gate import ApprovalGate
    from interlock.workflows.ledger import Ledger
    from interlock.workflows.reuse import Reuse
    from interlock.workflows.stuck import StuckSteps
    from interlock.workflows.turn import SessionTurn
    from interlock.workflows.view import details

_CARRIED = 50
_STREAMED_EVENTS = 20_000
_END_OF_AGENTS = timedelta(seconds=10)
_NOT_FOUND = "NotFound"  # In what the SDK says of a signal to a run that is not there.
_PARENT_GONE = "The run whose tool started this one has ended: nobody waits for this agent any more."


@dataclass(frozen=True)
class WorkerAgents:
    """The agents of the worker that runs this code.

    alone: no other worker could take a run on that this one cannot. So it is for a replayer of stored histories.
    review_rounds: of the agents whose outputs are reviewed, as in `RunInput`.
    """

    runners: Runners
    alone: bool = False
    review_rounds: Mapping[str, int] = field(default_factory=dict)


worker_agents: ContextVar[WorkerAgents] = ContextVar("interlock_worker_agents")
"""Set by the worker's interceptor."""


@workflow.defn(name=names.AGENT_WORKFLOW)
class AgentWorkflow:
    """The run of one agent: its state, its messages and its end."""

    # The input is taken as it comes, not as a RunInput: one that cannot be read would fail the workflow task, again and
    # again, instead of the run. Only the plain type `RawValue` keeps the SDK from reading it.
    @workflow.init
    def __init__(self, run: RawValue = None) -> None:  # type: ignore[assignment]
        self._run, self._unfit = _read(run)
        self._ended: RunStatusName | None = None
        carried = self._run.carried or Carried()
        self._sub_runs = {sub_run.workflow_id: sub_run for sub_run in carried.sub_runs}
        self._untold: set[str] = set()
        self._now: list[str] = []
        self._written: dict[str, Any] = {}
        self.reuse = Reuse(self._run.fork)
        self.conversations = Conversations()
        self._ledger = Ledger(self._run, self.show, lambda call: self._gate.ask(call))
        self._gate = ApprovalGate(self.show, self.reuse, carried, self._ledger)
        self._stuck = StuckSteps(
            self._run.options.stuck_seconds,
            self.show,
            self._agents_of,
            self._end_agents,
            self.reuse,
            carried.stuck,
        )
        self._turn = SessionTurn(self._run, self.show)

    @workflow.run
    async def run(self, run: RawValue = None) -> RunOutput:  # type: ignore[assignment]
        """Run the agent to its end. run: a `RunInput`."""
        self.show()
        told = self._run.parent and not self._run.carried
        started = asyncio.ensure_future(self._report(None)) if told else None
        try:
            if started and self._run.options.needs_parent and not await started:
                raise ApplicationError(_PARENT_GONE, type=names.PARENT_GONE, non_retryable=True)
            runner = self._runner()
            reviewed = {"review_rounds": self._review_rounds()}
            self._run = self._run.model_copy(update=reviewed)
            run_now = (await self._turn.begin(runner.framework)).model_copy(update=reviewed)
            output = await runner.run(run_now, self._gate, self._stuck, self._is_long)
            if isinstance(output, Continuation):
                await self._continue(output)
            bounded = _bounded(output)
            await self._end_sub_runs(list(self._sub_runs.values()))
            turn = await self._turn.end(output)
            self._ended = "completed"
            return bounded.model_copy(update={"usage": self._usage(), "turn": turn})
        except asyncio.CancelledError:
            self._ended = "cancelled"
            raise
        except FailureError as error:
            self._ended = "cancelled" if is_cancelled_exception(error) else "failed"
            raise
        finally:
            if self._ended in ("failed", "cancelled"):
                await self._end_sub_runs(list(self._sub_runs.values()), always=True)
                await self._turn.release()
            if started:
                await started
            await self._ledger.close()
            if self._run.parent and self._ended:
                await self._report(self._usage())
            self.show()
            await workflow.wait_condition(workflow.all_handlers_finished)

    def show(self) -> None:
        """Bring what outsiders see up to date: the details in the Temporal UI and the search attributes."""
        workflow.set_current_details(details(self.state(), self._now, workflow.info().workflow_id))
        self._write_attributes()

    def started(self, label: str) -> None:
        """An activity is in flight."""
        self._now.append(label)
        self.show()

    def finished(self, label: str) -> None:
        """It no longer is."""
        self._now.remove(label)
        self.show()

    def is_streamed(self) -> bool:
        """Whether the steps that begin now record what happens inside of them. No longer in a history that is long and
        could not be ended: each record is a signal, and the server takes 10,000 in one execution."""
        return self._run.options.stream and workflow.info().get_current_history_length() < _STREAMED_EVENTS

    def idle(self) -> bool:
        """Whether the run neither asks anybody nor has ended: then something of it has to be under way."""
        return self._status() == "running" and not self._ledger.waits

    @workflow.query(name=names.STATUS)
    def state(self) -> RunState:
        """What the run is doing, what it waits for and what was decided."""
        return RunState(
            status=self._status(),
            agent=self._run.agent,
            requests=self._gate.requests,
            settled=self._gate.settled,
            sub_runs=list(self._sub_runs.values()),
            stuck=self._stuck.steps,
            session=self._turn.place,
            budget=self._ledger.state,
        )

    @workflow.query(name=names.APPROVALS)
    def approvals(self) -> list[ApprovalRequest]:
        """The open requests, oldest first."""
        return self._gate.requests

    @workflow.signal(name=names.DECIDE_APPROVAL)
    def decide_approval(self, decision: Decision) -> None:
        """Settle an open request; repeats and strangers change nothing."""
        try:
            self._gate.decide(decision)
        except RefusedError as error:
            workflow.logger.warning("decision.refused", extra={"request_id": decision.request_id, "why": str(error)})

    @workflow.signal(name=names.COMPLETE_TOOL_CALL)
    def complete_tool_call(self, completion: ToolCompletion) -> None:
        """Give a waiting call its result; repeats and strangers change nothing."""
        try:
            self._gate.complete(completion)
        except RefusedError as error:
            workflow.logger.warning("result.refused", extra={"call_id": completion.call_id, "why": str(error)})

    @workflow.signal(name=names.RETRY_RUN)
    def retry_run(self, retry: Retry) -> None:
        """Have stuck steps run again; when nothing is stuck, nothing changes."""
        try:
            self._stuck.retry(retry)
        except RefusedError as error:
            workflow.logger.warning("retry.refused", extra={"step": retry.step, "why": str(error)})

    @workflow.signal(name=names.TURN_CAME)
    def turn_came(self, notice: TurnNotice) -> None:
        """The session says that the run's turn may have come."""
        self._turn.look_again(notice)

    @workflow.signal(name=names.REPORT_SUB_RUN)
    def report_sub_run(self, sub_run: SubRun) -> None:
        """A run that a tool of this one started tells that it works, and at its end what it used."""
        if not sub_run.workflow_id.startswith(f"{workflow.info().workflow_id}/"):
            return  # A stranger's: this run's end must not reach it.
        known = self._sub_runs.get(sub_run.workflow_id)
        told = known is not None and known.usage is not None and known.workflow_id not in self._untold
        if told and sub_run.usage is not None:
            return
        if known is None and sub_run.usage is not None and workflow.patched(names.REPORT_AFTER_RESET):
            return  # Of an execution under this id that has been started over since.
        # One that is started over, under the same id, tells of its beginning again, and at its end of what it used.
        self._untold.discard(sub_run.workflow_id)
        self._sub_runs[sub_run.workflow_id] = sub_run
        if sub_run.usage is not None:
            self._ledger.reported(sub_run.usage)
        self.show()

    @workflow.signal(name=names.RECORD_EVENTS)
    def record_events(self, batch: EventBatch) -> None:
        """A step tells how far it is. It is in the history now, which is all that is wanted."""

    @workflow.signal(name=names.CLAIM_BUDGET)
    def claim_budget(self, claim: Claim) -> None:
        """A run below, whose budget this one keeps, says what it has used and which model calls it wants to make."""
        self._ledger.claim(claim)

    @workflow.signal(name=names.GRANT_BUDGET)
    def grant_budget(self, grant: Grant) -> None:
        """The run that keeps the budget of this one says which of its model calls may begin."""
        self._ledger.grant(grant)

    @workflow.update(name=names.SUBMIT_DECISION)
    def submit_decision(self, decision: Decision) -> Receipt:
        """Settle an open request, or be told at once why not."""
        # Between its validator and this another message may have settled the request; then the sender is told so.
        return self._gate.decide(decision)

    @submit_decision.validator
    def _check_decision(self, decision: Decision) -> None:
        self._gate.check_decision(decision)

    @workflow.update(name=names.SUBMIT_TOOL_RESULT)
    def submit_tool_result(self, completion: ToolCompletion) -> Receipt:
        """Give a waiting call its result, or be told at once why not."""
        return self._gate.complete(completion)

    @submit_tool_result.validator
    def _check_completion(self, completion: ToolCompletion) -> None:
        self._gate.check_completion(completion)

    @workflow.update(name=names.SUBMIT_RETRY)
    def submit_retry(self, retry: Retry) -> RetryReceipt:
        """Have stuck steps run again, or be told at once why not."""
        return self._stuck.retry(retry)

    @submit_retry.validator
    def _check_retry(self, retry: Retry) -> None:
        self._stuck.check(retry)

    @workflow.update(name=names.BEGIN_MODEL_CALL)
    async def begin_model_call(self, asked: StepCalls) -> bool:
        """A step asks whether its code may make a model call now. Fails when the run is about to end by its budget."""
        return await self._ledger.begin_inside(asked)

    @begin_model_call.validator
    def _check_model_call(self, asked: StepCalls) -> None:
        self._ledger.check_inside(asked)

    def _runner(self) -> AgentRunner:
        if self._unfit:
            raise ApplicationError(self._unfit, type=names.INVALID_INPUT, non_retryable=True)
        agents = worker_agents.get()
        try:
            return agents.runners[self._run.agent]
        except KeyError:
            message = (
                f"This worker has no agent {self._run.agent!r}; it has: {', '.join(sorted(agents.runners))}. "
                "Start a run of one of these, or a worker whose app registers the agent."
            )
            if workflow.unsafe.is_replaying() and not agents.alone:
                # The run is under way: another worker had the agent. Only this task fails, for such a worker to take.
                raise LookupError(message) from None
            raise ApplicationError(message, type=names.UNKNOWN_AGENT, non_retryable=True) from None

    def _review_rounds(self) -> int | None:
        """How many outputs are asked about: as the run's input says, or the app where that says nothing.

        What the app said when the run began is noted in the history, so that the run stays as it was when the app says
        something else later. A run whose app said nothing has no note.
        """
        if self._run.review_rounds is not None or self._run.carried is not None:
            return self._run.review_rounds
        if workflow.unsafe.is_replaying():
            every = range(1, MOST_REVIEW_ROUNDS + 1)
            return next((rounds for rounds in every if workflow.patched(names.review_note(rounds))), None)
        rounds = worker_agents.get().review_rounds.get(self._run.agent)
        if rounds is not None:
            workflow.patched(names.review_note(rounds))
        return rounds

    def _is_long(self) -> bool:
        """Whether the execution is to end here and another one to go on: nothing is under way, and its history has
        become so long that the server suggests it."""
        if not workflow.info().is_continue_as_new_suggested() or not self.reuse.is_used_up:
            return False
        open_runs = any(sub_run.usage is None for sub_run in self._sub_runs.values())
        if self._gate.requests or self._stuck.steps or self._now or open_runs or self._ledger.is_busy:
            return False
        return workflow.patched(names.CONTINUE_AS_NEW)

    async def _continue(self, continuation: Continuation) -> NoReturn:
        before = self._run.carried
        # Bounded: what is carried grows from execution to execution, and has to fit the next one's input.
        ended = list(self._sub_runs.values())
        latest = ended[-_CARRIED:]
        self._ledger.count(continuation.usage)
        run = self._run.model_copy(
            update={
                "message_history": continuation.messages,
                "deps": self._run.deps if continuation.deps is None else continuation.deps,
                "usage_limits": continuation.usage_limits,
                "fork": None,
                "budget": self._ledger.budget,
                "carried": Carried(
                    **self._ledger.carried(sum((one.usage or Usage() for one in latest), Usage()), self.reuse.spent),
                    calls=continuation.calls,
                    asked=self._gate.asked,
                    key_root=(before and before.key_root) or (self._run.fork and self._run.fork.key_root) or "",
                    settled=self._gate.settled[-_CARRIED:],
                    sub_runs=latest,
                    agent=continuation.agent,
                    previous_response_id=continuation.previous_response_id,
                    used_tools=list(continuation.used_tools),
                    new_from=continuation.new_from,
                    stuck=self._stuck.number,
                    made=dict(continuation.made),
                    reviews_left=continuation.reviews_left,
                ),
            }
        )
        await self._ledger.close()
        await workflow.wait_condition(workflow.all_handlers_finished)
        workflow.continue_as_new(run, memo=_memo())

    def _status(self) -> RunStatusName:
        if self._ended:
            return self._ended
        if self._stuck.steps:
            return "stuck"
        kinds = {request.kind for request in self._gate.requests}
        if not kinds:
            return "running"
        return "awaiting_tool_result" if kinds == {"tool_result"} else "awaiting_approval"

    def _usage(self) -> Usage:
        return self._ledger.total + self.reuse.spent

    def _write_attributes(self) -> None:
        requests = self._gate.requests
        values: dict[str, Any] = {
            names.ATTRIBUTE_STATUS: self._status(),
            names.ATTRIBUTE_PENDING_APPROVALS: len(requests),
        }
        if requests:
            values[names.ATTRIBUTE_LATEST_REQUEST] = requests[-1].request_id
        updates: list[SearchAttributeUpdate[Any]] = []
        for name, value in values.items():
            first = {names.ATTRIBUTE_STATUS: "running", names.ATTRIBUTE_PENDING_APPROVALS: 0}
            if name in self._run.options.search_attributes and self._written.get(name, first.get(name)) != value:
                self._written[name] = value
                key: Any = (SearchAttributeKey.for_keyword if isinstance(value, str) else SearchAttributeKey.for_int)(
                    name
                )
                updates.append(key.value_set(value))
        if updates:
            workflow.upsert_search_attributes(updates)

    def _agents_of(self, key: str) -> tuple[int, int]:
        runs = self._runs_of(key)
        return len(runs), sum(sub_run.usage is not None for sub_run in runs)

    async def _end_agents(self, key: str) -> None:
        await self._end_sub_runs(self._runs_of(key))

    def _runs_of(self, key: str) -> list[SubRun]:
        place = names.sub_runs_place(key)
        return [sub_run for sub_run in self._sub_runs.values() if place in sub_run.workflow_id.rpartition("/")[2]]

    async def _end_sub_runs(self, sub_runs: list[SubRun], *, always: bool = False) -> None:
        """Cancel those of the runs that are open, since nobody waits for them any more, and take what they have used.

        always: the run itself has failed or is cancelled, where runs begun before the patch did it too.
        """
        left = [one for one in sub_runs if one.usage is None]
        if not left or not (workflow.patched(names.END_AGENTS) or always):
            return
        for one in left:
            try:
                await workflow.get_external_workflow_handle(one.workflow_id).cancel()
            except FailureError:
                workflow.logger.info("sub_run.gone", extra={"workflow_id": one.workflow_id})
                self._take_for_ended(one)
        if workflow.patched(names.END_AGENTS):
            with suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: all(self._sub_runs[one.workflow_id].usage is not None for one in left),
                    timeout=_END_OF_AGENTS,
                    timeout_summary="the end of agents that nobody waits for",
                )
            for one in left:
                self._take_for_ended(one)

    def _take_for_ended(self, sub_run: SubRun) -> None:
        if self._sub_runs[sub_run.workflow_id].usage is None:
            self._untold.add(sub_run.workflow_id)
            self._sub_runs[sub_run.workflow_id] = sub_run.model_copy(update={"usage": Usage()})
            self.show()

    async def _report(self, usage: Usage | None) -> bool:
        """Tell the run whose tool started this one. Gives whether it is still there."""
        parent = self._run.parent
        if parent is None:
            return False
        handle = workflow.get_external_workflow_handle(parent.workflow_id, run_id=parent.run_id)
        sub_run = SubRun(workflow_id=workflow.info().workflow_id, agent=self._run.agent, usage=usage)
        try:
            await handle.signal(names.REPORT_SUB_RUN, sub_run)
        except FailureError as error:
            workflow.logger.info("parent.gone", extra={"parent_id": parent.workflow_id})
            is_gone = _NOT_FOUND in str(error)  # Otherwise it only takes no more signals.
            if is_gone and usage is not None and workflow.patched(names.REPORT_AFTER_RESET):
                # If it was reset, its next execution has found this run and waits for it.
                with suppress(FailureError):
                    now = workflow.get_external_workflow_handle(parent.workflow_id)
                    await now.signal(names.REPORT_SUB_RUN, sub_run)
            return not is_gone
        return True


def _read(run: RawValue | None) -> tuple[RunInput, str]:
    """The input, and what is wrong with it."""
    nothing = RunInput(agent="?", prompt="?")
    if run is None:
        return nothing, "A run takes one input, and none was given."
    try:
        return RunInput.model_validate(workflow.payload_converter().from_payload(run.payload, Any)), ""
    except ValidationError as error:
        return nothing, f"The run's input cannot be read: {problems(error)}"
    except Exception as error:  # Whatever a converter makes of bytes that are no JSON.
        return nothing, f"The run's input cannot be read: {type(error).__name__}"


def _memo() -> dict[str, Any] | None:
    """Of the execution that goes on from this one. A list of runs tells it without reading a history."""
    try:
        memo = dict(workflow.memo())
    except Exception:  # Whatever a converter makes of what somebody wrote there: then it stays as it is.
        return None
    before, info = memo.get(names.MEMO_CONTINUED), workflow.info()
    began = before["started_at"] if before else info.workflow_start_time.isoformat()
    return {**memo, names.MEMO_CONTINUED: {"run_id": info.run_id, "started_at": began}}


def _bounded(output: RunOutput) -> RunOutput:
    if _size(output) <= LARGEST_OUTPUT_BYTES:
        return output
    output = output.model_copy(update={"messages": None})
    if (size := _size(output)) <= LARGEST_OUTPUT_BYTES:
        return output
    raise ApplicationError(output_too_large(size), type=names.OUTPUT_TOO_LARGE, non_retryable=True)


def _size(output: RunOutput) -> int:
    return len(output.model_dump_json().encode())
