"""What only agents of the SDK have beside a call that fails: guardrails on outputs, agents that are tools."""

import asyncio
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)

from interlock import Interlock, RunFailedError, Settings
from interlock.testing import eventually
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_agents.test_agents import replays

HOUR = Settings(stuck_seconds=3_600)


async def test_a_failure_that_nobody_can_retry_does_not_wait_for_an_agent_that_asks_a_person(
    run_app: Running,
) -> None:
    asked = asyncio.Event()

    @tool_input_guardrail
    async def picky(data: Any) -> ToolGuardrailFunctionOutput:
        await asked.wait()
        return ToolGuardrailFunctionOutput.raise_exception("not so")

    @function_tool(tool_input_guardrails=[picky])
    def look() -> str:
        return "seen"

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    inner = agent(Script([call("pay", "x")], "inner"), name="inner", tools=[pay])
    script = Script([call("inner", "i", input="go"), call("look", "q")], "done")
    async with run_app(Interlock([agent(script, tools=[inner.as_tool("inner", ""), look])])) as app:
        run = await app.client.start("support", "go", stuck_seconds=0)
        await app.requests(run, 1)
        asked.set()
        with pytest.raises(RunFailedError) as failed:
            await asyncio.wait_for(run.result(), 60)

        assert failed.value.error_type == "ToolInputGuardrailTripwireTriggered"
        assert [one.outcome for one in (await run.state()).settled] == ["withdrawn"]


async def test_a_failure_that_nobody_can_retry_does_not_wait_for_an_agent_that_a_tool_starts_after_it(
    run_app: Running,
) -> None:
    begun, tripped = asyncio.Event(), asyncio.Event()

    @tool_input_guardrail
    async def picky(data: Any) -> ToolGuardrailFunctionOutput:
        await begun.wait()
        return ToolGuardrailFunctionOutput.raise_exception("not so")

    @function_tool(tool_input_guardrails=[picky])
    def look() -> str:
        return "seen"

    @function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    payer = agent(Script([call("pay", "p")], "inner done"), name="payer", tools=[pay])

    @function_tool
    async def delegate() -> str:
        begun.set()
        await tripped.wait()
        return str((await Runner.run(payer, "go")).final_output)

    script = Script([call("delegate", "d"), call("look", "q")], "done")
    build = Interlock([agent(script, tools=[delegate, look]), payer])
    async with run_app(build) as app:
        run = await app.client.start("support", "go", stuck_seconds=0)

        async def has_tripped() -> bool:
            return any("guardrail" in one.activity_type and one.ended_at for one in (await run.journal()).steps)

        await eventually(has_tripped)
        tripped.set()
        with pytest.raises(RunFailedError) as failed:
            await asyncio.wait_for(run.result(), 60)
        await replays(app, build, run)

    assert failed.value.error_type == "ToolInputGuardrailTripwireTriggered"


async def test_an_agent_is_told_of_after_the_calls_it_has_left_at_work(run_app: Running) -> None:
    begun, free, seen = asyncio.Event(), asyncio.Event(), []

    @tool_input_guardrail
    async def picky(data: Any) -> ToolGuardrailFunctionOutput:
        await begun.wait()
        asyncio.get_running_loop().call_later(0.3, free.set)  # The run would have told of it long before.
        return ToolGuardrailFunctionOutput.raise_exception("not so")

    @function_tool(tool_input_guardrails=[picky])
    def look() -> str:
        return "seen"

    @function_tool
    async def pay() -> str:
        begun.set()
        await free.wait()
        seen.append("paid")
        return "paid"

    def told(items: list[Any]) -> str:
        seen.append("told")
        return "done"

    inner = agent(Script([call("pay", "x"), call("look", "q")], "inner"), name="inner", tools=[pay, look])
    script = Script([call("inner", "i", input="go")], told)
    async with run_app(Interlock([agent(script, tools=[inner.as_tool("inner", "")])])) as app:
        await (await app.client.start("support", "go")).result()

    assert seen == ["paid", "told"]
    assert "An error occurred" in script.results()["i"]


async def test_what_a_guardrail_keeps_back_is_not_told_after_a_retry_and_the_call_is_not_made_again(
    run_app: Running,
) -> None:
    paid = []

    @tool_output_guardrail
    def secret(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception("a secret")

    @function_tool(tool_output_guardrails=[secret])
    def pay() -> str:
        paid.append("paid")
        return "card 4711"

    @function_tool
    def look() -> str:
        return "seen"

    script = Script([call("look", "l"), call("pay", "p")], "done")
    async with run_app(Interlock([agent(script, tools=[pay, look])], settings=HOUR)) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert paid == ["paid"]
    assert script.results()["p"] == "The tool call was made, but a guardrail keeps back what it returned."
    assert "4711" not in str(script.asked[-1])


async def test_an_output_that_a_tool_gave_and_a_guardrail_stops_is_not_made_again(run_app: Running) -> None:
    paid = []

    @output_guardrail
    def strict(ctx: Any, agent: Agent[Any], output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=output != "done")

    @function_tool
    def pay() -> str:
        paid.append("paid")
        return "paid"

    script = Script([call("pay", "p")], [call("say", "s")])
    say = function_tool(lambda: "done", name_override="say", description_override="")
    one = agent(script, tools=[pay, say], output_guardrails=[strict], tool_use_behavior="stop_on_first_tool")
    async with run_app(Interlock([one], settings=HOUR)) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        output = await run.result()

    assert (output.output, paid, script.results()) == ("done", ["paid"], {"p": "paid"})
