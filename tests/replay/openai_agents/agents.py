"""The agents of the OpenAI Agents SDK that the stored histories were made with. Fixed: a change here tests other code
than what ran then.

What a new history needs is added beside what is there. Replaying calls neither model nor tool: both are in the history.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    HandoffInputData,
    Model,
    ModelResponse,
    RunContextWrapper,
    RunHooks,
    Runner,
    Tool,
    ToolGuardrailFunctionOutput,
    Usage,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from agents.mcp import MCPServer
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic import BaseModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Settings
from interlock.adapters.openai_agents import approval

repair = asyncio.Event()
"""Set while what breaks is mended."""


@dataclass(frozen=True)
class Call:
    """A call as a model makes it."""

    tool: str
    call_id: str
    arguments: dict[str, Any]


def call(tool: str, call_id: str, /, **arguments: Any) -> Call:
    return Call(tool, call_id, arguments)


REFUNDS = [
    call("refund", f"r{n}", order=f"A-100{n}", amount=amount) for n, amount in ((1, 10.0), (2, 20.0), (3, 300.0))
]
LOOK_UPS = [call("look_up", f"l{n}", order=f"A-100{n}") for n in (1, 2, 3)]

SCRIPTS: dict[str, list[list[Call] | str]] = {
    "Where are they?": [LOOK_UPS, "Lost."],
    "Where is each?": [*([one] for one in LOOK_UPS), [call("refund", "r1", order="A-1001", amount=10.0)], "Lost."],
    "Refund everything.": [[*REFUNDS, LOOK_UPS[0]], "All settled."],
    "Refund two.": [REFUNDS[:1], REFUNDS[1:2], "Refunded."],
    "Move the money.": [[call("transfer", f"t{n}", amount=n) for n in (5, 500)], "Moved."],
    "Have it paid.": [[call("have_it_paid", "d1", input="Pay A-1001."), LOOK_UPS[0]], "It is paid."],
    "Pay A-1001.": [[call("book", "b1", input="Book A-1001.")], "Paid A-1001."],
    "Book A-1001.": [[call("post", "p1", order="A-1001")], "Booked A-1001."],
    "Ask billing.": [
        [call("transfer_to_billing", "h1", reason="a refund")],
        [call("refund", "r1", order="A-1001", amount=10.0)],
        "Billing has refunded it.",
    ],
    "Break it.": [[call("break_it", "b1")], "It is mended."],
    "Wobble.": [[call("wobble", "w1"), LOOK_UPS[0]], "It stands."],
    "Check it.": [[call("checked", "c1", order="A-1001"), call("checked", "c2", order="nothing")], "Checked."],
    "Say something forbidden.": ["Never said."],
    "Say something secret.": ["The secret.", "Nothing."],
    "Count.": [[call("count", "c1"), call("remember", "m1", order="A-1001")], [call("count", "c2")], "Two."],
    "Take the book.": [[call("take", "t1", thing="book"), call("take", "t2", thing="pen")], "Taken."],
    "Tell the teller.": [[call("delegate", "d1", prompt="Refund one.")], "Told."],
    "Refund one.": [REFUNDS[:1], "Refunded one."],
    "Refund, then greet.": [REFUNDS[:1], "Refunded.", "Hello again."],
    "Hurry.": [[call("ship", "h1"), call("recall", "h2")], "Recalled."],
    "Hurry or fail.": [[call("insure", "i1")], "Never said."],
    "Write the letter.": ["Dear Ann.", [call("look_up", "l1", order="A-1001")], "Dear Ann, it is on its way."],
}


class Scripted(Model):
    """Says what the script of the prompt has that the conversation began with, turn by turn."""

    model = "scripted"

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **named: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        answers = [item.get("type") == "function_call" or item.get("role") == "assistant" for item in items]
        turn = sum(one and not before for before, one in zip([False, *answers], answers, strict=False))
        said = SCRIPTS[str(items[0]["content"])][turn]
        if said == "The secret." and repair.is_set():
            said = "Nothing."
        usage = Usage(requests=1, input_tokens=5, output_tokens=2, total_tokens=7)
        return ModelResponse(output=_items(said), usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def _items(said: Sequence[Call] | str) -> list[ResponseOutputItem]:
    if isinstance(said, str):
        text = ResponseOutputText(type="output_text", text=said, annotations=[])
        return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]
    return [
        ResponseFunctionToolCall(
            type="function_call", name=one.tool, call_id=one.call_id, arguments=json.dumps(one.arguments)
        )
        for one in said
    ]


class Broken(Model):
    """A model that never answers."""

    model = "broken"

    async def get_response(self, *args: Any, **named: Any) -> Any:
        raise LookupError("no such model")

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def hurried() -> str:
    """Do what cannot wait."""
    return "done in time"


LIMITS: dict[str, list[dict[str, Any]]] = {
    "ship": [{"after_seconds": 0.3, "then": "escalate", "to": ["ops-lead"]}, {"after_seconds": 0.6, "then": "deny"}],
    "recall": [{"after_seconds": 0.3, "then": "escalate", "to": ["ops-lead", "cto"]}],
    "insure": [{"after_seconds": 0.3, "then": "fail"}],
}


def look_up(order: str) -> str:
    """Say where an order is."""
    return f"{order} is lost"


def refund(order: str, amount: float) -> str:
    """Pay money back."""
    return f"refunded {amount:.2f} for {order}"


async def over_limit(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
    return bool(arguments["amount"] > 100)


@function_tool(needs_approval=over_limit)
def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


@function_tool(needs_approval=True)
def post(order: str) -> str:
    """Book an order."""
    return f"booked {order}"


@function_tool(needs_approval=True, failure_error_function=None)
def break_it() -> str:
    """Fail until somebody has mended it."""
    if repair.is_set():
        return "mended"
    raise ValueError("it is broken")


@function_tool(failure_error_function=None)
def wobble() -> str:
    """Fail until somebody has mended it."""
    if repair.is_set():
        return "it stands"
    raise ConnectionError("it wobbles")


@tool_input_guardrail
def is_an_order(data: Any) -> ToolGuardrailFunctionOutput:
    if json.loads(data.context.tool_arguments)["order"] == "nothing":
        return ToolGuardrailFunctionOutput.reject_content("That is no order.")
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def says_little(data: Any) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.allow(output_info={"length": len(data.output)})


@function_tool(tool_input_guardrails=[is_an_order], tool_output_guardrails=[says_little])
def checked(order: str) -> str:
    """Check an order."""
    return f"{order} is in order"


@input_guardrail
def nothing_forbidden(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, tripwire_triggered="forbidden" in str(given))


@output_guardrail
def no_secret(ctx: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput({"length": len(output)}, tripwire_triggered="secret" in output)


class Reason(BaseModel):
    """Why an agent hands over."""

    reason: str


async def handed_over(ctx: Any, given: Reason) -> None:
    """Take note of it."""


def without_calls(data: HandoffInputData) -> HandoffInputData:
    return data.clone(pre_handoff_items=())


class Watching(AgentHooks[Any]):
    """Hooks of an agent."""

    async def on_start(self, context: Any, agent: Any) -> None:
        """See `AgentHooks`."""

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        """See `AgentHooks`."""

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        """See `AgentHooks`."""

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        """See `AgentHooks`."""


class Hearing(RunHooks[Any]):
    """Hooks of all runs."""

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        """See `RunHooks`."""


@dataclass
class Visit:
    """What the tools of a run share."""

    count: int = 0
    order: str = ""


@function_tool
def count(ctx: RunContextWrapper[Visit]) -> int:
    """Count."""
    ctx.context.count += 1
    return ctx.context.count


@function_tool
def remember(ctx: RunContextWrapper[Visit], order: str) -> str:
    """Remember an order."""
    ctx.context.order = order
    return "remembered"


class Shelf(MCPServer):
    """A server with one tool."""

    def __init__(self) -> None:
        super().__init__(require_approval="always")
        self.cache_tools_list = True

    @property
    def name(self) -> str:
        """See `MCPServer`."""
        return "shelf"

    async def connect(self) -> None:
        """See `MCPServer`."""

    async def cleanup(self) -> None:
        """See `MCPServer`."""

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> list[MCPTool]:
        """See `MCPServer`."""
        schema = {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]}
        return [MCPTool(name="take", description="Take a thing.", input_schema=schema)]

    async def call_tool(
        self, tool_name: str, arguments: dict[str, Any] | None, *args: Any, **named: Any
    ) -> CallToolResult:
        """See `MCPServer`."""
        return CallToolResult(content=[TextContent(type="text", text=f"took {(arguments or {}).get('thing')}")])

    async def list_prompts(self) -> Any:
        """See `MCPServer`."""
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        """See `MCPServer`."""
        raise NotImplementedError


async def instructions(ctx: Any, agent: Any) -> str:
    return "Be brief."


def make_app(*, gated: bool = True, look_up_name: str = "look_up") -> Interlock:
    """The app. The arguments change it, to show that a replay notices."""
    looks = function_tool(look_up, name_override=look_up_name)
    refunds = function_tool(refund, needs_approval=gated)
    model = Scripted()
    billing = Agent(name="billing", model=model, tools=[refunds], hooks=Watching())
    clerk = Agent(name="clerk", model=model, tools=[post], instructions=instructions)
    payer = Agent(name="payer", model=model, tools=[clerk.as_tool("book", "Have it booked.")])
    to_billing = handoff(
        billing,
        tool_name_override="transfer_to_billing",
        on_handoff=handed_over,
        input_type=Reason,
        input_filter=without_calls,
    )
    support = Agent[Visit](
        name="support",
        model=model,
        instructions=instructions,
        tools=[looks, refunds, transfer, break_it, wobble, payer.as_tool("have_it_paid", "Have it paid."), checked],
        handoffs=[to_billing],
        hooks=Watching(),
    )
    guarded = Agent(
        name="guarded",
        model=model,
        input_guardrails=[nothing_forbidden],
        output_guardrails=[no_secret],
        tools=[checked],
    )
    counting = Agent[Visit](name="counting", model=model, tools=[count, remember])
    shelved = Agent(name="shelved", model=model, mcp_servers=[Shelf()])
    broken = Agent(name="broken", model=Broken())
    teller = Agent(name="teller", model=model, tools=[refunds])

    @function_tool
    async def delegate(prompt: str) -> str:
        """Have the teller do it."""
        return str((await Runner.run(teller, prompt)).final_output)

    delegating = Agent(name="delegating", model=model, tools=[delegate])
    limited: list[Tool] = [
        approval(function_tool(hurried, name_override=name, needs_approval=True), limit)
        for name, limit in LIMITS.items()
    ]
    hurrying = Agent(name="hurrying", model=model, tools=limited)
    writer = Agent(name="writer", model=model, tools=[function_tool(look_up)])
    once = RetryPolicy(maximum_attempts=1)
    return Interlock(
        [support, guarded, counting, shelved, broken, teller, delegating, hurrying, writer],
        settings=Settings(task_queue="replay"),
        retries=Retries(model=once, tool=once),
        run_hooks=Hearing(),
        review={"writer": 3},
    )
