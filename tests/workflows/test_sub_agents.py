"""Agents that tools run: their own steps, their own requests, and nothing twice."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import CallDeferred
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest

from interlock import Client, Interlock, RefusedError, Run, RunFailedError
from interlock.contracts.payloads import Parent, RunInput
from interlock.worker import SubRunsThroughClient
from tests.conftest import Running, left_behind
from tests.workflows.scripts import Script, agent, call, prompt_of


class Order(BaseModel):
    number: str
    total: float


async def test_an_agent_in_a_tool_gives_its_output_type_its_messages_and_its_usage(run_app: Running) -> None:
    seen: list[Any] = []
    inner_script = Script([call("final_result", "f", number="A-1", total=3.0)])
    inner = agent(inner_script, name="reader", output_type=Order, deps_type=Order)

    async def read(ctx: RunContext[Any], text: str) -> Any:
        result = await inner.run(text, deps=Order(number="deps", total=1), usage=ctx.usage)
        seen.append((result.output, len(result.all_messages()), result.usage.requests, ctx.usage.requests))
        return result.output.number

    outer = agent(Script([call("read", "r", text="A-1")], "done"), tools=[read])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "help")
        output = await run.result()

        assert seen == [(Order(number="A-1", total=3.0), 3, 1, 2)]
        assert output.usage.requests == 3


async def test_two_agents_at_once_in_one_tool_are_two_runs(run_app: Running) -> None:
    inner_script = Script(lambda messages: f"did {prompt_of(messages)}")
    inner = agent(inner_script, name="worker")

    async def both() -> list[str]:
        results = await asyncio.gather(inner.run("one"), inner.run("two"))
        return [result.output for result in results]

    script = Script([call("both", "b")], "done")
    async with run_app(Interlock([agent(script, tools=[both]), inner])) as app:
        run = await app.client.start("support", "help")
        await run.result()

        assert script.results() == {"b": ["did one", "did two"]}
        assert inner_script.calls == 2


async def test_a_call_id_that_two_agents_of_a_run_share_does_not_name_a_request(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    inner_script = Script([call("render", "same")], "inner done")
    inner = agent(inner_script, name="inner", tools=[render])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    outer_script = Script([call("render", "same"), call("delegate", "d")], "done")
    outer = agent(outer_script, tools=[render, Tool(delegate, metadata={"temporal": False})])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "help")
        requests = await app.requests(run, 2)
        with pytest.raises(RefusedError, match="'same' fits requests 1, 2; name one of them instead"):
            await run.complete_tool_call("same", result="whose?")
        for request in requests:
            await run.complete_tool_call(request.request_id, result=f"for {request.agent_path[-1]}")
        await run.result()

        assert outer_script.results() == {"same": "for support", "d": "inner done"}
        assert inner_script.results() == {"same": "for inner"}


async def test_an_agent_whose_parent_has_ended_before_it_began_does_nothing(run_app: Running) -> None:
    """Nobody would ever end it: its parent has not heard of it."""
    script = Script("inner done")
    async with run_app(Interlock([agent(script, name="inner")])) as app:
        ended = await app.client.start("inner", "go")
        await ended.result()
        parent = Parent(workflow_id=ended.id, run_id=str((await ended.journal()).run_id), agent_path=("support",))
        orphan = SubRunsThroughClient(app.client).run(
            f"{ended.id}/inner-1", RunInput(agent="inner", prompt="go", parent=parent), not_before=datetime.now(UTC)
        )
        with pytest.raises(RunFailedError, match="nobody waits for this agent") as failed:
            await orphan

        assert failed.value.error_type == "ParentGoneError"
        assert script.calls == 1


async def test_an_agent_that_begins_after_a_reset_of_the_run_above_is_started_over_for_it(
    run_app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")
    start, is_reset = Client._start, asyncio.Event()

    async def after_a_reset(client: Client, id: str, *args: Any, **options: Any) -> Run:
        if "/inner-" in id and not is_reset.is_set():
            above = id.partition("/")[0]
            temporal = client.temporal
            described = await temporal.get_workflow_handle(above).describe()
            reset = ResetWorkflowExecutionRequest(
                namespace=temporal.namespace,
                workflow_execution=WorkflowExecution(workflow_id=above, run_id=described.run_id),
                reason="a test",
                workflow_task_finish_event_id=4,
                request_id="once",
            )
            await temporal.workflow_service.reset_workflow_execution(reset)
            is_reset.set()
        return await start(client, id, *args, **options)

    monkeypatch.setattr(Client, "_start", after_a_reset)

    async def delegate() -> Any:
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        first = await app.client.start("support", "help")
        await asyncio.wait_for(is_reset.wait(), 60)
        output = await app.client.attach(first.id).result()

    assert (script.results(), inner_script.calls, output.usage.requests) == ({"d": "inner done"}, 1, 3)


async def test_an_agent_whose_start_is_on_its_way_when_its_tool_gives_it_up_is_cancelled(
    run_app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = agent(
        Script([call("pay", "p")], "x"), name="payer", tools=[Tool(lambda: "paid", name="pay", requires_approval=True)]
    )
    on_its_way, given_up = asyncio.Event(), asyncio.Event()
    start = Client._start

    async def late(client: Client, id: str, *args: Any, **options: Any) -> Run:
        if "/payer-" in id:
            on_its_way.set()
            await given_up.wait()
        return await start(client, id, *args, **options)

    monkeypatch.setattr(Client, "_start", late)

    async def delegate() -> str:
        task = left_behind(inner.run("go"))
        await on_its_way.wait()
        task.cancel()
        await asyncio.sleep(0)
        given_up.set()
        await asyncio.wait([task])
        return "given up"

    async with run_app(Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "help")
        assert (await run.result()).output == "done"
        (sub_run,) = (await run.state()).sub_runs
        with pytest.raises(RunFailedError) as failed:
            await app.client.attach(sub_run.workflow_id).result()

        assert failed.value.status == "cancelled"


async def test_a_run_started_over_starts_the_agents_of_its_tools_over(run_app: Running) -> None:
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")

    async def delegate() -> Any:
        return (await inner.run("go")).output

    outer = agent(Script([call("delegate", "d")], "done"), tools=[delegate])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go", id=f"over-{app.client.task_queue}")
        await run.result()
        await (await app.client.start("support", "go", id=run.id, restart=True)).result()

        assert inner_script.calls == 2


async def test_a_gated_call_of_an_agent_in_a_child_workflow_does_not_run_unasked(run_app: Running) -> None:
    """There is no gate in a child workflow, so the framework's own deferral ends the agent."""
    ran: list[str] = []

    def pay(order: str) -> None:
        ran.append(order)

    inner = agent(Script([call("pay", "p", order="A-1")], "x"), name="inner", tools=[Tool(pay, requires_approval=True)])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    in_a_child = Tool(delegate, metadata={"temporal": {"child_workflow": {}}})
    outer = agent(Script([call("delegate", "d")], "done"), tools=[in_a_child])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="deferred tool call"):
            await run.result()

    assert ran == []


