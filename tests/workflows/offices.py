"""Agents of each framework for messages that nobody should send: their runs come to wait for all that runs wait for."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import agents as openai_agents
from pydantic import AfterValidator
from pydantic_ai import Tool
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import ModelMessage, ToolCallPart
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Run, Settings
from interlock.contracts.canonical import digest
from tests.openai_agents import scripts as openai_scripts
from tests.workflows.scripts import Script, agent, call, prompt_of

OWN_SECRET = "sk-of-the-run-0123456789abcdef"

SCHEMA = {
    "type": "object",
    "oneOf": [{"required": ["order"]}, {"required": ["account"]}],
    "minProperties": 2,
    "properties": {"note": {"pattern": r"\p{L}"}},  # As other languages write it; Python cannot read it.
}

CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ("pay", "b", {"order": "A-2", "api_key": OWN_SECRET}),
    ("wire", "c", {"order": "A-3", "api_key": OWN_SECRET}),
    ("lose", "d", {}),
    ("render", "e", {}),
    ("post", "f", {}),
]
"""What the agents ask for once the first call, of `pay`, was approved: two calls that wait for an approval, one that is
approved and lost, one that waits in another way, and one that is stuck."""


@dataclass(frozen=True)
class Office:
    """The agents of a framework. build: given lists for what is paid, and for whether what breaks is mended.

    approved: the requests that are approved before the run waits. waits: what it waits for then, by request.
    settle: ends the waits for the lost call and for `render`. takes: an app of one tool that takes any value; a second
    one waits for a result from outside, where the framework knows such tools. examples: how many a test takes.
    """

    name: str
    build: Callable[[list[Any], list[bool]], Interlock]
    approved: tuple[str, ...]
    waits: Mapping[str, str]
    takes: Callable[[list[str]], Interlock]
    renders: bool
    examples: int

    async def settle(self, run: Run, digests: Mapping[str, str]) -> None:
        """Answer all that the run waits for but the approvals."""
        for request_id, kind in self.waits.items():
            if kind == "tool_result":
                await run.complete_tool_call("e", result="rendered", digest=digests[request_id])
            elif kind == "outcome":
                await run.decide(request_id, "happened", result="sent", digest=digests[request_id])


def app_of(agent: Any) -> Interlock:
    once = Retries(tool=RetryPolicy(maximum_attempts=1))
    return Interlock([agent], settings=Settings(stuck_seconds=3_600), retries=once)


def look_up(memo: str) -> str:
    if memo:
        raise LookupError(memo)
    return memo


def lose() -> str:
    raise ConnectionError("unplugged")


def _pydantic_ai(paid: list[Any], mended: list[bool]) -> Interlock:
    def pay(order: str, api_key: str, memo: Annotated[str, AfterValidator(look_up)] = "") -> str:
        paid.append(order)
        return f"paid {order}"

    def wire(**given: Any) -> str:
        return pay(**given)

    def render() -> str:
        raise CallDeferred

    def post() -> str:
        if not mended:
            raise ConnectionError("unplugged")
        return "posted"

    by_schema = Tool.from_schema(wire, name="wire", description="", json_schema=SCHEMA)
    by_schema.requires_approval = True
    first = [call("pay", "a", order="A-1", api_key=OWN_SECRET)]
    script = Script(first, [call(tool, call_id, **given) for tool, call_id, given in CALLS], "done")
    gated = [Tool(pay, requires_approval=True), by_schema, Tool(lose, requires_approval=True)]
    return app_of(agent(script, tools=[*gated, render, post]))


def _pydantic_ai_takes(ran: list[str]) -> Interlock:
    def take(value: Any) -> None:
        ran.append(digest(value))

    def render(value: int) -> str:
        raise CallDeferred

    def calls(messages: list[ModelMessage]) -> list[ToolCallPart]:
        return [call(tool, value=n) for n, tool in enumerate(prompt_of(messages).split())]

    return Interlock([agent(Script(calls, "done"), tools=[Tool(take, requires_approval=True), render])])


def _openai_agents(paid: list[Any], mended: list[bool]) -> Interlock:
    def pay(order: str, api_key: str, memo: str = "") -> str:
        paid.append(order)
        return f"paid {order}"

    async def wire(ctx: Any, arguments: str) -> str:
        return pay(**json.loads(arguments))

    def post() -> str:
        if not mended:
            raise ConnectionError("unplugged")
        return "posted"

    def made(function: Callable[..., Any], name: str = "", gated: bool = True) -> openai_agents.FunctionTool:
        options: dict[str, Any] = {"name_override": name or None, "needs_approval": gated, "strict_mode": False}
        return openai_agents.function_tool(function, failure_error_function=None, **options)

    by_schema = openai_agents.FunctionTool("wire", "", SCHEMA, wire, strict_json_schema=False, needs_approval=True)
    first = [openai_scripts.call("pay", "a", order="A-1", api_key=OWN_SECRET)]
    then = [openai_scripts.call(tool, call_id, **given) for tool, call_id, given in CALLS]
    tools: list[Any] = [made(pay), by_schema, made(lose), made(lose, "render"), made(post, gated=False)]
    return app_of(openai_scripts.agent(openai_scripts.Script(first, then, "done"), tools=tools))


def _openai_agents_takes(ran: list[str]) -> Interlock:
    def take(value: Any) -> None:
        ran.append(digest(value))

    def calls(items: list[Any]) -> list[Any]:
        return [openai_scripts.call(tool, f"c{n}", value=n) for n, tool in enumerate(items[0]["content"].split())]

    one = openai_agents.function_tool(take, needs_approval=True, strict_mode=False)
    return Interlock([openai_scripts.agent(openai_scripts.Script(calls, "done"), tools=[one])])


OFFICES = [
    Office(
        "pydantic-ai",
        _pydantic_ai,
        ("4",),
        {"2": "approval", "3": "approval", "5": "tool_result", "6": "outcome"},
        _pydantic_ai_takes,
        renders=True,
        examples=6,
    ),
    Office(  # There are no tools whose results come from outside; another call is lost in the place of one.
        "openai-agents",
        _openai_agents,
        ("4", "5"),
        {"2": "approval", "3": "approval", "6": "outcome", "7": "outcome"},
        _openai_agents_takes,
        renders=False,
        examples=4,
    ),
]
