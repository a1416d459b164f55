"""The worker's side of callbacks: calls the user's functions with what the workflow sent."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    GenerateDynamicPromptData,
    GuardrailFunctionOutput,
    HostedMCPTool,
    MCPToolApprovalRequest,
    ModelResponse,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    UserError,
)
from agents.tool_context import ToolContext
from agents.tool_guardrails import ToolInputGuardrailData, ToolOutputGuardrailData
from openai.types.responses.response_output_item import McpApprovalRequest

from interlock.adapters.openai_agents._callbacks import AGENT_HOOKS, RUN_HOOKS, Callback, CallbackResult, as_json
from interlock.adapters.openai_agents._context import ContextType, changes_of
from interlock.adapters.openai_agents._converter import InterlockOpenAIConverter
from interlock.adapters.openai_agents._graph import Running, function_tools
from interlock.adapters.openai_agents._hosted import label_of
from interlock.adapters.openai_agents._results import typed_output
from interlock.adapters.openai_agents._scope import sdk_usage
from interlock.contracts.payloads import Usage as Used

_CONVERTER = InterlockOpenAIConverter()


class Callbacks:
    """Calls the functions of the agents of a graph.

    agents: by name. running: what their runs are given. tool: finds a tool by its agent, its name and the context.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any]],
        context: ContextType,
        running: Running,
        tool: Callable[[str, str, Any], Awaitable[FunctionTool]],
    ) -> None:
        self._agents = agents
        self._running = running
        self._context = context
        self._tool = tool

    async def call(self, agent: str, callback: Callback) -> CallbackResult:
        """Call a function of the agent's. Raises what it raises."""
        context = self._context.load(callback.context)
        before = self._context.dump(context)
        value = await self._value(self._agents[agent], callback, context)
        return CallbackResult(value=as_json(value), changes=changes_of(before, self._context.dump(context)))

    async def _value(self, agent: Agent[Any], callback: Callback, context: Any) -> Any:
        what, _, rest = callback.slot.partition(":")
        ctx = _wrapper(agent, callback, context)
        given = callback.given
        if callback.kind == "hook":
            return await self._hook(agent, callback, ctx)
        if what == "instructions":
            return await _result(agent.instructions, ctx, agent)
        if what == "prompt":
            return await _result(agent.prompt, GenerateDynamicPromptData(context=ctx, agent=agent))
        if what.endswith((".input_guardrails", ".output_guardrails")) or what in (
            "input_guardrails",
            "output_guardrails",
        ):
            owner: Any = self._running.config if what.startswith("run.") else agent
            guardrail = getattr(owner, what.removeprefix("run."))[int(rest)]
            about = typed_output(agent, given["about"]) if what.endswith("output_guardrails") else given["about"]
            return _guarded(guardrail, await _result(guardrail.guardrail_function, ctx, agent, about))
        if what in ("tool_input_guardrails", "tool_output_guardrails"):
            return await self._tool_guardrail(agent, what, rest, ctx, given)
        if what == "needs_approval":
            tool = await self._tool(agent.name, rest, context)
            return await _result(tool.needs_approval, ctx, given["arguments"], callback.tool_call_id)
        if what == "hosted":
            hosted = next(one for one in agent.tools if isinstance(one, HostedMCPTool) and label_of(one) == rest)
            request = MCPToolApprovalRequest(ctx, McpApprovalRequest.model_validate(given["request"]))
            return await _result(hosted.on_approval_request, request)
        if what == "enabled":
            return await _result(self._predicate(agent, rest), ctx, agent)
        handoff = next(one for one in agent.handoffs if getattr(one, "tool_name", None) == callback.slot)
        await handoff.on_invoke_handoff(ctx, given["arguments"])  # type: ignore[union-attr]
        return None

    async def _tool_guardrail(self, agent: Agent[Any], what: str, rest: str, ctx: Any, given: Any) -> Any:
        name, _, at = rest.rpartition(":")
        guardrail = getattr(await self._tool(agent.name, name, ctx.context), what)[int(at)]
        data = ToolInputGuardrailData(context=ctx, agent=agent)
        if what == "tool_output_guardrails":
            data = ToolOutputGuardrailData(context=ctx, agent=agent, output=given["output"])
        return _guarded(guardrail, await _result(guardrail.guardrail_function, data), ToolGuardrailFunctionOutput)

    def _predicate(self, agent: Agent[Any], slot: str) -> Any:
        what, _, name = slot.partition(":")
        if what == "tool":
            return function_tools(agent)[name].is_enabled
        return next(one for one in agent.handoffs if getattr(one, "tool_name", None) == name).is_enabled  # type: ignore[union-attr]

    async def _hook(self, agent: Agent[Any], callback: Callback, ctx: Any) -> None:
        of_run = callback.slot.startswith("run.")
        name = callback.slot.removeprefix("run.")
        kinds = (RUN_HOOKS if of_run else AGENT_HOOKS)[name]
        given: Any = callback.given["args"]
        args = [await self._argument(agent, kind, one, ctx) for kind, one in zip(("agent", *kinds), given, strict=True)]
        await getattr(self._running.hooks if of_run else agent.hooks, name)(ctx, *args)

    async def _argument(self, agent: Agent[Any], kind: str, given: Any, ctx: Any) -> Any:
        if kind == "agent":
            return self._agents[given]
        if kind == "tool":
            return await self._tool(agent.name, given, ctx.context)
        if kind == "response":
            return _CONVERTER.from_payload(_CONVERTER.to_payload(given), ModelResponse)  # As the run has read it.
        return typed_output(agent, given) if kind == "output" else given


def _wrapper(agent: Agent[Any], callback: Callback, context: Any) -> Any:
    usage = sdk_usage(callback.usage or Used())
    if not callback.tool_name:
        return RunContextWrapper(context, usage=usage)
    return ToolContext(
        context=context,
        usage=usage,
        tool_name=callback.tool_name,
        tool_call_id=callback.tool_call_id,
        tool_arguments=callback.tool_args,
        agent=agent,
    )


def _guarded(guardrail: Any, value: Any, kind: type[Any] = GuardrailFunctionOutput) -> Any:
    """What a guardrail has returned, which the SDK would take for a verdict whatever it is."""
    if not isinstance(value, kind):
        raise UserError(f"Guardrail {guardrail.get_name()!r} returned {type(value).__name__}, not {kind.__name__}.")
    return value


async def _result(function: Any, *args: Any) -> Any:
    value = function(*args)
    return await value if inspect.isawaitable(value) else value
