"""`@task.agent_workflow`: the function returns the prompt."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.bases.decorator import (
    DecoratedOperator,
    TaskDecorator,
    task_decorator_factory,
)
from airflow.sdk.definitions.context import Context, context_merge

from interlock.bridge._airflow import determine_kwargs
from interlock.bridge.identity import TaskIdentity
from interlock.bridge.operators import AgentWorkflowOperator, is_known
from interlock.bridge.outcome import Waited
from interlock.bridge.starting import attaches
from interlock.client import Client
from interlock.contracts.payloads import RunInput


class _AgentDecoratedOperator(DecoratedOperator, AgentWorkflowOperator):
    """An `AgentWorkflowOperator` whose prompt a function makes.

    The function runs once for a run, when it is started: a retry that finds the run again does not call it.
    """

    custom_operator_name = "@task.agent_workflow"
    template_fields: Sequence[str] = (*DecoratedOperator.template_fields, *AgentWorkflowOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **AgentWorkflowOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if "prompt" in kwargs:
            raise TypeError("@task.agent_workflow takes no prompt: the function returns it.")
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)
        self._has_prompt = False

    def execute(self, context: Context) -> Any:
        """Make the prompt, unless the task has a run already, then as the operator does."""
        task = TaskIdentity.of(context)
        place, known = self.workflow_id or "", is_known(context, task)
        self._needs_input = not self._do(
            None, lambda client: attaches(client, task, self.policies, workflow_id=place, known=known)
        )
        if self._needs_input:
            self._make_prompt(context)
        return AgentWorkflowOperator.execute(self, context)

    def _begin(self, context: Any) -> Waited:
        try:
            return super()._begin(context)
        except _NoPromptError:  # It had a run, which is gone, or had done nothing when it ended.
            self._make_prompt(context)
            return super()._begin(context)

    def _make_prompt(self, context: Context) -> None:
        # What it returns is no template: it is made of what others have written, customers and models among them.
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        self.prompt = self.python_callable(*self.op_args, **kwargs)
        self._has_prompt = True

    def _input(self, client: Client, context: Any, prompt: Any) -> RunInput:
        if not self._has_prompt:
            raise _NoPromptError
        return super()._input(client, context, prompt)


class _NoPromptError(Exception):
    """A run is to be started, and the function was not called yet."""


def agent_workflow_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Run an agent with the prompt that the decorated function returns. The arguments: see `AgentWorkflowOperator`.

    Used as `@task.agent_workflow(agent="support")`.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=_AgentDecoratedOperator, **kwargs
    )
