"""Agents of the OpenAI Agents SDK of which one place of the user's code fails, for every place there is.

The context of a run says which: `{"place": ..., "kind": ...}`. What is of all runs fails for those of its place.
"""

from collections.abc import Callable
from types import new_class
from typing import Annotated, Any

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    Model,
    ModelProvider,
    OutputGuardrail,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
    handoff,
)
from agents.mcp import MCPServer
from agents.run import CallModelData, ModelInputData
from mcp.types import Tool as MCPTool
from pydantic import AfterValidator, BaseModel
from pydantic_core import to_json

from tests.openai_agents.scripts import Script, call
from tests.workflows.failing import fail

CALL = [call("look", "a", order="A-1")]
HANDOFF = [call("transfer_to_next", "h")]

AGENT_HOOKS = [
    *("on_start", "on_end", "on_handoff", "on_tool_start", "on_tool_end", "on_llm_start", "on_llm_end"),
]
RUN_HOOKS = [
    *("on_agent_start", "on_agent_end", "on_handoff", "on_tool_start", "on_tool_end", "on_llm_start", "on_llm_end"),
]


def by_context(ctx: Any, *_: Any) -> Any:
    fail(ctx.context["kind"])


async def by_context_async(ctx: Any, *_: Any, **__: Any) -> Any:
    fail(ctx.context["kind"])


def here(ctx: Any, place: str) -> None:
    """Fail in the runs of this place."""
    if ctx.context["place"] == place:
        fail(ctx.context["kind"])


def fine(order: str) -> str:
    return order


def look(**options: Any) -> Any:
    return function_tool(fine, name_override="look", failure_error_function=None, **options)


def hooks_of(base: type[Any], name: str, prefix: str = "") -> Any:
    async def hook(self: Any, context: Any, *args: Any, **named: Any) -> None:
        here(context, f"{prefix}{name}")

    return new_class(f"Fails_{name}", (base,), {}, lambda body: body.update({name: hook}))()


def _agent(name: str, script: Script | None = None, **options: Any) -> Agent[Any]:
    return Agent(name=name, model=script or Script(CALL, "done"), **options)


def _next(name: str) -> Agent[Any]:
    return Agent(name=f"{name}_next", model=Script(HANDOFF, "done"))


def _handing_over(name: str, *, hooks: Any = None, **options: Any) -> Agent[Any]:
    one = handoff(_next(name), tool_name_override="transfer_to_next", **options)
    return _agent(name, Script(HANDOFF, "done"), handoffs=[one], hooks=hooks)


def _hooked(name: str) -> Callable[[str], Agent[Any]]:
    hooks = hooks_of(AgentHooks, name)
    if name == "on_handoff":
        return lambda agent_name: _handing_over(agent_name, hooks=hooks)
    return lambda agent_name: _agent(agent_name, tools=[look()], hooks=hooks)


def _run_hooked(name: str) -> Callable[[str], Agent[Any]]:
    return _handing_over if name == "on_handoff" else lambda agent_name: _agent(agent_name, tools=[look()])


def _failing_model(name: str) -> Agent[Any]:
    return _agent(name, Script(lambda items: fail(str(items[0]["content"]))))


class Provider(ModelProvider):
    """The models of those who go by name. The name says how it fails."""

    def get_model(self, model_name: str | None) -> Model:
        fail((model_name or "").removeprefix("fails-"))
        raise AssertionError


class Shelf(MCPServer):
    """A server of this process, of which one method fails. place: which."""

    def __init__(self, name: str, place: str, **options: Any) -> None:
        super().__init__(**options)
        self._name = name
        self._place = place

    @property
    def name(self) -> str:
        return self._name

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        if self._place == "listing" and run_context is not None:
            by_context(run_context)
        schema = {"type": "object", "properties": {"kind": {"type": "string"}}}
        return [MCPTool(name="look", input_schema=schema, description="")]

    async def call_tool(self, tool_name: str, arguments: Any, *args: Any, **named: Any) -> Any:
        return fail(arguments["kind"])

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


def _shelved(place: str, **options: Any) -> Callable[[str], Agent[Any]]:
    def made(name: str) -> Agent[Any]:
        script = Script(lambda items: [call("look", "a", kind=str(items[0]["content"]))], "done")
        server = Shelf(f"shelf-{name}", place, failure_error_function=None, **options)
        return _agent(name, script, mcp_servers=[server])

    return made


def by_value(value: str) -> str:
    return str(fail(value))


def _with_output_type(name: str) -> Agent[Any]:
    said = Script(lambda items: to_json({"kind": str(items[0]["content"])}).decode())
    return _agent(name, said, output_type=Kind)


def tool(ctx: RunContextWrapper[Any], order: str) -> str:
    return str(fail(ctx.context["kind"]))


async def async_tool(ctx: RunContextWrapper[Any], order: str) -> str:
    return str(fail(ctx.context["kind"]))


class Kind(BaseModel):
    kind: Annotated[str, AfterValidator(by_value)]


def takes_kind(given: Kind) -> str:
    return given.kind


def _taking(name: str) -> Agent[Any]:
    script = Script(lambda items: [call("takes_kind", "a", given={"kind": str(items[0]["content"])})], "done")
    return _agent(name, script, tools=[function_tool(takes_kind, failure_error_function=None)])


def _around(name: str, **options: Any) -> Agent[Any]:
    """An agent with another one for a tool."""
    inner = _agent(f"{name}_inner", Script("inner"))
    given = {"failure_error_function": None, **options}
    script = Script([call("inner", "a", input="go")], "done")
    return _agent(name, script, tools=[inner.as_tool("inner", "", **given)])


