"""Functions of the user's that are no tools: instructions, guardrails, predicates, hooks and handoff callbacks.

Each call of one is a step of the run: it may read clocks and call services like a tool, it is not called again on a
replay, and what it changes in the context comes back. Here is the workflow's side; `_called.py` has the worker's.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    GuardrailFunctionOutput,
    Handoff,
    MCPToolApprovalRequest,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    ToolGuardrailFunctionOutput,
)
from agents.tool_context import ToolContext
from pydantic import BaseModel, TypeAdapter
from pydantic_core import from_json, to_json
from temporalio.exceptions import ActivityError

from interlock.adapters._calls import placed, planned, type_of, used_in_vain
from interlock.adapters.openai_agents._scope import current_scope, ending, usage_of
from interlock.adapters.openai_agents._steps import step, until_done
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Json
from interlock.contracts.payloads import Usage as Used

_OF_BOTH = {
    "on_handoff": ("agent",),
    "on_tool_start": ("tool",),
    "on_tool_end": ("tool", "value"),
    "on_llm_start": ("value", "value"),
    "on_llm_end": ("response",),
}
AGENT_HOOKS: Mapping[str, tuple[str, ...]] = {"on_start": (), "on_end": ("output",), **_OF_BOTH}
RUN_HOOKS: Mapping[str, tuple[str, ...]] = {"on_agent_start": (), "on_agent_end": ("output",), **_OF_BOTH}
"""What each hook is given after the context and an agent. Agents and tools go by name: the worker has its own."""

H = TypeVar("H")

_GUARDED: TypeAdapter[GuardrailFunctionOutput] = TypeAdapter(GuardrailFunctionOutput)
_TOOL_GUARDED: TypeAdapter[ToolGuardrailFunctionOutput] = TypeAdapter(ToolGuardrailFunctionOutput)


class Callback(BaseModel):
    """What the activity of a callback gets.

    kind: `instructions`, `guardrail`, `predicate`, `hook` or `handoff`. slot: which function of the agent it is.
    given: its arguments beside context and agent, as JSON. tool_name, tool_call_id, tool_args: of the call it is about.
    """

    kind: str
    slot: str
    given: dict[str, Json] = {}
    tool_name: str = ""
    tool_call_id: str = ""
    tool_args: str = ""
    context: Json = None
    usage: Used | None = None
    serialized_run_context: dict[str, Json] = {}


class CallbackResult(BaseModel):
    """What a callback returned, as JSON, and the fields of the context that it changed.

    usage: of the model calls of agents that it ran; null when there were none.
    """

    value: Json = None
    changes: dict[str, Json] = {}
    usage: Used | None = None


def recorded_agent(agent: Agent[Any], made: Agent[Any]) -> None:
    """Have the copy of an agent call the agent's functions as steps."""
    if callable(agent.instructions):
        made.instructions = _instructions(agent)
    if callable(agent.prompt):
        made.prompt = _prompt(agent)
    for field in ("input_guardrails", "output_guardrails"):
        setattr(made, field, [_recorded(f"{field}:{at}", one) for at, one in enumerate(getattr(agent, field))])
    if agent.hooks is not None:
        made.hooks = _recorded_hooks(agent.hooks, AgentHooks(), AGENT_HOOKS, owner=agent.name)


def recorded_config(config: RunConfig) -> RunConfig:
    """The configuration of a run, with its guardrails as steps."""
    guardrails = {
        field: [_recorded(f"run.{field}:{at}", one) for at, one in enumerate(getattr(config, field) or [])]
        for field in ("input_guardrails", "output_guardrails")
    }
    return replace(config, **guardrails)  # type: ignore[arg-type]


def recorded_run_hooks(hooks: RunHooks[Any] | None) -> RunHooks[Any] | None:
    """The hooks of a run as steps."""
    return None if hooks is None else _recorded_hooks(hooks, RunHooks(), RUN_HOOKS)


def recorded_tool(agent: Agent[Any], tool: FunctionTool, made: FunctionTool) -> None:
    """Have the copy of a tool call the tool's functions as steps."""
    made.is_enabled = recorded_enabled(agent, f"tool:{tool.qualified_name}", tool.is_enabled)
    for field in ("tool_input_guardrails", "tool_output_guardrails"):
        guardrails = getattr(tool, field) or []
        copies = [
            replace(
                one,
                name=one.get_name(),
                guardrail_function=_tool_guardrail(agent, f"{field}:{tool.qualified_name}:{at}", one.get_name()),
            )
            for at, one in enumerate(guardrails)
        ]
        setattr(made, field, copies or None)


def recorded_enabled(agent: Agent[Any], slot: str, said: Any) -> Any:
    """A predicate for whether a tool or a handoff can be used now, as a step."""
    if isinstance(said, bool):
        return said

    async def enabled(context: Any, _: Any) -> bool:
        callback = Callback(kind="predicate", slot=f"enabled:{slot}")
        return bool(await _call(agent.name, callback, f"{slot.partition(':')[2]} enabled?", context))

    return enabled


async def recorded_needs_approval(
    agent: Agent[Any], tool: FunctionTool, ctx: ToolContext[Any], arguments: dict[str, Json]
) -> bool:
    """What the tool's function says of one call: whether it needs an approval."""
    name = tool.qualified_name
    callback = _about(ctx, Callback(kind="predicate", slot=f"needs_approval:{name}", given={"arguments": arguments}))
    return bool(await _call(agent.name, callback, f"{name} needs approval", ctx))


