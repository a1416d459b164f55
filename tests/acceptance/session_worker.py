"""A worker to be killed: `python -m tests.acceptance.session_worker ADDRESS TASK_QUEUE`."""

import asyncio
import os
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Client, Interlock
from interlock.adapters.pydantic_ai import Durable
from interlock.worker import run_worker


async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Calls the tool once for each prompt, then says how many prompts it has heard."""
    await asyncio.sleep(0.05)
    prompts = sum(isinstance(part, UserPromptPart) for message in messages for part in message.parts)
    answers = sum(isinstance(message, ModelResponse) for message in messages)
    return ModelResponse(parts=[TextPart(f"{prompts}") if answers % 2 else ToolCallPart("look", {})])


async def look() -> str:
    await asyncio.sleep(0.05)
    return "seen"


async def main() -> None:
    client = await Client.connect(sys.argv[1], task_queue=sys.argv[2])
    agent = Agent(FunctionModel(model), name="support", tools=[look], capabilities=[Durable()])
    await run_worker(Interlock([agent]), client, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
