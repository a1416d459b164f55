"""A worker to be killed: `python -m tests.acceptance.crash_worker ADDRESS TASK_QUEUE LOG GATE`.

Each model call and tool body appends a line to LOG when it runs. The tool `slow` ends once the file GATE is there.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Client, Interlock
from interlock.adapters.pydantic_ai import Durable
from interlock.worker import run_worker

LOG, GATE = (Path(name) for name in sys.argv[3:5])


def note(line: str) -> None:
    with LOG.open("a") as lines:
        lines.write(f"{line}\n")


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    note(f"model {turn}")
    answers = [
        [ToolCallPart("look", {"order": order}) for order in ("A-1", "A-2")],
        [ToolCallPart("refund", {"order": "A-1"})],
        [ToolCallPart("slow", {})],
    ]
    if str(messages[0].parts[0]).count("pay slowly"):
        answers = [[ToolCallPart("pay", {})]]
    return ModelResponse(parts=answers[turn] if turn < len(answers) else [TextPart("done")])


def look(order: str) -> str:
    note(f"look {order}")
    return order


def refund(order: str) -> str:
    note(f"refund {order}")
    return order


def slow() -> str:
    note("slow")
    while not GATE.exists():
        time.sleep(0.02)
    return "slow"


def pay() -> str:
    note("pay")
    return slow()


async def writer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
    """Writes until the file GATE is there."""
    note("writer")
    if not GATE.exists():
        yield "Half of an answer "
    while not GATE.exists():
        await asyncio.sleep(0.02)
        yield "and more "
    yield "The whole answer."


writing = Agent(FunctionModel(stream_function=writer), name="writer", capabilities=[Durable()])
agent = Agent(
    FunctionModel(model),
    name="support",
    tools=[look, Tool(refund, requires_approval=True), slow, Tool(pay, requires_approval=True)],
    capabilities=[Durable()],
)


async def main() -> None:
    client = await Client.connect(sys.argv[1], task_queue=sys.argv[2])
    await run_worker(Interlock([agent, writing]), client, asyncio.Event())


if __name__ == "__main__":
    asyncio.run(main())
    os._exit(0)
