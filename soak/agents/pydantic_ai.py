"""The agents of the soak in pydantic-ai: the agent behind `delegate` is a run of its own."""

import asyncio
import json
import time
import uuid
from typing import Any

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock.adapters.pydantic_ai import Durable, idempotency_key
from soak.bodies import Bodies, signed
from soak.script import ASKED_AMOUNT, SCRIPTS, step_name


def make_agents(bodies: Bodies) -> list[Agent[Any, Any]]:
    """The agent `desk`, and the agent `payer` that one of its tools runs."""
    payer = _payer(bodies)
    return [_desk(bodies, payer), payer]


def _desk(bodies: Bodies, payer: Agent[Any, Any]) -> Agent[Any, Any]:
    async def look(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:look/{order}", idempotency_key(ctx), token, order)

    async def refund(ctx: RunContext[Any], order: str, token: str, amount: int) -> str:
        return await bodies.work(f"desk:refund/{order}", idempotency_key(ctx), token, f"{amount}")

    async def erase(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:erase/{order}", idempotency_key(ctx), token, order)

    async def delegate(ctx: RunContext[Any], order: str, token: str) -> str:
        step, key = f"desk:delegate/{order}", idempotency_key(ctx)
        await asyncio.sleep(bodies.begin(step, key, token))
        paid = await payer.run(f"pay {order}")
        return bodies.effect(step, paid.output, key, token)

    def stamp(ctx: RunContext[Any], order: str, token: str) -> str:
        step, key = f"desk:stamp/{order}", idempotency_key(ctx)
        time.sleep(bodies.begin(step, key, token))
        return bodies.effect(step, signed(order), key, token)

    async def charge(ctx: RunContext[Any], order: str, token: str) -> str:
        if ctx.tool_call_approved:
            return await bodies.work(f"desk:charge/{order}", idempotency_key(ctx), token, order)
        await bodies.work(f"desk:ask-charge/{order}", idempotency_key(ctx), token, "asked")
        raise ApprovalRequired()

    async def note(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"desk:note/{order}", idempotency_key(ctx), token, order)

    gated = [Tool(refund, requires_approval=True), Tool(erase, requires_approval=True)]
    return _agent("desk", bodies, [look, *gated, delegate, stamp, charge, note])


def _payer(bodies: Bodies) -> Agent[Any, Any]:
    async def check(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:check/{order}", idempotency_key(ctx), token, order)

    async def pay(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:pay/{order}", idempotency_key(ctx), token, order)

    async def record(ctx: RunContext[Any], order: str, token: str) -> str:
        return await bodies.work(f"payer:record/{order}", idempotency_key(ctx), token, order)

    return _agent("payer", bodies, [check, Tool(pay, requires_approval=True), record])


def _agent(name: str, bodies: Bodies, tools: list[Any]) -> Agent[Any, Any]:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        step, token = step_name(name, f"model/{turn}"), uuid.uuid4().hex[:8]
        await asyncio.sleep(bodies.begin(step))
        bodies.effect(step, token=token)
        if turn == len(SCRIPTS[name]):
            return ModelResponse(parts=[TextPart(json.dumps(_told(messages)))])
        return ModelResponse(parts=[_call(called, token) for called in SCRIPTS[name][turn]])

    return Agent(FunctionModel(answer, model_name="scripted"), name=name, tools=tools, capabilities=[Durable()])


def _call(name: str, token: str) -> ToolCallPart:
    tool, _, order = name.partition("/")
    amount = {"amount": ASKED_AMOUNT} if tool == "refund" else {}
    return ToolCallPart(tool, {"order": order, "token": token, **amount}, tool_call_id=name)


def _told(messages: list[ModelMessage]) -> dict[str, Any]:
    parts = [part for message in messages for part in message.parts]
    return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}
