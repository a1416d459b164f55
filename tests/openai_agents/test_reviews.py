"""Review of outputs of the OpenAI Agents SDK's own kinds: after guardrails, handoffs and tools that end the run."""

from typing import Any

from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, function_tool, output_guardrail
from agents.agent import StopAtTools

from interlock import Interlock, Settings
from tests.conftest import Running
from tests.openai_agents.scripts import Script, call


@output_guardrail
async def no_secret(ctx: RunContextWrapper[Any], agent: Agent[Any], output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output, tripwire_triggered="secret" in output)


async def test_no_person_is_asked_about_what_a_guardrail_stops(run_app: Running) -> None:
    said = iter(["a secret", "first", "another secret", "second"])
    script = Script(lambda items: next(said), lambda items: next(said))
    agent = Agent("support", model=script, output_guardrails=[no_secret])
    async with run_app(Interlock([agent], settings=Settings(stuck_seconds=600), review={"support": True})) as app:
        run = await app.client.start("support", "go")
        for request_id, output in (("1", "first"), ("2", "second")):
            state = await app.state(run, lambda state: bool(state.stuck))
            assert (state.requests, state.stuck[0].error_type) == ([], "OutputGuardrailTripwireTriggered")
            await run.retry()
            (request,) = await app.requests(run, 1)
            assert (request.request_id, request.arguments) == (request_id, {"output": output})
            await run.decide(request_id, "reject" if request_id == "1" else "approve", reason="Change it.")
        assert (await run.result()).output == "second"

    assert script.calls == 4


async def test_the_agent_that_gave_the_output_is_the_one_to_change_it(run_app: Running) -> None:
    billing_script = Script("", "billed", "billed again")
    billing = Agent("billing", model=billing_script)
    script = Script([call("transfer_to_billing", "h")])
    support = Agent("support", model=script, handoffs=[billing])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go", review=2)
        (request,) = await app.requests(run, 1)
        assert (request.agent_path, request.arguments) == (("support", "billing"), {"output": "billed"})
        await run.decide("1", "reject", reason="Bill again.")
        await app.state(run, lambda state: [one.request_id for one in state.requests] == ["2"])
        await run.decide("2", "approve")
        output = await run.result()

    assert (output.output, script.calls, billing_script.calls) == ("billed again", 1, 2)
    assert billing_script.asked[-1][-1] == {"role": "user", "content": "Bill again."}


async def test_an_output_that_a_tool_gave_is_reviewed_like_any_other(run_app: Running) -> None:
    @function_tool
    def count(order: str) -> dict[str, int]:
        return {order: 3}

    stop: StopAtTools = {"stop_at_tool_names": ["count"]}
    agent = Agent(
        "support",
        model=Script([call("count", "c", order="A-1")]),
        tools=[count],
        tool_use_behavior=stop,
        output_type=list[int],
    )
    async with run_app(Interlock([agent])) as app:
        run = await app.client.start("support", "go", review=True)
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"output": {"A-1": 3}}
        await run.decide("1", "approve", arguments={"output": {"A-1": 4}})
        assert (await run.result()).output == {"A-1": 4}
