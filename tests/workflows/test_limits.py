"""Time limits of requests where they meet judges, results from outside, toolsets and answers that do not count."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.capabilities import HandleDeferredToolCalls, Hooks
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tools import DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from temporalio.client import Client as TemporalClient
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig

from interlock import Client, Interlock, RefusedError, RunFailedError
from interlock.contracts import names
from interlock.contracts.payloads import Decision, RunState
from interlock.server import EmbeddedServer
from interlock.worker import run_worker
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

SOON, HOUR = 0.4, 3_600


def deny(after_seconds: float) -> dict[str, Any]:
    return {"after_seconds": after_seconds, "then": "deny"}


def pay(order: str = "") -> str:
    return f"paid {order}"


def has_settled(state: RunState) -> bool:
    return bool(state.settled)


async def test_a_result_that_nobody_reports_is_told_to_be_unknown(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    printed = ExternalToolset([ToolDefinition(name="print", metadata={"approval": deny(HOUR)})], id="printers")
    tools = [Tool(render, metadata={"approval": deny(SOON)})]
    script = Script([call("render", "a"), call("print", "b")], "done")
    async with run_app(Interlock([agent(script, tools=tools, toolsets=[printed])])) as app:
        run = await app.client.start("support", "go")
        state = await app.state(run, has_settled)
        assert [(one.kind, one.tool, one.then) for one in state.requests] == [("tool_result", "print", "deny")]
        with pytest.raises(RefusedError, match=r"was not answered in time, .*: Nobody reported the result"):
            await run.complete_tool_call(state.settled[0].request_id, result="late")
        await run.complete_tool_call("b", result="on paper")
        await run.result()

        assert script.results()["b"] == "on paper"
        assert script.results()["a"] == (
            "Nobody reported the result of this call within 400 ms. It is not known whether it happened; nobody has "
            "refused it."
        )
        assert script.outcomes() == {"a": "denied", "b": "success"}


async def test_judges_come_first_and_the_limit_counts_from_when_people_are_asked(run_app: Running) -> None:
    def judge(ctx: Any, requests: Any) -> DeferredToolResults | None:
        (one,) = requests.approvals
        sure = one.args_as_dict()["order"] == "sure"
        return DeferredToolResults(approvals={one.tool_call_id: True}) if sure else None

    tools = [Tool(pay, requires_approval=True, metadata={"approval": deny(SOON)})]
    script = Script([call("pay", "a", order="sure"), call("pay", "b", order="unsure")], "done")
    durable = agent(script, tools=tools, capabilities=[HandleDeferredToolCalls(judge)])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        journal = await run.journal()

        assert script.results()["a"] == "paid sure"
        assert "Nobody answered" in script.results()["b"]
        sure, unsure = journal.requests
        assert (sure.outcome, unsure.outcome) == ("approved", "timed_out")
        judged = journal.steps[(unsure.judged_by or 0) - 1].ended_at
        assert judged
        assert unsure.settled_at
        assert (unsure.settled_at - judged).total_seconds() >= SOON


@pytest.mark.parametrize("gated", ["by a predicate", "by the tool"])
async def test_what_a_toolset_says_holds_for_its_tools(run_app: Running, gated: str) -> None:
    from pydantic_ai import ApprovalRequired, RunContext

    made: list[str] = []

    def refund(ctx: RunContext[Any]) -> str:
        if gated == "by the tool" and not ctx.tool_call_approved:
            raise ApprovalRequired
        made.append("refund")
        return "refunded"

    limited = FunctionToolset([Tool(refund)], id="refunds").with_metadata(approval=deny(SOON))
    asking = limited.approval_required(lambda ctx, tool, arguments: gated == "by a predicate")
    script = Script([call("refund", "a")], "done")
    async with run_app(Interlock([agent(script, toolsets=[asking])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert "Nobody answered" in script.results()["a"]
        assert made == []


async def test_escalations_and_what_nobody_answered_are_counted_once(server: EmbeddedServer) -> None:
    counted = MetricBuffer(10_000)
    runtime = Runtime(telemetry=TelemetryConfig(metrics=counted))
    temporal = await TemporalClient.connect(
        server.address, data_converter=pydantic_data_converter, runtime=runtime, lazy=False
    )
    limit = [{"after_seconds": 0.1, "then": "escalate", "to": ["ops"]}, deny(SOON)]
    tools = [Tool(pay, requires_approval=True, metadata={"approval": limit})]
    app, stop = Interlock([agent(Script([call("pay", "a")], "done"), tools=tools)]), asyncio.Event()
    client = Client(temporal, task_queue="counted-limits", stuck_seconds=0)
    worker = asyncio.create_task(run_worker(app, client, stop, max_cached_workflows=0))
    try:
        await (await client.start("support", "go")).result()
    finally:
        stop.set()
        await worker
    updates = [one for one in counted.retrieve_updates() if one.metric.name.startswith("interlock_approvals_")]

    assert [(one.metric.name, one.value, one.attributes.get("outcome")) for one in updates] == [
        ("interlock_approvals_requested", 1, None),
        ("interlock_approvals_escalated", 1, None),
        ("interlock_approvals_settled", 1, "timed_out"),
    ]
    assert all(one.attributes["agent"] == "support" for one in updates)


async def test_an_answer_that_was_refused_does_not_pass_for_the_one_that_counted(run_app: Running) -> None:
    """By signal: the history does not say that it was refused, only that the limit was reached all the same."""
    limit = [{"after_seconds": 2, "then": "escalate", "to": ["ops"]}, deny(2.2)]
    tools = [Tool(pay, requires_approval=True, metadata={"approval": limit})]
    script = Script([call("pay", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=tools)])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        decision = Decision(
            request_id="1", verdict="approve", digest="of another", decided_by="eve", decided_at=datetime.now(UTC)
        )
        await app.client.temporal.get_workflow_handle(run.id).signal(names.DECIDE_APPROVAL, decision)
        await run.result()
        (request,) = (await run.journal()).requests

        assert (request.outcome, request.escalated_to) == ("timed_out", ("ops",))
        assert [(one.by, one.ignored) for one in request.ignored] == [("eve", "it was not valid")]


async def test_a_limit_that_is_none_but_shows_only_in_the_run_ends_it(run_app: Running) -> None:
    async def spoiled(ctx: Any, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        for tool in tools:
            tool.metadata = {"approval": {"after_seconds": -1, "then": "deny"}}
        return tools

    toolset = FunctionToolset([Tool(pay, requires_approval=True)], id="payments").prepared(spoiled)
    async with run_app(Interlock([agent(Script([call("pay", "a")], "done"), toolsets=[toolset])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match=r"The time limit of tool 'pay' .*after_seconds: .*greater than 0"):
            await run.result()


async def test_a_limit_that_ends_the_run_does_not_wait_for_an_agent_beside_it(run_app: Running) -> None:
    """Also where a hook had the call asked about. The agent waits for a person, who may come in weeks."""
    hooks = Hooks[Any]()

    @hooks.on.before_tool_execute
    async def asks(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        if call.tool_name == "pay" and not ctx.tool_call_approved:
            raise ApprovalRequired
        return args

    inner = agent(Script([call("pay", "x")], "inner done"), name="inner", tools=[Tool(pay, requires_approval=True)])

    async def ask_inner() -> str:
        return str((await inner.run("go")).output)

    limited = Tool(pay, metadata={"approval": {"after_seconds": 3, "then": "fail"}})
    script = Script([call("pay", "a"), call("ask_inner", "b")], "done")
    outer = agent(script, tools=[limited, Tool(ask_inner)], capabilities=[hooks])
    async with run_app(Interlock([outer, inner])) as app, asyncio.timeout(60):
        run = await app.client.start("support", "go", stuck_seconds=600)
        with pytest.raises(RunFailedError, match="Nobody answered") as failed:
            await run.result()

        assert failed.value.error_type == names.APPROVAL_TIMED_OUT
