"""Runs workflow code, and tells it of a cancellation that has come in the same task as other messages."""

from contextvars import ContextVar

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

is_cancelling: ContextVar[bool] = ContextVar("interlock_is_cancelling", default=False)
"""Whether the task at hand cancels the run. For validators only: a replay does not see it at the same messages."""


class RunRunner(UnsandboxedWorkflowRunner):
    """The SDK's runner. Left alone, it shows workflow code a cancellation last, whenever it came."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        instance = super().create_instance(det)
        activate = instance.activate

        def activated(act: WorkflowActivation) -> WorkflowActivationCompletion:
            is_cancelling.set(any(job.HasField("cancel_workflow") for job in act.jobs))
            return activate(act)

        instance.activate = activated  # type: ignore[method-assign]
        return instance
