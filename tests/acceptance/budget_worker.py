"""A worker to be killed: `python -m tests.acceptance.budget_worker ADDRESS TASK_QUEUE LOG`.

An agent whose tool runs three agents at once, each with four model calls. Each model call appends a line to LOG.
"""

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Client, Interlock
from interlock.adapters.pydantic_ai import Durable
from interlock.worker import run_worker

LOG = Path(sys.argv[3])


def outer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return answer("outer", messages, [ToolCallPart("all_at_once", {})], 1)


def inner(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return answer(str(getattr(messages[0].parts[0], "content", "")), messages, [ToolCallPart("look", {})], 3)


def answer(who: str, messages: list[ModelMessage], calls: list[ToolCallPart], turns: int) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    with LOG.open("a") as lines:
        lines.write(f"{who} {turn}\n")
    return ModelResponse(parts=calls if turn < turns else [TextPart("done")])


async def all_at_once() -> list[str]:
    results = await asyncio.gather(*(worker.run(f"part {number}") for number in range(3)))
    return [result.output for result in results]


worker = Agent(FunctionModel(inner), name="worker", tools=[], capabilities=[Durable()])
support = Agent(FunctionModel(outer), name="support", tools=[all_at_once], capabilities=[Durable()])


@worker.tool_plain
def look() -> str:
    return "seen"


async def main() -> None:
    client = await Client.connect(sys.argv[1], task_queue=sys.argv[2])
    await run_worker(Interlock([support, worker]), client, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
