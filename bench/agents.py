"""The agent that all benchmarks run. Its model follows the prompt: `lookup*3 refund` is four calls, one per turn.

Given `write` it writes an answer of 1,000 tokens, at 200 in a second.

Workflow modules load this inside Temporal's sandbox, so it imports nothing of Interlock.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from temporalio import activity

from bench.payload import text

NAP_SECONDS = 60
TOKENS = 1_000
_TOKEN_SECONDS = 0.005


async def follow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    calls = _script(messages[0])
    if calls == ["write"]:
        return ModelResponse(parts=[TextPart("".join([token async for token in _tokens()]))])
    if turn == len(calls):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart(calls[turn], {"key": f"item-{turn}"}, f"call-{turn}")])


async def follow_streaming(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    if _script(messages[0]) == ["write"]:
        async for token in _tokens():
            yield token
        return
    for at, part in enumerate((await follow(messages, info)).parts):
        if isinstance(part, ToolCallPart):
            arguments, call_id = part.args_as_json_str(), part.tool_call_id
            yield {at: DeltaToolCall(name=part.tool_name, json_args=arguments, tool_call_id=call_id)}
        elif isinstance(part, TextPart):
            yield part.content


async def _tokens() -> AsyncIterator[str]:
    began = time.monotonic()
    for number in range(1, TOKENS + 1):
        yield f"tok{number % 10} "
        await asyncio.sleep(began + number * _TOKEN_SECONDS - time.monotonic())


def _script(first: ModelMessage) -> list[str]:
    prompt = next(part.content for part in first.parts if isinstance(part, UserPromptPart))
    calls: list[str] = []
    for word in str(prompt).split():
        tool, _, times = word.partition("*")
        calls += [tool] * int(times or 1)
    return calls


async def lookup(key: str) -> str:
    """Look an item up."""
    return text(key)


async def refund(key: str) -> str:
    """Refund an item."""
    _tell_parent("refund")
    return f"refunded {key}"


def nap(key: str) -> str:
    """Take a long time, in a thread."""
    _tell_parent("nap")
    time.sleep(NAP_SECONDS)
    return f"rested for {key}"


def make_agent(durability: AbstractCapability[Any]) -> Agent[Any, str]:
    tools: list[Any] = [lookup, Tool(refund, requires_approval=True), nap]
    model = FunctionModel(follow, stream_function=follow_streaming)
    return Agent(model, name="bench", tools=tools, capabilities=[durability])


def _tell_parent(tool: str) -> None:
    # CLOCK_MONOTONIC is one clock for all processes of a machine.
    event = {"tool": tool, "run": activity.info().workflow_id, "pid": os.getpid(), "at": time.monotonic()}
    print(json.dumps(event), flush=True)
