"""Approval of tool calls: who is asked what, what runs, and what the model is told."""

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from temporalio.workflow import ChildWorkflowConfig

from interlock import Interlock, RefusedError, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts.errors import MisconfiguredError
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call, user_texts


class Refunds:
    """A tool that remembers what it was called with."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []

    def refund(self, order: str, amount: float) -> str:
        """Pay money back."""
        self.made.append((order, amount))
        return f"refunded {order}"

    def gated(self) -> Tool[Any]:
        return Tool(self.refund, requires_approval=True)


def two_refunds() -> list[ToolCallPart]:
    return [call("refund", "a", order="A-1", amount=10.0), call("refund", "b", order="A-2", amount=20.0)]


async def test_an_edit_of_nothing_but_a_values_type_runs(run_app: Running) -> None:
    ran: list[Any] = []

    def take(value: Any) -> None:
        ran.append(value)

    edits: list[tuple[Any, Any]] = [(1, True), (1, 1.0), (0, False)]
    script = Script([call("take", str(n), value=asked) for n, (asked, _) in enumerate(edits)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(take, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        requests = {request.call_id: request for request in await app.requests(run, len(edits))}
        for n, (_, edited) in enumerate(edits):
            await run.decide(requests[str(n)].request_id, "approve", arguments={"value": edited})
            await app.state(run, lambda _, n=n: len(ran) == n + 1)  # type: ignore[misc]
        await run.result()

        assert [(type(value), value) for value in ran] == [(type(edited), edited) for _, edited in edits]


async def test_a_tool_that_asks_by_itself_is_asked_about_once(run_app: Running) -> None:
    asked: list[bool] = []
    failed: list[str] = []

    def refund(ctx: RunContext[Any], order: str, amount: float) -> str:
        asked.append(ctx.tool_call_approved)
        if not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"risk": "high"})
        failed.append(order)
        return "refunded"

    script = Script([call("refund", "a", order="A-1", amount=10.0)], "done")
    async with run_app(Interlock([agent(script, tools=[refund])])) as app:
        run = await app.client.start("support", "refund A-1")
        (request,) = await app.requests(run, 1)
        assert request.metadata == {"risk": "high"}
        await run.decide("1", "approve")
        await run.result()

        assert asked == [False, True]
        assert script.results() == {"a": "refunded"}


async def test_a_tool_that_asks_again_although_approved_ends_the_run_by_name(run_app: Running) -> None:
    def refund() -> str:
        raise ApprovalRequired

    async with run_app(Interlock([agent(Script([call("refund", "a")], "done"), tools=[refund])])) as app:
        run = await app.client.start("support", "refund")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        with pytest.raises(RunFailedError, match="'refund' asked for an approval again"):
            await run.result()


async def test_an_arguments_validator_can_ask_and_its_call_does_not_wait_for_others(run_app: Running) -> None:
    refunds = Refunds()

    def checked(ctx: RunContext[Any], order: str, amount: float) -> None:
        if amount > 15 and not ctx.tool_call_approved:
            raise ApprovalRequired

    tool = Tool(refunds.refund, args_validator=checked)
    script = Script([*two_refunds(), call("other", "c")], "done")
    async with run_app(
        Interlock([agent(script, tools=[tool, Tool(lambda: "x", name="other", requires_approval=True)])])
    ) as app:
        run = await app.client.start("support", "refund both")
        await app.requests(run, 2)
        (asked,) = [request for request in await run.approvals() if request.tool == "refund"]
        await run.decide(asked.request_id, "approve")
        await app.state(run, lambda _: ("A-2", 20.0) in refunds.made)
        (other,) = await run.approvals()
        await run.decide(other.request_id, "reject")
        await run.result()

        assert sorted(refunds.made) == [("A-1", 10.0), ("A-2", 20.0)]


class AsksFromAHook(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        if args.get("amount", 0) > 15 and not ctx.tool_call_approved:
            raise ApprovalRequired
        return {**args, "amount": min(args["amount"], 50.0)}


async def test_a_hook_can_ask_and_the_other_call_goes_on(run_app: Running) -> None:
    refunds, script = Refunds(), Script(two_refunds(), "done")
    async with run_app(Interlock([agent(script, tools=[refunds.refund], capabilities=[AsksFromAHook()])])) as app:
        run = await app.client.start("support", "refund both")
        (request,) = await app.requests(run, 1)
        assert request.arguments["order"] == "A-2"
        await app.state(run, lambda _: refunds.made == [("A-1", 10.0)])
        await run.decide("1", "approve", arguments={"order": "A-2", "amount": 16.0})
        await run.result()

        assert refunds.made == [("A-1", 10.0), ("A-2", 16.0)]


async def test_a_gated_call_that_a_hook_asks_about_too_is_asked_about_once(run_app: Running) -> None:
    refunds, script = Refunds(), Script([call("refund", "a", order="A-2", amount=20.0)], "done")
    async with run_app(Interlock([agent(script, tools=[refunds.gated()], capabilities=[AsksFromAHook()])])) as app:
        run = await app.client.start("support", "refund")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()

        assert refunds.made == [("A-2", 20.0)]
        assert [one.request_id for one in (await run.state()).settled] == ["1"]


class Clamps(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        return {**args, "amount": min(args["amount"], 50.0)}


async def test_the_reviewer_sees_the_arguments_as_the_tool_gets_them(run_app: Running) -> None:
    refunds, script = Refunds(), Script([call("refund", "a", order="A-1", amount=900.0)], "done")
    async with run_app(Interlock([agent(script, tools=[refunds.gated()], capabilities=[Clamps()])])) as app:
        run = await app.client.start("support", "refund")
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"order": "A-1", "amount": 50.0}
        await run.decide("1", "approve", digest=request.digest)
        await run.result()

        assert refunds.made == [("A-1", 50.0)]


async def test_the_reviewer_sees_no_secrets_and_the_tool_gets_them(run_app: Running) -> None:
    got: list[dict[str, Any]] = []

    def deploy(api_key: str, note: str, target: str) -> str:
        """Ship it."""
        got.append({"api_key": api_key, "note": note, "target": target})
        return "shipped"

    secrets = {"api_key": "k-123456", "note": "use Bearer abcdef0123456789 now", "target": "prod"}
    script = Script([call("deploy", "a", **secrets)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(deploy, requires_approval=True)])])) as app:
        run = await app.client.start("support", "deploy")
        (request,) = await app.requests(run, 1)
        assert request.description == "Ship it."
        assert request.agent_path == ("support",)
        assert request.arguments == {"api_key": "[masked]", "note": "use Bearer [masked] now", "target": "prod"}
        await run.decide("1", "approve", arguments={**request.arguments, "target": "staging"})
        await run.result()

        assert got == [{**secrets, "target": "staging"}]
        assert all("123456" not in step.summary and "abcdef" not in step.summary for step in await run.steps())


async def test_a_deferred_call_waits_for_its_result_from_outside(run_app: Running) -> None:
    started: list[str] = []

    def render(scene: str) -> str:
        started.append(scene)
        raise CallDeferred(metadata={"job": 7})

    calls = [call("render", "a", scene="one"), call("render", "b", scene="two"), call("render", "c", scene="three")]
    script = Script(calls, "done")
    async with run_app(Interlock([agent(script, tools=[render])])) as app:
        run = await app.client.start("support", "render")
        requests = await app.requests(run, 3)
        assert {request.kind for request in requests} == {"tool_result"}
        assert (await run.report()).status == "awaiting_tool_result"
        numbers = {request.call_id: request.request_id for request in requests}
        with pytest.raises(RefusedError, match="waits for the result of a tool call"):
            await run.decide(numbers["a"], "approve")
        await run.complete_tool_call("b", result={"url": "x"})
        await run.complete_tool_call("a", error="no GPU left")
        with pytest.raises(RefusedError, match="already completed"):
            await run.complete_tool_call(numbers["b"], result=1)
        await run.decide(numbers["c"], "reject", reason="not needed")
        await run.result()

        assert sorted(started) == ["one", "three", "two"]
        assert script.results() == {"a": "no GPU left", "b": {"url": "x"}, "c": "not needed"}
        assert script.outcomes() == {"a": "failed", "b": "success", "c": "denied"}


async def test_a_run_shows_the_beginning_of_a_long_reason_and_the_model_reads_all_of_it(run_app: Running) -> None:
    external = ExternalToolset([ToolDefinition(name="pick", parameters_json_schema={"type": "object"})], id="ui")
    script, reason = Script([call("pick", "a")], "done"), "no color left " + "x" * 9_000
    async with run_app(Interlock([agent(script, toolsets=[external])])) as app:
        run = await app.client.start("support", "pick")
        await app.requests(run, 1)
        await run.complete_tool_call("a", error=reason)
        await run.result()

        shown = (await run.state()).settled[0].reason
        assert shown.startswith("no color left xxx")
        assert len(shown) < 600
        assert script.results() == {"a": reason}


async def test_tools_of_an_external_toolset_wait_for_their_results(run_app: Running) -> None:
    external = ExternalToolset([ToolDefinition(name="pick", parameters_json_schema={"type": "object"})], id="ui")
    script = Script([call("pick", "a", color="red")], "done")
    async with run_app(Interlock([agent(script, toolsets=[external])])) as app:
        run = await app.client.start("support", "pick")
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"color": "red"}
        await run.complete_tool_call("a", result="blue")
        await run.result()

        assert script.results() == {"a": "blue"}


async def test_an_approved_tool_can_then_defer(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    script = Script([call("render", "a")], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(render, requires_approval=True)])])) as app:
        run = await app.client.start("support", "render")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: state.status == "awaiting_tool_result")
        await run.complete_tool_call("a", result="ready")
        await run.result()

        assert script.results() == {"a": "ready"}


async def test_a_note_on_an_edit_keeps_what_the_tool_returned_beside_it(run_app: Running) -> None:
    def refund(amount: float) -> ToolReturn:
        return ToolReturn(return_value=amount, content="a receipt", metadata={"id": 1})

    script = Script([call("refund", "a", amount=2.0)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(refund, requires_approval=True)])])) as app:
        run = await app.client.start("support", "refund")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"amount": 1.0})
        await run.result()

        assert script.results() == {"a": 1.0}
        receipt, note = user_texts(script.asked[-1])
        assert receipt == "a receipt"
        assert "A reviewer approved" in note


CHILD: dict[str, Any] = {"temporal": {"child_workflow": ChildWorkflowConfig()}}


def pay_in_a_child(amount: int) -> str:
    raise AssertionError("ran")


async def test_a_gated_tool_that_runs_as_a_child_workflow_is_refused_at_the_start(run_app: Running) -> None:
    tool = Tool(pay_in_a_child, requires_approval=True, metadata=CHILD)
    with pytest.raises(MisconfiguredError, match="'pay_in_a_child' is to be approved and to run as a child workflow"):
        async with run_app(Interlock([agent(Script("done"), tools=[tool])])):
            pass


async def test_a_call_that_turns_out_to_be_gated_does_not_run_as_a_child_workflow(run_app: Running) -> None:
    async def pay(amount: int) -> str:
        return pay_in_a_child(amount)

    bank = FunctionToolset([Tool(pay, metadata=CHILD)], id="bank").approval_required()
    async with run_app(Interlock([agent(Script([call("pay", "p", amount=5)]), toolsets=[bank])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="'pay' is to be approved and to run as a child workflow") as ended:
            await run.result()

        assert ended.value.error_type == "UserError"


class Asking(AbstractCapability[Any]):
    """A hook around each call that wants it approved."""

    async def wrap_tool_execute(self, ctx: RunContext[Any], *, handler: Any, args: Any, **_: Any) -> Any:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return await handler(args)


@pytest.mark.parametrize("order", ["before", "after"])
async def test_a_hook_around_a_call_that_asks_for_an_approval_waits_at_the_gate(run_app: Running, order: str) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    script = Script([call("pay", "p", amount=5), call("pay", "q", amount=6), call("pay", "r", amount=7)], "done")
    capabilities = [Asking(), Durable()] if order == "before" else [Durable(), Asking()]
    asking = Agent(script.model, name="support", tools=[pay], capabilities=capabilities)
    async with run_app(Interlock([asking])) as app:
        run = await app.client.start("support", "go")
        requests = await app.requests(run, 3)
        assert [one.call_id for one in requests] == ["p", "q", "r"]
        await run.decide("1", "approve", digest=requests[0].digest)
        await run.decide("2", "approve", arguments={"amount": 60})
        await run.decide("3", "reject", reason="one is enough")
        await run.result()

        assert sorted(paid) == [5, 60]
        assert script.results() == {"p": "paid 5", "q": "paid 60", "r": "one is enough"}
