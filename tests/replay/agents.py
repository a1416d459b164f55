"""The agents that the stored histories were made with. Fixed: a change here tests other code than what ran then.

What a new history needs is added beside what is there. Replaying calls neither model nor tool: both are in the history.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from temporalio.common import RetryPolicy

from interlock import Interlock, Settings
from interlock.adapters.pydantic_ai import Durable, progress

tool_entered = asyncio.Event()
"""Set once a tool is at work that never ends by itself."""

repair = asyncio.Event()
"""Set while what breaks is mended."""


def call(tool: str, call_id: str, /, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, tool_call_id=call_id)


REFUNDS = [
    call("refund", f"r{n}", order=f"A-100{n}", amount=amount) for n, amount in ((1, 10.0), (2, 20.0), (3, 300.0))
]

SCRIPTS: dict[str, list[list[ToolCallPart] | str]] = {
    "Where is A-1001?": [[call("look_up", "l1", order="A-1001")], [call("look_up", "l2", order="A-1002")], "Lost."],
    "Hello.": ["Hello, Ann."],
    "Refund everything.": [[*REFUNDS, call("look_up", "l1", order="A-1001")], "All settled."],
    "Refund one.": [REFUNDS[:1], "Refunded."],
    "Refund two.": [REFUNDS[:1], REFUNDS[1:2], "Refunded."],
    "Render the receipt.": [[call("render", "v1", scene="receipt"), call("pick", "p1", color="red")], "Rendered."],
    "Move the money.": [[call("transfer", f"t{n}", amount=n) for n in (5, 500)], "Moved."],
    "Close the account.": [[call("close_account", "c1", account="7")], "Closed."],
    "Have it paid.": [[call("have_it_paid", "d1", order="A-1001")], "It is paid."],
    "Pay A-1001.": [[call("pay", "y1", order="A-1001")], "Paid A-1001."],
    "Call the courier.": [[call("call_courier", "k1")], "Never said."],
    "Break it.": [[call("break_it", "b1")], "Never said."],
    "Wobble.": [[call("wobble", "w1"), call("look_up", "l1", order="A-1001")], "It stands."],
    "Refund, then greet.": [REFUNDS[:1], "Refunded.", "Hello again."],
    "Write the letter.": ["Dear Ann.", [call("look_up", "l1", order="A-1001")], "Dear Ann, it is on its way."],
    "Stall.": [[call("stall", "s1")], "Never said."],
    "Hurry.": [[call("ship", "h1"), call("recall", "h2")], "Recalled."],
    "Hurry or fail.": [[call("insure", "i1")], "Never said."],
}


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """What the model says: the script of the prompt that the conversation began with, turn by turn."""
    prompt = str(getattr(messages[0].parts[0], "content", ""))
    turn = SCRIPTS[prompt][sum(isinstance(message, ModelResponse) for message in messages)]
    return ModelResponse(parts=[TextPart(turn)] if isinstance(turn, str) else list(turn))


def look_up(order: str) -> str:
    """Say where an order is."""
    return f"{order} is lost"


def refund(order: str, amount: float) -> str:
    """Pay money back."""
    return f"refunded {amount:.2f} for {order}"


def render(scene: str) -> str:
    """Start a rendering job."""
    raise CallDeferred(metadata={"job": 7})


def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


def close_account(ctx: RunContext[Any], account: str) -> str:
    """Close an account, once somebody agrees."""
    if not ctx.tool_call_approved:
        raise ApprovalRequired(metadata={"risk": "high"})
    return f"closed {account}"


def pay(order: str) -> str:
    """Pay for an order."""
    return f"paid {order}"


async def call_courier() -> str:
    """Wait for somebody who never comes."""
    tool_entered.set()
    await asyncio.Event().wait()
    return "never"


def break_it() -> str:
    """Fail."""
    if repair.is_set():
        return "mended"
    raise ValueError("it is broken")


def wobble() -> str:
    """Fail until somebody has mended it."""
    if repair.is_set():
        return "it stands"
    raise ConnectionError("it wobbles")


async def stall() -> str:
    """Take longer than allowed."""
    await asyncio.Event().wait()
    return "never"


def hurried() -> str:
    """Do what cannot wait."""
    return "done in time"


LIMITS: dict[str, list[dict[str, Any]]] = {
    "ship": [{"after_seconds": 0.3, "then": "escalate", "to": ["ops-lead"]}, {"after_seconds": 0.6, "then": "deny"}],
    "recall": [{"after_seconds": 0.3, "then": "escalate", "to": ["ops-lead", "cto"]}],
    "insure": [{"after_seconds": 0.3, "then": "fail"}],
}


def over_limit(ctx: RunContext[Any], tool_def: ToolDefinition, args: dict[str, Any]) -> bool:
    return bool(args["amount"] > 100)


def judge(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
    (one,) = requests.approvals
    amount = one.args_as_dict()["amount"]
    if amount > 100:
        return DeferredToolResults(approvals={one.tool_call_id: ToolDenied("over the limit")})
    return DeferredToolResults(approvals={one.tool_call_id: True}) if amount < 15 else None


class Breaks(AbstractCapability[Any]):
    """A hook that fails."""

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        raise LookupError("no such shelf")


class Tenant(BaseModel):
    """What the tools of an agent need to know."""

    name: str
    level: int = 0


async def dictate(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """A model that speaks slowly, and stumbles at its first attempt to answer."""
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    if turn == 0:
        for word in ["I", "weigh", "it", "first.", ""]:
            yield {0: DeltaThinkingPart(content=f"{word} ")}
            await asyncio.sleep(0.1)
        for piece in ('{"parcel": "P-7",', ' "api_key": "invented', '-1"}'):
            yield {1: DeltaToolCall(name="weigh" if "parcel" in piece else None, json_args=piece, tool_call_id="w1")}
            await asyncio.sleep(0.2)
        return
    for word in ("It weighs 2 kg, password: invented-2 as you said. " * 2).split(" "):
        yield f"{word} "
        await asyncio.sleep(0.05)
        if word == "kg," and not dictate_stumbled:
            await asyncio.sleep(0.4)
            dictate_stumbled.append(True)
            raise ConnectionError("the line is down")


dictate_stumbled: list[bool] = []


async def weigh(ctx: RunContext[None], parcel: str, api_key: str) -> str:
    """Put a parcel on the scales."""
    for gram in range(3):
        progress(ctx, gram + 1, 3, "weights are on")
        await asyncio.sleep(0.25)
    return f"{parcel} weighs 2 kg"


def make_app(*, gated: bool = True, look_up_name: str = "look_up") -> Interlock:
    """The app. The arguments change it, to show that a replay notices."""
    model = FunctionModel(answer, model_name="scripted")
    payer = Agent(model, name="payer", tools=[Tool(pay, requires_approval=True)], capabilities=[Durable()])

    async def have_it_paid(order: str) -> str:
        """Have another agent pay."""
        return str((await payer.run(f"Pay {order}.")).output)

    quickly = {"temporal": {"start_to_close_timeout": timedelta(seconds=1)}}
    tools: list[Any] = [
        Tool(look_up, name=look_up_name),
        Tool(refund, requires_approval=gated),
        *(render, close_account, have_it_paid, call_courier),
        Tool(break_it, requires_approval=True),
        Tool(wobble, metadata={"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}}),
        Tool(stall, requires_approval=True, metadata=quickly),
    ]
    external = ExternalToolset([ToolDefinition(name="pick", parameters_json_schema={"type": "object"})], id="ui")
    transfers = FunctionToolset([transfer], id="transfers").approval_required(over_limit)
    support = Agent(model, name="support", tools=tools, toolsets=[external, transfers], capabilities=[Durable()])
    judged = Agent(
        model,
        name="judged",
        tools=[Tool(refund, requires_approval=True), look_up],
        capabilities=[HandleDeferredToolCalls(judge), Durable()],
    )
    hooked = Agent(model, name="hooked", capabilities=[Breaks(), Durable()])
    typed = Agent(model, name="typed", deps_type=Tenant, tools=[look_up], capabilities=[Durable()])
    flaky = Agent(
        FunctionModel(lambda messages, info: 1 / 0, model_name="flaky"),  # type: ignore[arg-type,return-value]
        name="flaky",
        capabilities=[Durable(model_activity_config={"retry_policy": RetryPolicy(maximum_attempts=1)})],
    )
    teller = Agent(
        FunctionModel(stream_function=dictate, model_name="scripted"),
        name="teller",
        tools=[Tool(weigh, requires_approval=True)],
        capabilities=[Durable()],
    )
    limited = [
        Tool(hurried, name=name, requires_approval=True, metadata={"approval": limit}) for name, limit in LIMITS.items()
    ]
    hurrying = Agent(model, name="hurrying", tools=limited, capabilities=[Durable()])
    writer = Agent(model, name="writer", tools=[look_up], capabilities=[Durable()])
    return Interlock(
        [support, payer, judged, hooked, typed, flaky, teller, hurrying, writer],
        settings=Settings(task_queue="replay"),
        review={"writer": 3},
    )