def _failing_inside(name: str) -> Agent[Any]:
    inner = _agent(f"{name}_inner", tools=[function_tool(tool, name_override="look", failure_error_function=None)])
    script = Script([call("inner", "a", input="go")], "done")
    return _agent(name, script, tools=[inner.as_tool("inner", "", failure_error_function=None)])


async def extracts(result: Any) -> str:
    return str(fail(result.context_wrapper.context["kind"]))


def filters_handoff(data: Any) -> Any:
    return fail(data.run_context.context["kind"])


def filters_all(data: Any) -> Any:
    here(data.run_context, "run's handoff input filter")
    return data


def filters_request(data: CallModelData[Any]) -> ModelInputData:
    here(data, "call model input filter")
    return data.model_data


def guards(prefix: str) -> Any:
    """A guardrail that fails in the runs of its place, and otherwise lets everything pass."""

    async def guard(ctx: Any, agent: Any, about: Any) -> GuardrailFunctionOutput:
        here(ctx, prefix)
        return GuardrailFunctionOutput(None, False)

    return guard


async def guards_call(data: Any) -> ToolGuardrailFunctionOutput:
    by_context(data.context)
    return ToolGuardrailFunctionOutput.allow()


def prompts(data: Any) -> Any:
    by_context(data.context)


IN_WORKFLOW = [
    *("handoff input filter", "run's handoff input filter", "call model input filter"),
    *("custom output extractor", "tool use behavior", "output type"),
]
"""What runs in the workflow itself."""

PLACES: dict[str, Callable[[str], Agent[Any]]] = {
    **{name: _hooked(name) for name in AGENT_HOOKS},
    **{f"run's {name}": _run_hooked(name) for name in RUN_HOOKS},
    "instructions": lambda name: _agent(name, instructions=by_context_async),
    "sync instructions": lambda name: _agent(name, instructions=lambda ctx, agent: by_context(ctx)),
    "prompt": lambda name: _agent(name, prompt=prompts),
    "input guardrail": lambda name: _agent(name, Script("done"), input_guardrails=[InputGuardrail(by_context_async)]),
    "input guardrail first": lambda name: _agent(
        name, Script("done"), input_guardrails=[InputGuardrail(by_context_async, run_in_parallel=False)]
    ),
    "output guardrail": lambda name: _agent(
        name, Script("done"), output_guardrails=[OutputGuardrail(by_context_async)]
    ),
    "run's input guardrail": lambda name: _agent(name, Script("done")),
    "run's output guardrail": lambda name: _agent(name, Script("done")),
    "tool input guardrail": lambda name: _agent(
        name, tools=[look(tool_input_guardrails=[ToolInputGuardrail(guards_call)])]
    ),
    "tool output guardrail": lambda name: _agent(
        name, tools=[look(tool_output_guardrails=[ToolOutputGuardrail(guards_call)])]
    ),
    "is_enabled": lambda name: _agent(name, tools=[look(is_enabled=lambda ctx, agent: by_context(ctx))]),
    "handoff's is_enabled": lambda name: _handing_over(name, is_enabled=lambda ctx, agent: by_context(ctx)),
    "needs_approval": lambda name: _agent(name, tools=[look(needs_approval=by_context_async)]),
    "needs_approval of an agent": lambda name: _around(name, needs_approval=by_context_async),
    "on_handoff callback": lambda name: _handing_over(name, on_handoff=lambda ctx: by_context(ctx)),
    "handoff input filter": lambda name: _handing_over(name, input_filter=filters_handoff),
    "run's handoff input filter": _handing_over,
    "call model input filter": lambda name: _agent(name),
    "custom output extractor": lambda name: _around(name, custom_output_extractor=extracts),
    "tool use behavior": lambda name: _agent(name, tools=[look()], tool_use_behavior=by_context),
    "output type": _with_output_type,
    "tool": lambda name: _agent(name, tools=[function_tool(tool, name_override="look", failure_error_function=None)]),
    "async tool": lambda name: _agent(
        name, tools=[function_tool(async_tool, name_override="look", failure_error_function=None)]
    ),
    "tool of an agent that is a tool": _failing_inside,
    "argument": _taking,
    "tool's error function": lambda name: _agent(
        name, tools=[function_tool(tool, name_override="look", failure_error_function=by_context)]
    ),
    "listing of a server": _shelved("listing"),
    "call of a server": _shelved("calling"),
    "needs_approval of a server": _shelved("none", require_approval=by_context_async),
    "model": _failing_model,
    "model provider": lambda name: Agent(name=name),
}
"""Agents by what of them fails."""


def run_config() -> RunConfig:
    """What fails for the runs of its place."""
    return RunConfig(
        model_provider=Provider(),
        input_guardrails=[InputGuardrail(guards("run's input guardrail"))],
        output_guardrails=[OutputGuardrail(guards("run's output guardrail"))],
        handoff_input_filter=filters_all,
        call_model_input_filter=filters_request,
    )


def run_hooks() -> RunHooks[Any]:
    """Hooks of runs that fail each in the runs of its place."""
    made = {name: getattr(type(hooks_of(RunHooks, name, "run's ")), name) for name in RUN_HOOKS}
    hooks: RunHooks[Any] = new_class("Hooks", (RunHooks,), {}, lambda body: body.update(made))()
    return hooks
