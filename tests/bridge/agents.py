"""What the worker of the bridge's tests serves: an agent whose prompt is its script.

Model calls and tool bodies each append a line to the ledger when they have their effect: the id of the run, what it
was, and the arguments.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent, TextOutput, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import activity
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries
from interlock.adapters.pydantic_ai import Durable
from tests.workflows.scripts import prompt_of

FOLDER = Path(os.environ.get("BRIDGE_TESTS_FOLDER", "."))


def script(*turns: Sequence[tuple[str, dict[str, Any]]], answer: str = "done") -> str:
    """The prompt for a run that calls these tools, turn by turn, and then gives the answer."""
    return json.dumps({"turns": turns, "answer": answer})


def note(what: str, **arguments: Any) -> None:
    line = json.dumps({"run": activity.info().workflow_id, "what": what, **arguments})
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    note("model", turn=turn)
    prompt = prompt_of(messages)
    # A prompt that is no script is a text to be answered.
    echo = {"turns": [], "answer": f"You said: {prompt}"}
    wanted: dict[str, Any] = json.loads(prompt) if prompt.startswith("{") else echo
    parts: list[ModelResponsePart] = [TextPart(wanted["answer"])]
    if turn < len(wanted["turns"]):
        parts = [ToolCallPart(tool, arguments) for tool, arguments in wanted["turns"][turn]]
    return ModelResponse(parts=parts)


def look(order: str) -> str:
    note("look", order=order)
    return f"{order} arrived broken"


def refund(order: str, amount: int = 1) -> str:
    note("refund", order=order, amount=amount)
    return f"{order} refunded"


async def wait(gate: str) -> str:
    """Waits until `Stack.open_gate` has opened the gate."""
    note("wait", gate=gate)
    while not (FOLDER / "gates" / gate).exists():
        await asyncio.sleep(0.05)
    return "opened"


def fail(text: str, until: str = "") -> str:
    """Fails, until the gate is open."""
    note("fail", text=text)
    if until and (FOLDER / "gates" / until).exists():
        return "worked"
    raise ValueError(text)


cashier = Agent(
    FunctionModel(model, model_name="scripted"),
    name="cashier",
    tools=[Tool(refund, requires_approval=True)],
    capabilities=[Durable()],
)


async def delegate(prompt: str) -> str:
    """Has another agent do something, in a run of its own."""
    return str((await cashier.run(prompt)).output)


agent = Agent(
    FunctionModel(model, model_name="scripted"),
    name="support",
    tools=[look, Tool(refund, requires_approval=True), wait, fail, delegate],
    capabilities=[Durable()],
)


def split(text: str) -> list[str]:
    return text.split()


splitter = Agent(
    FunctionModel(model, model_name="scripted"),
    name="splitter",
    output_type=TextOutput(split),
    tools=[wait],
    capabilities=[Durable()],
)
app = Interlock([agent, cashier, splitter], retries=Retries(tools={"fail": RetryPolicy(maximum_attempts=1)}))