async def given_up(delegated: Any) -> str:
    """Wait for the agent, for a moment only."""
    try:
        return str((await asyncio.wait_for(delegated, 1)).output)
    except TimeoutError:
        return "given up"


async def beside_a_failing_one(delegated: Any) -> str:
    """Wait for the agent in a group that something else in it ends."""

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ConnectionError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(delegated)
            group.create_task(fail())
    except* ConnectionError:
        pass
    return "given up"


async def left_at_work(delegated: Any) -> str:
    """Start the agent, and do not wait for it."""
    task = left_behind(delegated)
    await asyncio.wait([task], timeout=1)
    return "given up"


@pytest.mark.parametrize("how", [given_up, beside_a_failing_one, left_at_work])
async def test_an_agent_that_its_tool_gives_up_asks_nobody_any_more_and_its_usage_counts(
    run_app: Running, how: Any
) -> None:
    inner = agent(
        Script([call("pay", "p")], "inner done"),
        name="payer",
        tools=[Tool(lambda: "paid", name="pay", requires_approval=True)],
    )

    async def delegate() -> str:
        return str(await how(inner.run("go")))

    outer_script = Script([call("delegate", "d")], "outer done")
    async with run_app(Interlock([agent(outer_script, tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "help")
        output = await run.result()
        (sub_run,) = (await run.state()).sub_runs
        with pytest.raises(RunFailedError) as ended:
            await app.client.attach(sub_run.workflow_id).result()

        assert outer_script.results() == {"d": "given up"}
        assert ended.value.status == "cancelled"
        assert output.usage.requests == 3


async def test_an_agent_of_an_approved_call_ends_when_a_person_has_said_that_the_call_happened(
    run_app: Running,
) -> None:
    inner = agent(
        Script([call("pay", "p")], "inner done"),
        name="payer",
        tools=[Tool(lambda: "paid", name="pay", requires_approval=True)],
    )

    async def delegate() -> str:
        task = left_behind(inner.run("go"))
        await asyncio.wait([task], timeout=1)
        raise ConnectionError

    tools = [Tool(delegate, requires_approval=True)]
    async with run_app(Interlock([agent(Script([call("delegate", "d")], "done"), tools=tools), inner])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await run.decide("2", "happened", result="it did")
        await run.result()
        (sub_run,) = (await run.state()).sub_runs
        with pytest.raises(RunFailedError) as ended:
            await app.client.attach(sub_run.workflow_id).result()

        assert ended.value.status == "cancelled"
