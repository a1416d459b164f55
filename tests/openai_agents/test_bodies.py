"""Agents of the OpenAI Agents SDK that the code of tools runs: what goes into their runs, and what comes back."""

import asyncio
import dataclasses
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from agents import (
    Agent,
    ModelResponse,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    SQLiteSession,
    function_tool,
)
from agents.tool_context import ToolContext
from pydantic import BaseModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, RunFailedError
from interlock.server import EmbeddedServer
from interlock.testing import eventually
from tests.conformance.conftest import app_runner
from tests.conftest import Running, left_behind
from tests.openai_agents.scripts import Script, agent, call, message
from tests.openai_agents.test_agents import replays


@dataclass
class Visit:
    user: str
    orders: list[str] = field(default_factory=list)


class Order(BaseModel):
    number: str
    total: float


async def test_an_agent_in_a_tool_gives_its_output_type_its_messages_its_usage_and_what_it_changed(
    run_app: Running,
) -> None:
    seen: list[Any] = []

    @function_tool
    def note(ctx: RunContextWrapper[Visit], order: str) -> str:
        ctx.context.orders.append(order)
        return f"noted for {ctx.context.user}"

    inner_script = Script([call("note", "n", order="A-1")], '{"number": "A-1", "total": 3}')
    inner = agent(inner_script, name="reader", tools=[note], output_type=Order)

    @function_tool(failure_error_function=None)
    async def read(ctx: ToolContext[Visit], text: str) -> str:
        before = ctx.usage.requests
        result = await Runner.run(inner, text, context=ctx)
        items: Any = result.to_input_list()
        seen.append((result.final_output, [one.type for one in result.new_items], result.last_agent, len(items)))
        seen.append((items[0], items[2]["output"], before, ctx.usage.requests, ctx.usage.input_tokens))
        return str(result.final_output_as(Order).number)

    script = Script([call("read", "r", text="A-1")], "done")
    build = Interlock([agent(script, tools=[read], instructions=told_orders), inner])
    async with run_app(build) as app:
        run = await app.client.start("support", "help", deps={"user": "ann"})
        output = await run.result()
        await replays(app, build, run)

    kinds = ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert seen[0] == (Order(number="A-1", total=3.0), kinds, inner, 4)
    assert seen[1] == ({"role": "user", "content": "A-1"}, "noted for ann", 1, 3, 15)
    assert script.results() == {"r": "A-1"}
    assert script.instructions == ["[]", "['A-1']"]
    assert output.usage.requests == 4


def told_orders(ctx: RunContextWrapper[Visit], _: Agent[Visit]) -> str:
    return str(ctx.context.orders)


