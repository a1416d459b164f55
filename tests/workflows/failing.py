"""Agents of which one place of the user's code fails, for every place there is."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel
from pydantic_ai import Agent, RunContext, TextOutput, Tool
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.toolsets._dynamic import DynamicToolset
from temporalio.common import RetryPolicy

from interlock.adapters.pydantic_ai import Durable
from tests.workflows.scripts import Script, agent, call, prompt_of


class NewError(Exception):
    pass


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")


class QuittingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(9)


class OddError(Exception):
    """Holds what no JSON and no pickle can hold."""

    def __init__(self) -> None:
        super().__init__(object(), lambda: None)


class Base(BaseException):
    pass


def _chain() -> Exception:
    error: Exception = NewError("the first")
    for number in range(2_000):
        later = NewError(f"number {number}")
        later.__cause__ = error
        error = later
    return error


def _circle() -> Exception:
    one, other = NewError("one"), NewError("other")
    one.__cause__, other.__cause__ = other, one
    return one


KINDS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "new": (lambda: NewError("boom"), "NewError"),
    "mute": (MuteError, "MuteError"),
    "quitting": (QuittingError, "QuittingError"),
    "odd": (OddError, "OddError"),
    "huge": (lambda: NewError("x" * 3_000_000), "NewError"),
    "no text": (lambda: NewError("a\ud800b"), "NewError"),
    "chain": (_chain, "NewError"),
    "circle": (_circle, "NewError"),
    "group of one": (lambda: ExceptionGroup("group", [NewError("boom")]), "NewError"),
    "group": (lambda: BaseExceptionGroup("group", [NewError("boom"), SystemExit(1)]), "BaseExceptionGroup"),
    "base": (lambda: Base("base"), "Base"),
    "exit": (lambda: SystemExit(3), "SystemExit"),
    "interrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "closing": (GeneratorExit, "GeneratorExit"),
    "cancelled": (lambda: asyncio.CancelledError("not by anybody"), "CancelledError"),
    "no more": (lambda: StopAsyncIteration("no more"), "StopAsyncIteration"),
    "timeout": (lambda: TimeoutError("late"), "TimeoutError"),
}
"""What is raised, with the type that the run is to end with."""


def fail(kind: str) -> Any:
    error, _ = KINDS[kind]
    raise error()


ONCE = RetryPolicy(maximum_attempts=1)
CALL = [call("look", "a", order="A-1")]


def look(order: str) -> str:
    return order


def by_deps(ctx: RunContext[Any], *_: Any) -> Any:
    fail(ctx.deps)


async def by_deps_async(ctx: RunContext[str], *_: Any) -> Any:
    fail(ctx.deps)


def by_value(value: str) -> str:
    return str(fail(value))


def tool(ctx: RunContext[str], order: str) -> str:
    return str(fail(ctx.deps))


async def async_tool(ctx: RunContext[str], order: str) -> str:
    return str(fail(ctx.deps))


def takes_kind(kind: Annotated[str, AfterValidator(by_value)]) -> str:
    return kind


def output_function(ctx: RunContext[str], text: str) -> str:
    return str(fail(ctx.deps))


class Fine(BaseModel):
    order: str


class Output(BaseModel):
    kind: Annotated[str, AfterValidator(by_value)]


def hook(name: str) -> AbstractCapability[Any]:
    async def failing_hook(self: Any, ctx: RunContext[str], *args: Any, **named: Any) -> Any:
        fail(ctx.deps)

    made: AbstractCapability[Any] = type(f"Hooks_{name}", (AbstractCapability,), {name: failing_hook})()
    return made


class InATask(AbstractCapability[Any]):
    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        return await asyncio.create_task(by_deps_async(ctx))


HOOKS = [
    *("for_run", "before_run", "wrap_run", "after_run", "before_node_run", "wrap_node_run", "after_node_run"),
    *("before_model_request", "prepare_model_request", "wrap_model_request", "after_model_request", "prepare_tools"),
    *("before_tool_validate", "wrap_tool_validate", "after_tool_validate"),
    *("before_tool_execute", "wrap_tool_execute", "after_tool_execute"),
    *("before_output_process", "wrap_output_process", "after_output_process"),
]
OUTPUT_HOOKS = ["before_output_validate", "wrap_output_validate", "after_output_validate", "prepare_output_tools"]


def _agent(name: str, script: Script | None = None, **options: Any) -> Agent[Any, Any]:
    options = {"deps_type": str, "durable": {"activity_config": {"retry_policy": ONCE}}, **options}
    return agent(script or Script(CALL, "done"), name=name, **options)


def _with_output_validator(name: str) -> Agent[Any, Any]:
    made = _agent(name, Script("done"))
    made.output_validator(by_deps)
    return made


def _with_tools(name: str, tools: Any, **options: Any) -> Agent[Any, Any]:
    return _agent(name, tools=tools, **options)


def _failing_model(name: str) -> Agent[Any, Any]:
    return _agent(name, Script(lambda messages: fail(prompt_of(messages))))


def _watched(name: str) -> Agent[Any, Any]:
    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "done"

    model = FunctionModel(stream_function=stream, model_name="scripted")
    durable = Durable(activity_config={"retry_policy": ONCE})
    return Agent(model, name=name, deps_type=str, capabilities=[hook("on_event"), durable])


def _asks_for_kind(tool_name: str) -> Script:
    return Script(lambda messages: [call(tool_name, "a", kind=prompt_of(messages))], "done")


def _hooked(name: str) -> Callable[[str], Agent[Any, Any]]:
    if name in OUTPUT_HOOKS:
        structured: dict[str, Any] = {"output_type": Fine, "script": Script([call("final_result", "f", order="A-1")])}
        return lambda agent_name: _agent(agent_name, capabilities=[hook(name)], **structured)
    return lambda agent_name: _agent(agent_name, tools=[look], capabilities=[hook(name)])


PLACES: dict[str, Callable[[str], Agent[Any, Any]]] = {
    **{name: _hooked(name) for name in (*HOOKS, *OUTPUT_HOOKS)},
    "on_event": _watched,
    "a task of a hook": lambda name: _agent(name, capabilities=[InATask()]),
    "instructions": lambda name: _agent(name, instructions=by_deps_async),
    "history processor": lambda name: _agent(name, capabilities=[ProcessHistory(by_deps)]),
    "model settings": lambda name: _agent(name, model_settings=by_deps),
    "metadata": lambda name: _agent(name, metadata=by_deps),
    "validation context": lambda name: _with_tools(name, [look], validation_context=by_deps),
    "prepare": lambda name: _with_tools(name, [Tool(look, prepare=by_deps)]),
    "arguments validator": lambda name: _with_tools(name, [Tool(look, args_validator=lambda ctx, order: by_deps(ctx))]),
    "argument": lambda name: _agent(name, _asks_for_kind("takes_kind"), tools=[takes_kind]),
    "predicate": lambda name: _agent(name, toolsets=[FunctionToolset([look], id="t").approval_required(by_deps)]),
    "filter": lambda name: _agent(name, toolsets=[FunctionToolset([look], id="t").filtered(by_deps)]),
    "dynamic toolset": lambda name: _agent(name, toolsets=[DynamicToolset(by_deps, id="d")]),
    "tool": lambda name: _with_tools(name, [Tool(tool, name="look")]),
    "async tool": lambda name: _with_tools(name, [Tool(async_tool, name="look")]),
    "tool in the workflow": lambda name: _with_tools(
        name, [Tool(async_tool, name="look", metadata={"temporal": False})]
    ),
    "tool in a child workflow": lambda name: _with_tools(
        name, [Tool(async_tool, name="look", metadata={"temporal": {"child_workflow": {}}})]
    ),
    "model": _failing_model,
    "output function": lambda name: _agent(
        name, Script([call("final_result", "f", text="x")]), output_type=output_function
    ),
    "text output": lambda name: _agent(name, Script("done"), output_type=TextOutput(output_function)),
    "output validator": _with_output_validator,
    "output type": lambda name: _agent(name, _asks_for_kind("final_result"), output_type=Output),
    "dependencies": lambda name: _agent(name, deps_type=Annotated[str, AfterValidator(by_value)]),
}
