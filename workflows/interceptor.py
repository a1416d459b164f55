"""Gives runs the agents of their worker, and each activity the summary that a person understands."""

from temporalio import workflow
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.ports import Runners, activity_plan
    from interlock.workflows.agent import AgentWorkflow, worker_runners


class _Outbound(WorkflowOutboundInterceptor):
    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[object]:
        plan = activity_plan.get()
        if plan is not None and input.activity != names.DESCRIBE_TOOL:
            input.summary = plan.summary
        run = workflow.instance()
        if not isinstance(run, AgentWorkflow):
            return super().start_activity(input)
        label = input.summary or input.activity
        run.started(label)
        handle = super().start_activity(input)
        handle.add_done_callback(lambda _: run.finished(label))
        return handle


class _Inbound(WorkflowInboundInterceptor):
    runners: Runners

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> object:
        worker_runners.set(self.runners)
        return await super().execute_workflow(input)


class RunInterceptor(Interceptor):
    """The worker's interceptor for runs. runners: the worker's agents, by name."""

    def __init__(self, runners: Runners) -> None:
        self._bound = type("BoundInbound", (_Inbound,), {"runners": runners})

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See `Interceptor`."""
        return self._bound
