"""Gives runs the agents of their worker, and each activity the summary that a person understands."""

import asyncio
import dataclasses
from collections.abc import Sequence
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.payloads import Message, Payload
    from interlock.contracts.places import MODEL_SUFFIXES
    from interlock.contracts.ports import Body, Unreadable, activity_plan, place
    from interlock.workflows.agent import AgentWorkflow, WorkerAgents, worker_agents
    from interlock.workflows.conversation import Sent
    from interlock.workflows.guard import is_cancelling

_RECALL_TIMEOUT = timedelta(minutes=1)
_RECALL_HEARTBEAT = timedelta(seconds=8)
_SILENT = (names.DESCRIBE_TOOL, names.RECORD_VERDICT)


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[object]:
        if (body := _body(input.activity)) is None:
            return self._start_activity(input)
        handle: workflow.ActivityHandle[object] = body.handle or body.begun(self._start_activity(input))
        return handle

    async def start_child_workflow(
        self, input: StartChildWorkflowInput
    ) -> workflow.ChildWorkflowHandle[object, object]:
        if (body := _body(input.workflow)) is None:
            return await super().start_child_workflow(input)
        handle: workflow.ChildWorkflowHandle[object, object] = body.handle or body.begun(
            await super().start_child_workflow(input)
        )
        return handle

    def _start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[object]:
        plan = activity_plan.get()
        if plan is not None and input.activity != names.DESCRIBE_TOOL:
            input.summary = plan.summary
            if plan.retries is not None:
                input.retry_policy = _with_never_retried(plan.retries, input.retry_policy)
        run = workflow.instance()
        if not isinstance(run, AgentWorkflow):
            return super().start_activity(input)
        step = _named(input, run, plan.call if plan else "")
        label = input.summary or input.activity
        sent = _without_what_was_said(input, run, step) if input.activity.endswith(MODEL_SUFFIXES) else None
        run.started(label)
        handle = super().start_activity(input)
        if sent is not None:
            handle.add_done_callback(lambda done: _answered(run, sent, done))
        handle.add_done_callback(lambda done: _finished(run, label, done))
        return handle


class _Inbound(WorkflowInboundInterceptor):
    agents: WorkerAgents

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def handle_signal(self, input: HandleSignalInput) -> None:
        if why := _why_refused(input.args):
            # Left alone it would fail the workflow task, again and again.
            workflow.logger.warning("signal.refused", extra={"signal": input.signal, "why": why})
            return
        await super().handle_signal(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        if why := _why_refused(input.args):
            raise RefusedError(f"{input.update} was refused. {why}")
        if is_cancelling.get():
            # Taken, it would be undone in the same task: its sender would have a receipt for what never happens.
            raise RefusedError(f"{input.update} was refused. The run is being cancelled: nothing is decided any more.")
        super().handle_update_validator(input)

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> object:
        worker_agents.set(self.agents)
        return await super().execute_workflow(input)


def _body(name: str) -> Body | None:
    """What is begun under this name when it is the body of the tool call that is made in this context."""
    plan = activity_plan.get()
    return plan.body if plan is not None and name.endswith(names.CALL_TOOL_SUFFIXES) else None


def _finished(run: AgentWorkflow, label: str, done: "asyncio.Future[object]") -> None:
    run.finished(label)
    if not done.cancelled():
        done.exception()  # Of a call that nobody waits for any more it would be logged as lost.


def _named(input: StartActivityInput, run: AgentWorkflow, call: str) -> str:
    """Write into the history which step of the run this is, for forks of it; in a fork, take its result over. Returns
    the name of the step."""
    reuse = run.reuse
    step = reuse.step(input.activity)
    to_payload = workflow.payload_converter().to_payload
    input.headers = {
        **input.headers,
        names.HEADER_STEP: to_payload(step),
        **({names.HEADER_CALL: to_payload(call)} if call else {}),
        **({names.HEADER_STREAM: to_payload(True)} if run.is_streamed() and input.activity not in _SILENT else {}),
    }
    if (result := reuse.result(step, call)) is not None:
        given = _readable(input.args[0]) if input.args else None
        input.activity, input.arg_types = names.RECALL_STEP, None
        input.args = [result.model_copy(update={"given": given})]
        input.start_to_close_timeout, input.heartbeat_timeout = _RECALL_TIMEOUT, _RECALL_HEARTBEAT
        input.summary = f"{input.summary or step} (reused)"
    return step


def _without_what_was_said(input: StartActivityInput, run: AgentWorkflow, step: str) -> Sent | None:
    """Write only those of a model call's messages into the history that are new."""
    given = input.args[0] if input.args else None
    found = run.conversations.sent(given, step=step, place=place.get(), activity=input.activity)
    if found is None:
        return None
    payload, sent = found
    input.args, input.arg_types = [RawValue(payload), *input.args[1:]], None
    return sent


def _answered(run: AgentWorkflow, sent: Sent, done: "asyncio.Future[object]") -> None:
    if done.cancelled():
        return
    error = done.exception()
    if error is None:
        run.conversations.answered(sent)
    elif getattr(error.__cause__, "type", "") == names.CONVERSATION_LOST:
        run.conversations.forget(sent.place)


def _readable(given: object) -> dict[str, object]:
    """What readers of a history look for in the input of a step."""
    if isinstance(given, Payload):
        return given.model_dump(mode="json")
    context = getattr(given, "serialized_run_context", None) or {}
    told = {key: value for key, value in context.items() if key.startswith("interlock_") or key == "tool_call_id"}
    call = {key: getattr(given, key) for key in ("name", "tool_args") if hasattr(given, key)}
    return {**call, "serialized_run_context": told}


def _with_never_retried(policy: RetryPolicy, of: RetryPolicy | None) -> RetryPolicy:
    never = [*(policy.non_retryable_error_types or ()), *((of and of.non_retryable_error_types) or ())]
    return dataclasses.replace(policy, non_retryable_error_types=list(dict.fromkeys(never)))


def _why_refused(args: Sequence[object]) -> str:
    """What keeps the arguments from being one message; empty when nothing does."""
    if len(args) != 1:
        return f"It takes one message as its only argument; {len(args)} arguments were given."
    if isinstance(args[0], Unreadable):
        return args[0].why
    return "" if isinstance(args[0], Message) else "It takes a message; what was given is none."


class RunInterceptor(Interceptor):
    """The worker's interceptor for runs. agents: the worker's."""

    def __init__(self, agents: WorkerAgents) -> None:
        self._bound = type("BoundInbound", (_Inbound,), {"agents": agents})

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See `Interceptor`."""
        return self._bound