async def test_an_agent_in_a_tool_that_hands_over_says_who_has_answered(run_app: Running) -> None:
    last: list[str] = []
    other = agent(Script(lambda items: "other done", *["other done"] * 3), name="other")
    inner = agent(Script([call("transfer_to_other", "t")]), name="inner", handoffs=[other])

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        result = await Runner.run(inner, "go")
        last.append(result.last_agent.name)
        return str(result.final_output)

    script = Script([call("delegate", "d")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        await (await app.client.start("support", "help")).result()

    assert (last, script.results()) == (["other"], {"d": "other done"})


async def test_a_sync_tool_runs_an_agent_whose_call_is_approved(run_app: Running) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    inner = agent(Script([call("pay", "p")], "inner done"), name="payer", tools=[pay])

    @function_tool(failure_error_function=None)
    def delegate() -> str:
        return str(Runner.run_sync(inner, "go").final_output)

    script = Script([call("delegate", "d")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "help")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        await app.requests(inside, 1)
        await inside.decide("1", "approve")
        output = await run.result()

    assert (script.results(), output.usage.requests) == ({"d": "inner done"}, 4)


async def test_a_sync_tool_that_waits_for_an_agent_can_be_cancelled(run_app: Running) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    inner = agent(Script([call("pay", "p")], "inner done"), name="payer", tools=[pay])
    over: list[str] = []

    @function_tool(failure_error_function=None)
    def delegate() -> str:
        try:
            return str(Runner.run_sync(inner, "go").final_output)
        finally:
            over.append("over")

    async with run_app(Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "help")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        await app.requests(inside, 1)
        await run.cancel()
        for one in (run, inside):
            with pytest.raises(RunFailedError) as ended:
                await asyncio.wait_for(one.result(), 60)
            assert ended.value.status == "cancelled"

    assert over == ["over"]


async def test_a_streamed_agent_in_a_tool_gives_its_items_and_its_output(run_app: Running) -> None:
    events: list[str] = []
    inner = agent(Script([call("look", "l")], "inner done"), name="inner", tools=[look])

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        result = Runner.run_streamed(inner, "go")
        async for event in result.stream_events():
            events.append(getattr(event, "name", event.type))
        return f"{result.final_output} {result.is_complete} {result.context_wrapper.usage.requests}"

    script = Script([call("delegate", "d")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        await (await app.client.start("support", "help")).result()

    assert events == ["tool_called", "tool_output", "message_output_created"]
    assert script.results() == {"d": "inner done True 2"}


async def test_a_streamed_agent_in_a_tool_that_fails_raises_where_it_is_read(run_app: Running) -> None:
    inner = agent(Script(lambda items: 1 / 0), name="inner")  # type: ignore[arg-type,return-value]

    @function_tool
    async def delegate() -> str:
        async for _ in Runner.run_streamed(inner, "go").stream_events():
            pass
        return "done"

    script = Script([call("delegate", "d")], "done")
    once = Retries(model=RetryPolicy(maximum_attempts=1))
    async with run_app(Interlock([agent(script, tools=[delegate]), inner], retries=once)) as app:
        await (await app.client.start("support", "help")).result()

    assert "Agent 'inner' failed (ZeroDivisionError): division by zero" in script.results()["d"]


@function_tool
def look() -> str:
    return "seen"


class Asked(Script):
    """A script that remembers what it was to go on from."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.previous: list[str | None] = []

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        """See `Model`."""
        self.previous.append(named.get("previous_response_id"))
        return dataclasses.replace(await super().get_response(*args, **named), response_id=f"resp_{self.calls + 1}")


async def test_what_an_agent_is_run_with_reaches_its_run(run_app: Running) -> None:
    # Of a conversation that the provider keeps it gets only what is new.
    looks: Any = lambda items: "inner done" if "output" in items[-1] else [call("look", "l")]  # noqa: E731
    inner_script = Asked(looks, looks)
    inner = agent(inner_script, name="inner", tools=[look])
    given = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    counts: list[int] = []

    @function_tool
    async def delegate(turns: int) -> str:
        result = await Runner.run(inner, given, max_turns=turns, previous_response_id="resp_1")  # type: ignore[arg-type]
        counts.append(len(result.new_items))
        return str(result.final_output)

    script = Script([call("delegate", "a", turns=1)], [call("delegate", "b", turns=2)], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        await (await app.client.start("support", "help")).result()

    assert "Agent 'inner' failed (MaxTurnsExceeded)" in script.results()["a"]
    assert (script.results()["b"], counts) == ("inner done", [3])
    assert inner_script.asked[0] == given
    assert inner_script.previous[0] == "resp_1"


async def test_an_agent_of_a_tool_may_go_on_from_answers_that_the_provider_keeps(run_app: Running) -> None:
    inner_script = Asked(lambda items: "inner done" if "output" in items[-1] else [call("look", "l")])
    inner = agent(inner_script, name="inner", tools=[look])

    @function_tool
    async def delegate() -> str:
        result = await Runner.run(inner, "go", auto_previous_response_id=True)
        return str(result.last_response_id)

    script = Script([call("delegate", "a")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        await (await app.client.start("support", "help")).result()

    assert inner_script.previous == [None, "resp_2"]
    assert [len(asked) for asked in inner_script.asked] == [1, 1]
    assert script.results() == {"a": "resp_3"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("session", SQLiteSession("s")),
        ("hooks", RunHooks()),
        ("run_config", RunConfig(workflow_name="other")),
        ("error_handlers", {"max_turns": lambda data: None}),
        ("conversation_id", "conv_1"),
        ("input", [{"role": "user", "content": object()}]),
    ],
)
async def test_what_cannot_reach_the_run_of_an_agent_in_a_tool_is_refused_by_name(
    run_app: Running, name: str, value: Any
) -> None:
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")

    @function_tool
    async def delegate() -> str:
        options = {"input": "go", name: value}
        return str((await Runner.run(inner, **options)).final_output)

    build = Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])
    async with run_app(build) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(RunFailedError, match=f"Agent 'inner' is run inside of a run with .*{name}") as ended:
            await run.result()

    assert (ended.value.error_type, inner_script.calls) == ("MisconfiguredError", 0)


async def test_a_copy_of_an_agent_of_the_app_is_not_taken_for_it(run_app: Running) -> None:
    inner = agent(Script("inner done"), name="inner")

    @function_tool
    async def delegate() -> str:
        return str((await Runner.run(inner.clone(instructions="Be rude."), "go")).final_output)

    build = Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])
    async with run_app(build) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(RunFailedError, match="'inner' is run by a tool but is another object than the app's"):
            await run.result()


async def test_two_agents_at_once_in_one_tool_are_two_runs(run_app: Running) -> None:
    inner_script = Script(lambda items: [message(f"did {items[0]['content']}")])
    inner = agent(inner_script, name="worker")

    @function_tool(failure_error_function=None)
    async def both() -> list[str]:
        results = await asyncio.gather(Runner.run(inner, "one"), Runner.run(inner, "two"))
        return [str(result.final_output) for result in results]

    script = Script([call("both", "b")], "done")
    async with run_app(Interlock([agent(script, tools=[both]), inner])) as app:
        run = await app.client.start("support", "help")
        await run.result()

        assert script.results() == {"b": "['did one', 'did two']"}
        assert len((await run.state()).sub_runs) == inner_script.calls == 2


async def test_an_agent_that_its_tool_gives_up_asks_nobody_any_more_and_its_usage_counts(run_app: Running) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    inner = agent(Script([call("pay", "p")], "inner done"), name="payer", tools=[pay])

    @function_tool
    async def delegate() -> str:
        task = left_behind(Runner.run(inner, "go"))
        await asyncio.wait([task], timeout=1)
        return "left at work"

    script = Script([call("delegate", "d")], [call("pay", "p")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate, pay]), inner])) as app:
        run = await app.client.start("support", "help")
        # Not only at the end of the run: here it goes on, and waits for a person.
        (sub_run,) = (await app.state(run, lambda state: bool(state.requests))).sub_runs
        assert sub_run.usage
        await run.decide("1", "approve")
        output = await run.result()
        with pytest.raises(RunFailedError) as ended:
            await app.client.attach(sub_run.workflow_id).result()

    assert (script.results(1), ended.value.status) == ({"d": "left at work"}, "cancelled")
    assert (sub_run.usage.requests, output.usage.requests) == (1, 4)


async def test_a_later_attempt_of_a_tool_finds_the_agent_that_the_first_has_run(run_app: Running) -> None:
    inner_script, fails = Script("inner done"), [True]
    inner = agent(inner_script, name="inner")

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        output = (await Runner.run(inner, "go")).final_output
        if fails:
            fails.clear()
            raise ConnectionError
        return str(output)

    script = Script([call("delegate", "d")], "done")
    quick = Retries(tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2))
    async with run_app(Interlock([agent(script, tools=[delegate]), inner], retries=quick)) as app:
        output = await (await app.client.start("support", "help")).result()

    assert (script.results(), inner_script.calls, output.usage.requests) == ({"d": "inner done"}, 1, 3)


async def test_a_failed_agent_in_a_tool_is_not_tried_again_by_itself(run_app: Running) -> None:
    inner = agent(Script(lambda items: 1 / 0), name="inner")  # type: ignore[arg-type,return-value]
    entered: list[str] = []

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        entered.append("entered")
        return str((await Runner.run(inner, "go")).final_output)

    once = Retries(model=RetryPolicy(maximum_attempts=1))
    build = Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner], retries=once)
    async with run_app(build) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(RunFailedError, match=r"Agent 'inner' failed \(ZeroDivisionError\)"):
            await run.result()

    assert entered == ["entered"]


def in_a_loop_of_its_own(agent: Agent[Any], text: str) -> RunResult:
    return asyncio.run(Runner.run(agent, text))


@pytest.mark.parametrize("run_in_thread", [Runner.run_sync, in_a_loop_of_its_own])
async def test_a_sync_tool_finds_its_agent_after_a_restart(server: EmbeddedServer, run_in_thread: Any) -> None:
    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    inner_script = Script([call("pay", "p")], "inner done")
    inner = agent(inner_script, name="payer", tools=[pay])
    over: list[str] = []

    @function_tool(failure_error_function=None)
    def delegate() -> str:
        try:
            return str(run_in_thread(inner, "go").final_output)
        finally:
            over.append("over")

    script = Script([call("delegate", "d")], "done")
    build, run_app = Interlock([agent(script, tools=[delegate]), inner]), app_runner(server, 1_000)
    async with run_app(build, graceful_shutdown_timeout=timedelta(seconds=1)) as app:
        run = await app.client.start("support", "help")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        await app.requests(inside, 1)

    async def let_go() -> bool:
        return over == ["over"]

    await eventually(let_go)  # Its thread would keep the process of the worker from ending.
    async with run_app(build, queue=app.client.task_queue):
        await inside.decide("1", "approve")
        await run.result()

    assert (script.results(), inner_script.calls) == ({"d": "inner done"}, 2)


async def test_an_agent_in_a_tool_of_a_streamed_run_is_streamed(run_app: Running) -> None:
    inner = agent(Script("inner done"), name="inner")

    @function_tool
    async def delegate() -> str:
        return str((await Runner.run(inner, "go")).final_output)

    build = Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])
    streamed: list[bool] = []
    async with run_app(build) as app:
        for stream in (True, False):
            run = await app.client.start("support", "help", stream=stream)
            await run.result()
            (sub_run,) = (await run.state()).sub_runs
            history = await app.client.temporal.get_workflow_handle(sub_run.workflow_id).fetch_history()
            started = history.events[0].workflow_execution_started_event_attributes
            streamed.append(json.loads(started.input.payloads[0].data)["options"]["stream"])

    assert streamed == [True, False]


async def test_outside_of_a_run_an_agent_in_a_tool_is_the_sdks_own() -> None:
    inner = agent(Script("inner done"), name="inner")

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        return str((await Runner.run(inner, "go", run_config=RunConfig(tracing_disabled=True))).final_output)

    script = Script([call("delegate", "d")], "done")
    outer = agent(script, tools=[delegate])
    Interlock([outer])
    result = await Runner.run(outer, "go", run_config=RunConfig(tracing_disabled=True))

    assert (result.final_output, script.results()) == ("done", {"d": "inner done"})
