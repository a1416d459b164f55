"""Nobody is asked about a call that could not run: its arguments are checked before, and again when it runs."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.exceptions import ApprovalRequired, ModelRetry
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ExternalToolset, FunctionToolset

from interlock import Interlock
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "number", "maximum": 100}},
    "required": ["order", "amount"],
    "additionalProperties": False,
}
paid: list[tuple[str, float]] = []


def pay(order: str, amount: float) -> str:
    paid.append((order, amount))
    return "paid"


def check(ctx: RunContext[Any], order: str, amount: float) -> None:
    if amount > 100:
        raise ModelRetry("At most 100 can be paid back.")


def checked_pay(ctx: RunContext[Any], order: str, amount: float) -> None:
    check(ctx, order, amount)
    if not ctx.tool_call_approved:
        raise ApprovalRequired


def asking_pay(ctx: RunContext[Any], order: str, amount: float) -> str:
    if not ctx.tool_call_approved:
        raise ApprovalRequired
    return pay(order, amount)


def by_schema() -> Tool[Any]:
    tool: Tool[Any] = Tool.from_schema(pay, name="pay", description="", json_schema=SCHEMA)
    tool.requires_approval = True
    return tool


TOOLSETS: dict[str, Callable[[], AbstractToolset[Any]]] = {
    "marked": lambda: FunctionToolset([Tool(pay, requires_approval=True, args_validator=check)], id="t"),
    "toolset": lambda: FunctionToolset([Tool(pay, args_validator=check)], id="t").approval_required(),
    "validator asks": lambda: FunctionToolset([Tool(pay, args_validator=checked_pay)], id="t"),
    "tool asks": lambda: FunctionToolset([Tool(asking_pay, name="pay", args_validator=check)], id="t"),
    "schema": lambda: FunctionToolset([by_schema()], id="t"),
}
INVALID: dict[str, Any] = {
    "wrong type": {"order": "A-1", "amount": "lots"},
    "missing": {"order": "A-1"},
    "unknown": {"order": "A-1", "amount": 5, "colour": "red"},
    "refused by the validator": {"order": "A-1", "amount": 500},
    "no object": "[1, 2]",
    "no JSON": '{"order": "A-1", "amo',
    "null": "null",
    "empty": "",
}


@pytest.mark.parametrize("kind", TOOLSETS)
async def test_calls_with_invalid_arguments_ask_nobody(run_app: Running, kind: str) -> None:
    paid.clear()
    wrong = [ToolCallPart("pay", arguments, tool_call_id=name) for name, arguments in INVALID.items()]
    script = Script(wrong, [call("pay", "right", order="A-1", amount=5)], "done")
    async with run_app(Interlock([agent(script, toolsets=[TOOLSETS[kind]()])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.request_id, request.call_id) == ("1", "right")
        await run.decide("1", "approve", digest=request.digest)
        await run.result()

        assert paid == [("A-1", 5)]
        assert [one.call_id for one in (await run.journal()).requests] == ["right"]
        assert script.outcomes(1) == dict.fromkeys(INVALID, "retried")


@pytest.mark.parametrize("kind", ["marked", "toolset", "validator asks"])
async def test_an_edit_that_the_tools_own_validator_refuses_does_not_run(run_app: Running, kind: str) -> None:
    paid.clear()
    script = Script([call("pay", "a", order="A-1", amount=5)], "done")
    async with run_app(Interlock([agent(script, toolsets=[TOOLSETS[kind]()])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"order": "A-1", "amount": 500})
        await run.result()

        assert paid == []
        assert script.results() == {"a": "At most 100 can be paid back."}


async def test_a_call_that_runs_outside_is_checked_against_its_schema_first(run_app: Running) -> None:
    external = ExternalToolset([ToolDefinition(name="pay", parameters_json_schema=SCHEMA)], id="ui")
    wrong = [ToolCallPart("pay", arguments, tool_call_id=name) for name, arguments in INVALID.items()]
    script = Script(wrong, [call("pay", "right", order="A-1", amount=5)], "done")
    async with run_app(Interlock([agent(script, toolsets=[external])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.request_id, request.call_id) == ("1", "right")
        await run.complete_tool_call("right", result="paid", digest=request.digest)
        await run.result()

        assert script.outcomes(1) == dict.fromkeys(INVALID, "retried")
