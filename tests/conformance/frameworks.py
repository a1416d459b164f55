"""One way to write agents of every framework, so that a scenario is written once and holds for all of them."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from agents import Agent as OpenAIAgent
from agents import (
    FunctionTool,
    Model,
    ModelBehaviorError,
    ModelResponse,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    Usage,
    function_tool,
)
from agents.tool_context import ToolContext
from httpx2 import Request, Response
from openai import APIStatusError
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import PromptedOutput, RunContext
from pydantic_ai import Tool as PydanticTool
from pydantic_ai import messages as said
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry, ToolFailed, UnexpectedModelBehavior
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset
from pydantic_ai.usage import RequestUsage
from pydantic_core import to_json
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Settings
from interlock.adapters import openai_agents, pydantic_ai

INPUT_TOKENS, OUTPUT_TOKENS = 5, 2
"""Of each answer of a model."""


@dataclass(frozen=True)
class Call:
    """A tool call as a model makes it. arguments: text in place of an object is sent as it is."""

    tool: str
    call_id: str
    arguments: dict[str, Any] | str


def call(tool: str, call_id: str, order: str, amount: Any = 0.0) -> Call:
    """A call of a `Tool`."""
    return Call(tool, call_id, {"order": order, "amount": amount})


def ask(inner: str, call_id: str) -> Call:
    """A call of an `Inner` agent."""
    return Call(f"ask_{inner}", call_id, {"input": "go"})


@dataclass(frozen=True)
class Said:
    """A part of a conversation. kind: `user`, `text`, `call` or `result`."""

    kind: str
    text: str
    call_id: str = ""


Answer = Sequence[Call] | str
Turn = Answer | Callable[[list[Said]], Answer | Awaitable[Answer]]


class Script:
    """A model that gives one answer per turn, and remembers what it was asked.

    The turn is the number of answers in the conversation, so a call that is made again gets the same answer.
    """

    def __init__(self, *turns: Turn) -> None:
        self._turns = turns
        self.asked: list[list[Said]] = []

    @property
    def calls(self) -> int:
        """How often the model was called."""
        return len(self.asked)

    def results(self, turn: int = -1) -> dict[str, str]:
        """What the model was told of each call, by call id, when it was asked for a turn."""
        return {part.call_id: part.text for part in self.asked[turn] if part.kind == "result"}

    async def answer(self, conversation: list[Said]) -> Answer:
        """The answer to a conversation."""
        self.asked.append(conversation)
        turn = self._turns[_answers_in(conversation)]
        return await _settled(turn(conversation)) if callable(turn) else turn


def _answers_in(conversation: list[Said]) -> int:
    answers = [part.kind in ("text", "call") for part in conversation]
    return sum(one and not before for before, one in zip([False, *answers], answers, strict=False))


@dataclass(frozen=True)
class Made:
    """A call that a tool was made with. key: its idempotency key."""

    order: str
    amount: float
    key: str


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool. body: gets the call, and may be async; what it raises fails the call.

    gated: whether a call needs an approval; a function is asked with the arguments.
    tells: what the body raises is told to the model in place of a result. stops: it stops the run, as an answer that
    cannot be taken. limit: the time limit of its requests, as people write it. plain: it is no coroutine, so that it
    runs in a thread.
    """

    name: str = "refund"
    body: Callable[[Made], Any]
    gated: bool | Callable[[dict[str, Any]], bool] = False
    idempotent: bool = False
    tells: bool = False
    stops: bool = False
    limit: Any = None
    plain: bool = False
    description: str = "Pay money back."


@dataclass(frozen=True)
class Inner:
    """An agent as the tool `ask_NAME(input)` of another one.

    in_body: the code of the tool runs it, in an activity, where it becomes a run of its own.
    """

    name: str
    agent: Any
    gated: bool = False
    in_body: bool = False


@dataclass
class Desk:
    """The body of a tool that remembers what it did, after which it fails as often as it is told to."""

    errors: list[Exception] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    def __call__(self, made: Made) -> str:
        """Do it."""
        self.made.append(made)
        if self.errors:
            raise self.errors.pop(0)
        return f"done {made.order}"

    @property
    def orders(self) -> list[str]:
        """What it was called with."""
        return [made.order for made in self.made]


class Framework(Protocol):
    """A framework, as the scenarios need it. denied: what a model is told of a call that was rejected without a word.
    out_of_turns: the type of the failure when the limit of requests is used up."""

    name: str
    denied: str
    out_of_turns: str

    def agent(
        self,
        script: Script,
        *,
        name: str = "support",
        tools: Sequence[Tool | Inner] = (),
        instructions: Callable[[], str] | None = None,
        output: Any = str,
    ) -> Any:
        """An agent that the script plays the model of. output: its type; of one that is not text the model says the
        JSON."""
        ...

    def turns(self, count: int) -> dict[str, Any]:
        """The usage limits that end a run after so many requests to its model."""
        ...

    def http_error(self, status: int, headers: dict[str, str] | None = None) -> Exception:
        """What a model raises when its provider answers with an error."""
        ...

    def misbehaved(self, text: str) -> Exception:
        """What an agent's loop raises when its model's answer makes no sense."""
        ...


