from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable
from tests.conftest import Running


async def test_an_approved_call_starts_while_the_other_still_waits(run_app: Running) -> None:
    ran: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            calls = [ToolCallPart("refund", {"order": order}) for order in ("A-1", "A-2")]
            return ModelResponse(parts=calls)
        return ModelResponse(parts=[TextPart("done")])

    def refund(order: str) -> str:
        ran.append(order)
        return f"refunded {order}"

    tools = [Tool(refund, requires_approval=True)]
    agent = Agent(FunctionModel(model), name="support", tools=tools, capabilities=[Durable()])
    async with run_app(Interlock([agent])) as app:
        run = await app.client.start("support", "refund both")
        _, second = await app.requests(run, 2)
        await run.decide(second.request_id, "approve")
        (first,) = await app.requests(run, 1)
        await app.state(run, lambda _: ran == ["A-2"])
        await run.decide(first.request_id, "reject", reason="too much")

        assert (await run.result()).output == "done"
        assert ran == ["A-2"]
