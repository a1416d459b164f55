"""Answers of the model that failed their run: a retry asks from the last request again, and keeps what came before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelSettings,
    ToolGuardrailFunctionOutput,
    function_tool,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from openai.types.responses import ResponseOutputMessage, ResponseOutputRefusal
from pydantic import BaseModel

from interlock import Interlock, RunFailedError
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call


class Price(BaseModel):
    amount: float


@output_guardrail
def small(ctx: Any, agent: Any, output: Price) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(None, tripwire_triggered=output.amount > 100)


@tool_input_guardrail
def no_bomb(data: Any) -> ToolGuardrailFunctionOutput:
    if "bomb" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.raise_exception()
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
def no_boom(data: Any) -> ToolGuardrailFunctionOutput:
    if "boom" in str(data.output):
        return ToolGuardrailFunctionOutput.raise_exception()
    return ToolGuardrailFunctionOutput.allow()


def refusal() -> list[Any]:
    content = ResponseOutputRefusal(type="refusal", refusal="I would rather not")
    return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])]


@dataclass(frozen=True)
class Case:
    """bad: what the model says at first. error: the type of the failure."""

    bad: Callable[[], Sequence[Any] | str]
    error: str


CASES = {
    "malformed output": Case(lambda: '{"amount": "lots"}', "ModelBehaviorError"),
    "unknown tool": Case(lambda: [call("nonsense", "n")], "ModelBehaviorError"),
    "refusal": Case(refusal, "ModelRefusalError"),
    "output guardrail": Case(lambda: '{"amount": 500}', "OutputGuardrailTripwireTriggered"),
    "tool input guardrail": Case(lambda: [call("pay", "b", order="bomb")], "ToolInputGuardrailTripwireTriggered"),
}


def build(script: Script, paid: list[str]) -> Agent[Any]:
    @function_tool(tool_input_guardrails=[no_bomb], tool_output_guardrails=[no_boom])
    def pay(order: str) -> str:
        paid.append(order)
        return f"paid {order}"

    return agent(script, tools=[pay], output_type=Price, output_guardrails=[small])


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_that_failed_the_run_is_asked_for_again(run_app: Running, name: str) -> None:
    case, good, paid = CASES[name], False, list[str]()
    script = Script([call("pay", "a", order="A-1")], lambda _: '{"amount": 5}' if good else case.bad())
    async with run_app(Interlock([build(script, paid)])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        good = True
        await run.retry()
        output = await run.result()

    assert (step.kind, step.error_type) == ("model", case.error)
    assert output.output == {"amount": 5.0}
    assert paid == ["A-1"]
    assert (script.calls, output.usage.requests) == (3, 3)
    assert script.asked[2] == script.asked[1]  # Without the answer that failed the run.


async def test_an_answer_whose_call_was_made_stays_when_what_it_returned_failed_the_run(run_app: Running) -> None:
    paid: list[str] = []
    script = Script([call("pay", "a", order="A-1")], [call("pay", "b", order="boom")], '{"amount": 5}')
    async with run_app(Interlock([build(script, paid)])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        await run.retry()
        output = await run.result()

    assert (step.kind, step.error_type) == ("model", "ToolOutputGuardrailTripwireTriggered")
    assert output.output == {"amount": 5.0}
    assert paid == ["A-1", "boom"]
    assert script.calls == 3
    assert script.results()["b"] == "The tool call was made, but a guardrail keeps back what it returned."


async def test_an_answer_that_failed_the_run_ends_it_by_its_type_when_nobody_may_retry(run_app: Running) -> None:
    paid: list[str] = []
    script = Script([call("pay", "a", order="A-1")], CASES["refusal"].bad())
    async with run_app(Interlock([build(script, paid)])) as app:
        with pytest.raises(RunFailedError, match="I would rather not") as failed:
            await (await app.client.start("support", "go")).result()

    assert failed.value.error_type == "ModelRefusalError"


@pytest.mark.parametrize("resets", [True, False])
async def test_a_tool_that_had_to_be_called_has_been_when_a_run_is_retried(run_app: Running, resets: bool) -> None:
    """A choice that came back with the retry would have its tool called once more."""
    sent: list[str] = []

    @function_tool
    def send(order: str) -> str:
        sent.append(order)
        return "sent"

    script = Script([call("send", "a", order="A-1")], [call("send", "b", order="A-2")], "done")
    settings = ModelSettings(tool_choice="required")
    one = agent(script, tools=[send], model_settings=settings, reset_tool_choice=resets)
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600, usage_limits={"max_turns": 1})
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry(usage_limits={"max_turns": 9})
        await run.result()

    after = None if resets else "required"
    assert [settings.tool_choice for settings in script.settings] == ["required", after, after]


async def test_an_answer_that_is_asked_for_again_has_to_be_the_call_of_a_tool_again(run_app: Running) -> None:
    good = False
    script = Script(lambda _: [call("pay", "a", order="A-1")] if good else [call("nonsense", "n")], '{"amount": 5}')
    one = build(script, [])
    one.model_settings = ModelSettings(tool_choice="required")
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        good = True
        await run.retry()
        await run.result()

    assert [settings.tool_choice for settings in script.settings] == ["required", "required", None]