class PydanticAI:
    """pydantic-ai. An inner agent runs in the workflow unless it is to run in the tool's body."""

    name = "pydantic-ai"
    denied = "The tool call was denied."
    out_of_turns = "UsageLimitExceeded"

    def agent(
        self,
        script: Script,
        *,
        name: str = "support",
        tools: Sequence[Tool | Inner] = (),
        instructions: Callable[[], str] | None = None,
        output: Any = str,
    ) -> Any:
        """See `Framework`."""

        async def model(messages: list[said.ModelMessage], info: AgentInfo) -> said.ModelResponse:
            answer = await script.answer([part for message in messages for part in _from_pydantic_ai(message)])
            parts: list[said.ModelResponsePart] = (
                [said.TextPart(answer)]
                if isinstance(answer, str)
                else [said.ToolCallPart(one.tool, one.arguments, tool_call_id=one.call_id) for one in answer]
            )
            used = RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS)
            return said.ModelResponse(parts=parts, usage=used)

        return PydanticAgent(
            FunctionModel(model, model_name="scripted"),
            name=name,
            instructions=instructions,
            tools=[_pydantic_ai_tool(one) for one in tools if not _has_predicate(one)],
            toolsets=[_pydantic_ai_toolset(one) for one in tools if isinstance(one, Tool) and _has_predicate(one)],
            capabilities=[pydantic_ai.Durable()],
            output_type=output if output is str else PromptedOutput(output),
        )

    def turns(self, count: int) -> dict[str, Any]:
        """See `Framework`."""
        return {"request_limit": count}

    def http_error(self, status: int, headers: dict[str, str] | None = None) -> Exception:
        """See `Framework`."""
        return ModelHTTPError(status, "scripted", headers=headers)

    def misbehaved(self, text: str) -> Exception:
        """See `Framework`."""
        return UnexpectedModelBehavior(text)


def _has_predicate(tool: Tool | Inner) -> bool:
    return callable(tool.gated)


def _pydantic_ai_tool(tool: Tool | Inner) -> PydanticTool[Any]:
    gated = tool.gated is True
    if isinstance(tool, Inner):

        async def ask(input: str) -> Any:
            return (await tool.agent.run(input)).output

        where = None if tool.in_body else {"temporal": False}
        return PydanticTool(ask, name=f"ask_{tool.name}", requires_approval=gated, metadata=where)

    async def work(ctx: RunContext[Any], order: str, amount: float) -> Any:
        try:
            return await _settled(tool.body(Made(order, amount, pydantic_ai.idempotency_key(ctx))))
        except Exception as error:
            raise ModelRetry(str(error)) if tool.stops else ToolFailed(str(error)) if tool.tells else error from error

    def plain(ctx: RunContext[Any], order: str, amount: float) -> Any:
        return tool.body(Made(order, amount, pydantic_ai.idempotency_key(ctx)))

    metadata: dict[str, Any] = {"idempotent": True} if tool.idempotent else {}
    if tool.limit is not None:
        metadata |= {"approval": tool.limit}
    return PydanticTool(
        plain if tool.plain else work,
        name=tool.name,
        description=tool.description,
        requires_approval=gated,
        metadata=metadata,
        max_retries=0 if tool.stops else None,
    )


def _pydantic_ai_toolset(tool: Tool) -> AbstractToolset[Any]:
    predicate = tool.gated
    assert callable(predicate)
    toolset = FunctionToolset([_pydantic_ai_tool(tool)], id=f"of-{tool.name}")
    return toolset.approval_required(lambda ctx, definition, arguments: predicate(arguments))


def _from_pydantic_ai(message: said.ModelMessage) -> list[Said]:
    parts: list[Said] = []
    for part in message.parts:
        if isinstance(part, said.UserPromptPart):
            parts.append(Said("user", str(part.content)))
        elif isinstance(part, said.ToolReturnPart):
            parts.append(Said("result", part.model_response_str(), part.tool_call_id))
        elif isinstance(part, said.RetryPromptPart):
            parts.append(Said("result" if part.tool_name else "user", part.model_response(), part.tool_call_id))
        elif isinstance(part, said.ToolCallPart):
            parts.append(Said("call", part.tool_name, part.tool_call_id))
        elif isinstance(part, said.TextPart):
            parts.append(Said("text", part.content))
    return parts


