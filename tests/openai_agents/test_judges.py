"""Agents that guardrails, hooks, instructions and predicates run: they need not be the app's, and the run pays."""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    RunHooks,
    Runner,
    function_tool,
    input_guardrail,
    output_guardrail,
)
from pydantic import BaseModel
from temporalio.common import RetryPolicy

from interlock import Client, Interlock, Price, Retries, Run, RunFailedError
from interlock.contracts.payloads import RunState
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_agents.test_agents import replays

PRICES = {"scripted": Price(call_usd="0.10")}
AT_ONCE = Retries(tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2))


class Homework(BaseModel):
    is_homework: bool


def judged(judge: Agent[Any], *, in_parallel: bool = False) -> Any:
    """The guardrail of the SDK's own documentation."""

    @input_guardrail(run_in_parallel=in_parallel)
    async def homework(ctx: Any, _: Any, given: Any) -> GuardrailFunctionOutput:
        result = await Runner.run(judge, given, context=ctx.context)
        found = result.final_output_as(Homework, raise_if_incorrect_type=True)
        return GuardrailFunctionOutput(found, tripwire_triggered=found.is_homework)

    return homework


def judge_of(*answers: Any) -> tuple[Script, Agent[Any]]:
    script = Script(lambda items: answers[script.calls - 1])
    return script, agent(script, name="judge", output_type=Homework)


async def waiting(app: RunningApp, run: Run) -> RunState:
    """Wait until the run asks about its budget."""
    return await app.state(run, lambda state: [one.kind for one in state.requests] == ["budget"])


async def test_a_guardrail_asks_an_agent_that_the_app_does_not_have_and_the_run_pays(run_app: Running) -> None:
    judge_script, judge = judge_of('{"is_homework": false}')
    build = Interlock([agent(Script("done"), input_guardrails=[judged(judge)])], prices=PRICES)
    async with run_app(build) as app:
        run = await app.client.start("support", "help")
        output = await run.result()
        journal = await run.journal()
        await replays(app, build, run)

    assert (output.output, judge_script.calls) == ("done", 1)
    assert (output.usage.requests, output.usage.input_tokens, str(output.usage.cost_usd)) == (2, 10, "0.20")
    assert journal.totals.usage == output.usage
    assert [(step.kind, step.usage and step.usage.requests) for step in journal.steps] == [
        ("guardrail", 1),
        ("model", 1),
    ]


async def test_a_guardrail_ends_the_run_by_what_its_agent_says(run_app: Running) -> None:
    _, judge = judge_of('{"is_homework": true}')
    script = Script("done")
    async with run_app(Interlock([agent(script, input_guardrails=[judged(judge)])])) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(RunFailedError) as ended:
            await run.result()
        journal = await run.journal()

    assert (ended.value.error_type, script.calls) == ("InputGuardrailTripwireTriggered", 0)
    assert journal.totals.usage.requests == 1


async def test_an_agent_of_the_app_that_a_guardrail_asks_is_a_run_of_its_own(run_app: Running) -> None:
    @function_tool(needs_approval=True)
    def look() -> str:
        return "seen"

    script = Script([call("look", "l")], '{"is_homework": false}')
    judge = agent(script, name="judge", tools=[look], output_type=Homework)
    async with run_app(Interlock([agent(Script("done"), input_guardrails=[judged(judge)]), judge])) as app:
        run = await app.client.start("support", "help")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        await app.requests(inside, 1)
        await inside.decide("1", "approve")
        output = await run.result()

    assert (output.output, output.usage.requests, script.calls) == ("done", 3, 2)


async def asked(judge: Agent[Any]) -> str:
    return str((await Runner.run(judge, "go")).final_output)


async def by_instructions(judge: Agent[Any]) -> Agent[Any]:
    async def instructions(ctx: Any, _: Any) -> str:
        return await asked(judge)

    return agent(Script("done"), instructions=instructions)