async def recorded_handoff(
    agent: Agent[Any], one: Handoff[Any, Any], ctx: RunContextWrapper[Any], arguments: str
) -> None:
    """The callback of a handoff."""
    callback = Callback(kind="handoff", slot=one.tool_name, given={"arguments": arguments})
    await _call(agent.name, callback, one.tool_name, ctx)


async def recorded_approval(agent: Agent[Any], server: str, request: MCPToolApprovalRequest) -> Any:
    """What the user's own function says of a call that a provider asks about."""
    callback = Callback(kind="predicate", slot=f"hosted:{server}", given={"request": as_json(request.data)})
    label = f"{request.data.name} of {server} approved?"
    return await _call(agent.name, callback, label, request.ctx_wrapper)


def _instructions(agent: Agent[Any]) -> Callable[..., Awaitable[str]]:
    async def instructions(context: Any, _: Any) -> str:
        callback = Callback(kind="instructions", slot="instructions")
        return str(await _call(agent.name, callback, agent.name, context))

    return instructions


def _recorded(slot: str, guardrail: Any) -> Any:
    name = guardrail.get_name()

    async def recorded(context: Any, agent: Agent[Any], about: Any) -> GuardrailFunctionOutput:
        callback = Callback(kind="guardrail", slot=slot, given={"about": as_json(about)})
        return _GUARDED.validate_python(await _call(agent.name, callback, name, context))

    return replace(guardrail, name=name, guardrail_function=recorded)


def _prompt(agent: Agent[Any]) -> Callable[..., Awaitable[Any]]:
    async def prompt(data: Any) -> Any:
        return await _call(agent.name, Callback(kind="instructions", slot="prompt"), agent.name, data.context)

    return prompt


def _tool_guardrail(agent: Agent[Any], slot: str, name: str) -> Callable[..., Awaitable[ToolGuardrailFunctionOutput]]:
    async def guardrail(data: Any) -> ToolGuardrailFunctionOutput:
        given = {"output": as_json(data.output)} if hasattr(data, "output") else {}
        callback = _about(data.context, Callback(kind="guardrail", slot=slot, given=given))
        return _TOOL_GUARDED.validate_python(await _call(agent.name, callback, name, data.context))

    return guardrail


def _recorded_hooks(hooks: Any, made: H, known: Mapping[str, tuple[str, ...]], owner: str = "") -> H:
    """Hooks that call those which the user has written, each call a step. owner: the agent that has them; the run's
    own without one."""
    for name, kinds in known.items():
        if getattr(getattr(hooks, name), "__func__", None) is not getattr(type(made), name):
            setattr(made, name, _hook(name, ("agent", *kinds), owner))
    return made


def _hook(name: str, kinds: tuple[str, ...], owner: str) -> Callable[..., Awaitable[None]]:
    async def hook(context: Any, *args: Any, **named: Any) -> None:
        rest = [*args, *named.values()]
        given = [_argument(kind, value) for kind, value in zip(kinds, rest, strict=True)]
        callback = Callback(kind="hook", slot=name if owner else f"run.{name}", given={"args": given})
        callback = _about(context, callback) if isinstance(context, ToolContext) else callback
        agent = owner or rest[0].name  # The agent that hands over is told of the other one.
        await _call(agent, callback, f"{name} of {agent}", context)

    return hook


def _argument(kind: str, value: Any) -> Json:
    if kind == "agent":
        return str(value.name)
    return str(getattr(value, "qualified_name", None) or value.name) if kind == "tool" else as_json(value)


def _about(ctx: ToolContext[Any], callback: Callback) -> Callback:
    return callback.model_copy(
        update={"tool_name": ctx.tool_name, "tool_call_id": ctx.tool_call_id, "tool_args": ctx.tool_arguments}
    )


async def _call(agent: str, callback: Callback, label: str, ctx: RunContextWrapper[Any]) -> Any:
    scope = current_scope.get()
    assert scope, "A recorded callback is only used inside a run."
    what, usage = f"{callback.kind} {label}", usage_of(ctx.usage, 0)

    path = scope.path_to(agent)

    async def make() -> CallbackResult:
        context = scope.context.dump()
        told = scope.told(path, callback.tool_call_id)
        with scope.gate.step() as inside:
            told |= {"interlock_step": inside.key} if inside.key else {}
            given = callback.model_copy(update={"context": context, "usage": usage, "serialized_run_context": told})
            try:
                with planned(what, call=digest([callback.slot, callback.given])):
                    activity = names.callback_activity(agent, callback.kind)
                    result: CallbackResult = await step(activity, given, CallbackResult, scope.retries.tool)
            except ActivityError as error:
                inside.used(used_in_vain(error))
                raise
            inside.used(result.usage or Used())
        scope.context.change(context, result.changes, f"The {what}")
        return result

    async def within_the_budget() -> CallbackResult:
        while True:
            try:
                return await make()
            except ActivityError as error:
                if type_of(error) == names.BUDGET_USED_UP and error.cause is not None:
                    raise error.cause from None
                if type_of(error) != names.NO_ROOM:
                    raise
            async with scope.gate.model_call(path):
                pass  # There is room again, for a call of the agent that it runs.

    with ending(scope), placed(scope.place_of(callback.tool_call_id)) if callback.tool_call_id else nullcontext():
        return (await until_done(scope, what, within_the_budget)).value


def as_json(value: Any) -> Json:
    """A value of the SDK's, or of the user's, as JSON; as text where it has no such form."""
    try:
        written: Json = from_json(to_json(value))
        return written
    except ValueError:
        return str(value)
