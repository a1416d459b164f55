"""The agents of the soak in the OpenAI Agents SDK: the agent behind `delegate` runs inside of the run."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from agents.tool_context import ToolContext
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)

from interlock.adapters.openai_agents import idempotency_key
from soak.bodies import Bodies, signed
from soak.script import ASKED_AMOUNT, SCRIPTS, answers_in, step_name


def make_agents(bodies: Bodies) -> list[Agent[Any]]:
    """The agent `desk`, of which the agent `payer` is a tool."""

    @function_tool
    async def look(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:look/{order}", idempotency_key(ctx), token, order)

    @function_tool(needs_approval=True)
    async def refund(ctx: ToolContext[Any], order: str, token: str, amount: int) -> str:
        return await bodies.work(f"desk:refund/{order}", idempotency_key(ctx), token, f"{amount}")

    @function_tool(needs_approval=True)
    async def erase(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:erase/{order}", idempotency_key(ctx), token, order)

    @function_tool
    def stamp(ctx: ToolContext[Any], order: str, token: str) -> str:
        step, key = f"desk:stamp/{order}", idempotency_key(ctx)
        time.sleep(bodies.begin(step, key, token))
        return bodies.effect(step, signed(order), key, token)

    async def asks(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
        await bodies.work(f"desk:ask-charge/{arguments['order']}", "", arguments["token"], "asked")
        return True

    @function_tool(needs_approval=asks)
    async def charge(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:charge/{order}", idempotency_key(ctx), token, order)

    @function_tool
    async def note(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:note/{order}", idempotency_key(ctx), token, order)

    delegate = _payer(bodies).as_tool("delegate", "Have an order paid.")
    tools: list[Any] = [look, refund, erase, delegate, stamp, charge, note]
    return [Agent(name="desk", model=_Scripted("desk", bodies), tools=tools)]


def _payer(bodies: Bodies) -> Agent[Any]:
    @function_tool
    async def check(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:check/{order}", idempotency_key(ctx), token, order)

    @function_tool(needs_approval=True)
    async def pay(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:pay/{order}", idempotency_key(ctx), token, order)

    @function_tool
    async def record(ctx: ToolContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:record/{order}", idempotency_key(ctx), token, order)

    return Agent(name="payer", model=_Scripted("payer", bodies), tools=[check, pay, record])


class _Scripted(Model):
    def __init__(self, agent: str, bodies: Bodies) -> None:
        self.model = "scripted"
        self._agent = agent
        self._bodies = bodies

    async def get_response(
        self, system_instructions: str | None, input: str | list[Any], *args: Any, **named: Any
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        turn = answers_in(items)
        step, token = step_name(self._agent, f"model/{turn}"), uuid.uuid4().hex[:8]
        await asyncio.sleep(self._bodies.begin(step))
        self._bodies.effect(step, token=token)
        script = SCRIPTS[self._agent]
        output: list[ResponseOutputItem] = (
            [text_item(json.dumps(_told(items)))]
            if turn == len(script)
            else [_call(one, token) for one in script[turn]]
        )
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def text_item(text: str) -> ResponseOutputMessage:
    """What a model says at the end."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


def call_item(tool: str, call_id: str, arguments: dict[str, Any]) -> ResponseFunctionToolCall:
    """A call that a model makes."""
    return ResponseFunctionToolCall(type="function_call", name=tool, call_id=call_id, arguments=json.dumps(arguments))


def _call(name: str, token: str) -> ResponseFunctionToolCall:
    tool, _, order = name.partition("/")
    amount = {"amount": ASKED_AMOUNT} if tool == "refund" else {}
    arguments = {"input": f"pay {order}"} if tool == "delegate" else {"order": order, "token": token, **amount}
    return call_item(tool, name, arguments)


def _told(items: list[Any]) -> dict[str, str]:
    """The results by call; without what a model is told of an edited call, which follows the result."""
    results = [item for item in items if item.get("type") == "function_call_output"]
    return {item["call_id"]: str(item["output"]).partition("\n\n")[0] for item in results}