async def by_output_guardrail(judge: Agent[Any]) -> Agent[Any]:
    @output_guardrail
    async def fine(ctx: Any, _: Any, output: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(await asked(judge), tripwire_triggered=False)

    return agent(Script("done"), output_guardrails=[fine])


async def by_hook(judge: Agent[Any]) -> Agent[Any]:
    class Hooks(AgentHooks[Any]):
        async def on_start(self, context: Any, agent: Any) -> None:
            await asked(judge)

    return agent(Script("done"), hooks=Hooks())


async def by_predicate(judge: Agent[Any]) -> Agent[Any]:
    async def asks(ctx: Any, arguments: Any, call_id: str) -> bool:
        return await asked(judge) == "never"

    @function_tool(needs_approval=asks)
    def look() -> str:
        return "seen"

    return agent(Script([call("look", "l")], "done"), tools=[look])


async def by_stream(judge: Agent[Any]) -> Agent[Any]:
    @input_guardrail(run_in_parallel=False)
    async def fine(ctx: Any, _: Any, given: Any) -> GuardrailFunctionOutput:
        result = Runner.run_streamed(judge, "go", hooks=RunHooks())
        async for _event in result.stream_events():
            pass
        return GuardrailFunctionOutput(result.final_output, tripwire_triggered=False)

    return agent(Script("done"), input_guardrails=[fine])


class Streaming(Script):
    """A script whose answers come as a stream of one event."""

    async def stream_response(self, *args: Any, **named: Any) -> Any:
        """See `Model`."""
        from openai.types.responses import ResponseCompletedEvent

        from interlock.adapters.openai_agents._model import _as_event

        answer = _as_event(await self.get_response(*args, **named))
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=answer)


@pytest.mark.parametrize("where", [by_instructions, by_output_guardrail, by_hook, by_predicate, by_stream])
async def test_whatever_asks_an_agent_its_model_calls_count_once(run_app: Running, where: Any) -> None:
    script = Streaming("fine")
    support = await where(agent(script, name="judge"))
    build = Interlock([support])
    async with run_app(build) as app:
        run = await app.client.start("support", "help", budget={"requests": 10})
        output = await run.result()
        await replays(app, build, run)
        journal = await run.journal()

    calls = script.calls + support.model.calls
    assert (output.output, script.calls, output.usage.requests) == ("done", 1, calls)
    assert (journal.totals.usage.requests, output.usage.input_tokens) == (calls, 5 * calls)


async def test_attempts_of_a_guardrail_that_fail_have_spent_what_they_spent(run_app: Running) -> None:
    # Its first answer is none of the judge's type, so the attempt fails after it was paid for.
    judge_script, judge = judge_of("no JSON", '{"is_homework": false}')
    build = Interlock([agent(Script("done"), input_guardrails=[judged(judge)])], prices=PRICES, retries=AT_ONCE)
    async with run_app(build) as app:
        run = await app.client.start("support", "help", budget={"requests": 10})
        output = await run.result()
        journal = await run.journal()

    assert judge_script.calls == 2
    assert (output.usage.requests, str(output.usage.cost_usd)) == (3, "0.30")
    assert journal.totals.usage == output.usage


async def test_a_guardrail_that_fails_for_good_has_spent_what_it_spent(run_app: Running) -> None:
    judge_script, judge = judge_of("no JSON", "nor this", '{"is_homework": false}')
    build = Interlock([agent(Script("done"), input_guardrails=[judged(judge)])], retries=AT_ONCE)
    async with run_app(build) as app:
        run = await app.client.start("support", "help", stuck_seconds=60)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        output = await run.result()
        journal = await run.journal()

    assert (judge_script.calls, output.usage.requests) == (3, 4)
    assert journal.totals.usage == output.usage


async def test_an_agent_that_a_guardrail_asks_waits_for_the_budget(run_app: Running) -> None:
    judge_script, judge = judge_of(*['{"is_homework": false}'] * 2)
    first, second = judged(judge), judged(judge)
    script = Script("done")
    build = Interlock([agent(script, input_guardrails=[first, second])])
    async with run_app(build) as app:
        run = await app.client.start("support", "help", budget={"requests": 1})
        state = await waiting(app, run)
        assert (judge_script.calls, script.calls) == (1, 0)
        assert state.budget
        await run.decide(state.requests[0].request_id, "approve")
        state = await waiting(app, run)
        assert (judge_script.calls, script.calls) == (2, 0)
        await run.decide(state.requests[0].request_id, "approve")
        output = await run.result()
        await replays(app, build, run)

    assert (output.usage.requests, judge_script.calls, script.calls) == (3, 2, 1)