class OpenAIAgents:
    """The OpenAI Agents SDK. Tools fail their call: the SDK's default would tell the model of any error."""

    name = "openai-agents"
    denied = "Tool execution was not approved."
    out_of_turns = "MaxTurnsExceeded"

    def agent(
        self,
        script: Script,
        *,
        name: str = "support",
        tools: Sequence[Tool | Inner] = (),
        instructions: Callable[[], str] | None = None,
        output: Any = str,
    ) -> Any:
        """See `Framework`."""
        told = (lambda ctx, agent: instructions()) if instructions else None
        return OpenAIAgent[Any](
            name=name,
            model=_OpenAIModel(script),
            tools=[_openai_agents_tool(one) for one in tools],
            instructions=told,
            output_type=None if output is str else output,
        )

    def turns(self, count: int) -> dict[str, Any]:
        """See `Framework`."""
        return {"max_turns": count}

    def http_error(self, status: int, headers: dict[str, str] | None = None) -> Exception:
        """See `Framework`."""
        response = Response(status, headers=headers, request=Request("POST", "http://localhost/v1/responses"))
        return APIStatusError("refused", response=response, body=None)

    def misbehaved(self, text: str) -> Exception:
        """See `Framework`."""
        return ModelBehaviorError(text)


class _OpenAIModel(Model):
    def __init__(self, script: Script) -> None:
        self._script = script

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *args: Any, **named: Any
    ) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        answer = await self._script.answer([_from_openai_agents(item) for item in items])
        total = INPUT_TOKENS + OUTPUT_TOKENS
        usage = Usage(requests=1, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, total_tokens=total)
        return ModelResponse(output=_as_items(answer), usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _as_items(answer: Answer) -> list[Any]:
    if isinstance(answer, str):
        text = ResponseOutputText(type="output_text", text=answer, annotations=[])
        return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]
    return [
        ResponseFunctionToolCall(
            type="function_call", name=one.tool, call_id=one.call_id, arguments=_as_text(one.arguments)
        )
        for one in answer
    ]


def _as_text(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else to_json(arguments).decode()


def _from_openai_agents(item: Any) -> Said:
    if item.get("type") == "function_call":
        return Said("call", item["name"], item["call_id"])
    if item.get("type") == "function_call_output":
        return Said("result", str(item["output"]), item["call_id"])
    content = item["content"]
    text = content if isinstance(content, str) else "".join(one.get("text", "") for one in content)
    return Said("text" if item["role"] == "assistant" else "user", text)


def _openai_agents_tool(tool: Tool | Inner) -> FunctionTool:
    if isinstance(tool, Inner) and tool.in_body:

        async def ask(input: str) -> Any:
            return (await Runner.run(tool.agent, input)).final_output

        return function_tool(
            ask, name_override=f"ask_{tool.name}", failure_error_function=None, needs_approval=tool.gated
        )
    if isinstance(tool, Inner):
        made: FunctionTool = tool.agent.as_tool(f"ask_{tool.name}", "", needs_approval=tool.gated)
        return made

    async def work(ctx: ToolContext[Any], order: str, amount: float) -> Any:
        return await _settled(tool.body(Made(order, amount, openai_agents.idempotency_key(ctx))))

    def plain(ctx: ToolContext[Any], order: str, amount: float) -> Any:
        return tool.body(Made(order, amount, openai_agents.idempotency_key(ctx)))

    predicate = tool.gated

    async def asks(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(callable(predicate) and predicate(arguments))

    made = function_tool(
        plain if tool.plain else work,
        name_override=tool.name,
        description_override=tool.description,
        failure_error_function=(lambda ctx, error: str(error)) if tool.tells else None,
        needs_approval=predicate if isinstance(predicate, bool) else asks,
    )
    if tool.stops:
        made.tool_input_guardrails = [ToolInputGuardrail(partial(_stopped, tool), name="stops")]
    if tool.limit is not None:
        openai_agents.approval(made, tool.limit)
    return openai_agents.idempotent(made) if tool.idempotent else made


async def _stopped(tool: Tool, data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    try:
        await _settled(tool.body(Made("", 0, "")))
    except Exception as error:
        return ToolGuardrailFunctionOutput.raise_exception(str(error))
    return ToolGuardrailFunctionOutput.allow()


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


FRAMEWORKS: Sequence[Framework] = (PydanticAI(), OpenAIAgents())

ONCE = Retries(
    model=RetryPolicy(maximum_attempts=1),
    tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=1),
)
"""No call is tried again by itself."""


def app_of(*agents: Any, stuck_seconds: float = 0, retries: Retries = ONCE, **options: Any) -> Interlock:
    """An app of these agents. options: of `Interlock`."""
    return Interlock(agents, settings=Settings(stuck_seconds=stuck_seconds), retries=retries, **options)
