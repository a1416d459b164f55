"""Review of outputs of pydantic-ai's own kinds: after validators, by output tools and output functions."""

from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelRequest, UserPromptPart

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable
from tests.conftest import Running
from tests.workflows.scripts import Script, call


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
        await run.decide("1", "approve", arguments={"output": 4.0})
        assert (await run.result()).output == 4.0
