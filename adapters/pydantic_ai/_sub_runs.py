"""What goes into the run of an agent that a tool runs, and what comes back as the framework's own result."""

from collections.abc import Sequence
from typing import Any, Union, cast

from pydantic import TypeAdapter
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.exceptions import UserError
from pydantic_ai.run import AgentRunResult
from pydantic_core import from_json, to_json

from interlock.adapters.pydantic_ai._json import MESSAGES, as_prompt
from interlock.adapters.pydantic_ai._scope import run_usage
from interlock.contracts.payloads import Account, Parent, RunInput, RunOptions, RunOutput
from interlock.contracts.ports import event_sink


def sub_run_input(
    agent: str, ctx: RunContext[Any], of: Agent[Any, Any], parent: Parent, account: Account | None, key_root: str
) -> RunInput:
    """The input of the new run, from what the tool called the agent with. account, key_root: as in `RunInput`."""
    if not ctx.prompt:
        raise UserError(f"Agent {agent!r} was run by a tool without a prompt; a run of its own needs one.")
    return RunInput(
        agent=agent,
        prompt=as_prompt(ctx.prompt),
        deps=from_json(to_json(ctx.deps)),
        message_history=MESSAGES.dump_python(ctx.messages, mode="json") if ctx.messages else None,
        model=ctx.model_id if ctx.model is not of.model else None,
        model_settings=cast("dict[str, Any] | None", ctx.model_settings),
        usage_limits=from_json(to_json(ctx.usage_limits)) if ctx.usage_limits else None,
        parent=parent,
        options=RunOptions(stream=event_sink.get() is not None),
        account=account,
        key_root=key_root,
    )


def sub_run_result(agent: Agent[Any, Any], output: RunOutput) -> AgentRunResult[Any]:
    """The output of the run as the agent would have given it."""
    value = TypeAdapter(_output_types(agent.output_type)).validate_python(output.output)
    used = run_usage(output.usage)
    result: AgentRunResult[Any] = TypeAdapter(AgentRunResult[Any]).validate_python(
        {"output": None, "messages": output.messages or [], "usage": used}
    )
    result.output = value
    return result


def _output_types(spec: Any) -> Any:
    """The type of an agent's output, whatever markers its output types wear."""
    if isinstance(spec, ToolOutput):
        return spec.output
    if isinstance(spec, NativeOutput | PromptedOutput):
        return _output_types(spec.outputs)
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return Union[tuple(_output_types(one) for one in spec)]  # noqa: UP007 - the members are only known here
    if callable(spec) and not isinstance(spec, type):
        return Any
    return spec
