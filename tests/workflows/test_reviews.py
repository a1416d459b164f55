"""Review of outputs of pydantic-ai's own kinds: after validators, by output tools and output functions."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelRequest, UserPromptPart

from interlock import Interlock, RefusedError, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts import names
from interlock.contracts.payloads import Decision
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


class Refund(BaseModel):
    amount: float


class Denial(BaseModel):
    reason: str


async def test_an_output_of_a_tool_is_validated_before_anybody_is_asked_and_may_change_its_type(
    run_app: Running,
) -> None:
    script = Script(
        [call("final_result_Refund", "a", amount=900.0)],
        [call("final_result_Refund", "b", amount=9.0)],
        [call("final_result_Denial", "c", reason="late")],
    )
    kinds: Any = [Refund, Denial]
    agent: Agent[Any, Any] = Agent(script.model, name="support", output_type=kinds, capabilities=[Durable()])

    @agent.output_validator
    def affordable(output: Refund | Denial) -> Refund | Denial:
        if isinstance(output, Refund) and output.amount > 100:
            raise ModelRetry("too much")
        return output

    async with run_app(Interlock([agent], review={"support": True})) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.request_id, request.arguments) == ("1", {"output": {"amount": 9.0}})
        await run.decide("1", "reject", reason="Deny it.")
        await app.state(run, lambda state: [one.request_id for one in state.requests] == ["2"])
        (request,) = await run.approvals()
        assert request.arguments == {"output": {"reason": "late"}}
        await run.decide("2", "approve", arguments={"output": {"amount": 5.0}})
        output = await run.result()

    assert (output.output, output.usage.requests, script.calls) == ({"amount": 5.0}, 3, 3)
    feedback = [message.parts for message in script.asked[-1] if isinstance(message, ModelRequest)][-1]
    assert [part.content for part in feedback if isinstance(part, UserPromptPart)] == ["Deny it."]


async def test_what_an_output_function_made_is_reviewed(run_app: Running) -> None:
    def total(amounts: list[float]) -> float:
        return sum(amounts)

    script = Script([call("final_result", "a", amounts=[1.0, 2.0])])
    agent = Agent(script.model, name="support", output_type=total, capabilities=[Durable()])
    async with run_app(Interlock([agent])) as app:
        run = await app.client.start("support", "go", review=True)
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"output": 3.0}
        for unfit in ("NaN", "-Infinity", "four"):
            with pytest.raises(RefusedError, match=r"edited output does not fit .* stays open"):
                await run.decide("1", "approve", arguments={"output": unfit})
        await run.decide("1", "approve", arguments={"output": 4.0})
        assert (await run.result()).output == 4.0


async def test_nobody_is_asked_about_an_output_that_is_too_large_to_be_one(run_app: Running) -> None:
    def letter(length: int) -> str:
        return "é" * length

    script = Script([call("final_result", "a", length=1_000_000)])
    writer = Agent(script.model, name="support", output_type=letter, capabilities=[Durable()])
    async with run_app(Interlock([writer])) as app, asyncio.timeout(60):
        run = await app.client.start("support", "go", review=True)
        with pytest.raises(RunFailedError, match="output has 2,000,002 bytes") as failed:
            await run.result()
        assert failed.value.error_type == "OutputTooLargeError"
        assert not (await run.journal()).requests


async def test_an_output_that_is_too_large_to_be_one_is_not_taken_from_a_reviewer(run_app: Running) -> None:
    large = Decision(
        request_id="1", verdict="approve", arguments={"output": "x" * 1_600_000}, decided_at=datetime.now(UTC)
    )
    async with run_app(Interlock([agent(Script("short"))])) as app:
        run = await app.client.start("support", "go", review=True)
        await app.requests(run, 1)
        await app.client.temporal.get_workflow_handle(run.id).signal(names.DECIDE_APPROVAL, large)
        await run.decide("1", "approve")
        assert (await run.result()).output == "short"