@pytest.mark.parametrize("in_parallel", [True, False])
async def test_no_call_of_an_agent_that_a_guardrail_asks_goes_over_the_limit(
    run_app: Running, in_parallel: bool
) -> None:
    judge_script, judge = judge_of(*['{"is_homework": false}'] * 3)
    guardrails = [judged(judge, in_parallel=in_parallel) for _ in range(3)]
    script = Script("done")
    async with run_app(Interlock([agent(script, input_guardrails=guardrails)])) as app:
        run = await app.client.start("support", "help", budget={"requests": 2, "when_used_up": "end"})
        with pytest.raises(RunFailedError, match="2 of 2 model calls are used") as ended:
            await asyncio.wait_for(run.result(), 60)

    assert ended.value.error_type == "BudgetUsedUpError"
    assert judge_script.calls + script.calls == 2


async def test_a_guardrail_that_takes_any_error_for_a_yes_does_not_say_it_for_want_of_a_budget(
    run_app: Running,
) -> None:
    judge_script, judge = judge_of('{"is_homework": false}', '{"is_homework": true}')
    inner = judged(judge)

    @input_guardrail(run_in_parallel=False)
    async def open_hearted(ctx: Any, of: Any, given: Any) -> GuardrailFunctionOutput:
        try:
            found: GuardrailFunctionOutput = await inner.guardrail_function(ctx, of, given)
        except Exception:
            return GuardrailFunctionOutput(None, tripwire_triggered=False)
        return found

    script = Script("done")
    async with run_app(Interlock([agent(script, input_guardrails=[inner, open_hearted])])) as app:
        run = await app.client.start("support", "help", budget={"requests": 1})
        state = await waiting(app, run)
        await run.decide(state.requests[0].request_id, "approve", arguments={"requests": 5})
        with pytest.raises(RunFailedError) as ended:
            await asyncio.wait_for(run.result(), 60)

    assert ended.value.error_type == "InputGuardrailTripwireTriggered"
    assert (judge_script.calls, script.calls) == (2, 0)


async def test_a_guardrail_of_an_agent_in_a_tool_spends_the_budget_of_the_whole_tree(run_app: Running) -> None:
    judge_script, judge = judge_of(*['{"is_homework": false}'] * 2)
    inner = agent(Script("inner done"), name="inner", input_guardrails=[judged(judge)])

    @function_tool(failure_error_function=None)
    async def delegate() -> str:
        return str((await Runner.run(inner, "go")).final_output)

    script = Script([call("delegate", "d")], "done")
    build = Interlock([agent(script, tools=[delegate]), inner])
    async with run_app(build) as app:
        run = await app.client.start("support", "help", budget={"requests": 1})
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        state = await waiting(app, inside)
        assert (judge_script.calls, script.calls) == (0, 1)
        await inside.decide(state.requests[0].request_id, "approve", arguments={"requests": 3})
        output = await run.result()
        await replays(app, build, run)
        await replays(app, build, inside)

    assert (output.output, output.usage.requests, judge_script.calls) == ("done", 4, 1)


async def test_what_a_judge_has_used_is_not_forgotten_with_its_worker(server: EmbeddedServer, tmp_path: Path) -> None:
    calls, queue = tmp_path / "calls", f"judging-{tmp_path.name}"
    arguments = ["-m", "tests.openai_agents.judging_worker", server.address, queue, str(calls)]

    async def worker() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=Path(__file__).parents[2])

    client = await Client.connect(server.address, task_queue=queue)
    run = await client.start("support", "help", budget={"requests": 100})
    await asyncio.wait_for((await worker()).wait(), 60)
    second = await worker()
    try:
        output = await asyncio.wait_for(run.result(), 60)
    finally:
        second.kill()
        await second.wait()

    # Five answers before the first worker was lost, six of the next attempt, and the agent's own.
    assert (len(calls.read_text().splitlines()), output.usage.requests) == (12, 12)
