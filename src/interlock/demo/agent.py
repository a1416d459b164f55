"""The support agent: its tools, and the script that plays the model's part when there is no model to talk to."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from temporalio.common import RetryPolicy

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable, idempotency_key
from interlock.demo import settings
from interlock.demo.answers import not_refunded, orders_in, refunded
from interlock.demo.orders import Order, Orders, Refund, RefundRefusedError


def make_app(orders: Orders, model: Model) -> Interlock:
    """An app with the agent `support`, on this database."""

    def get_order(order: str) -> Order:
        """Look up an order by its number: who bought what, for how much, and where it is."""
        orders.record(f"get_order {order}")
        found = orders.find(order)
        if found is None:
            raise ToolFailed(f"There is no order {order!r}.")
        return found

    def refund(ctx: RunContext[Any], order: str, amount: Annotated[float, Field(gt=0)]) -> Refund:
        """Pay a customer back for an order: once, and at most what the order cost."""
        orders.record(f"refund {order}")
        try:
            orders.refund(order, amount, idempotency_key(ctx))
        except RefundRefusedError as error:
            raise ToolFailed(str(error)) from error
        return Refund(order, amount)

    support = Agent(
        CountedModel(model, orders),
        name=settings.AGENT,
        instructions=settings.INSTRUCTIONS,
        tools=[get_order, Tool(refund, requires_approval=True)],
        capabilities=[
            Durable(model_activity_config={"retry_policy": RetryPolicy(maximum_attempts=settings.MODEL_ATTEMPTS)})
        ],
    )
    return Interlock([support])


class CountedModel(WrapperModel):
    """Writes each request down in the database before it passes it on."""

    def __init__(self, wrapped: Model, orders: Orders) -> None:
        super().__init__(wrapped)
        self._orders = orders

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """See `Model`."""
        turn = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        self._orders.record(f"model turn {turn}")
        return await super().request(messages, model_settings, model_request_parameters)


def make_model() -> Model:
    """The model that the environment names, or the script."""
    name = settings.openai_model()
    if name is None:
        return FunctionModel(scripted, model_name="scripted")
    from pydantic_ai.models.openai import OpenAIChatModel

    return OpenAIChatModel(name)


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer as a model would: look up the orders of the ticket, ask for their refunds, say what became of them."""
    parts = [part for message in messages for part in message.parts]
    results = [part for part in parts if isinstance(part, ToolReturnPart)]
    found = [result.content for result in results if result.tool_name == "get_order" and result.outcome == "success"]
    refunds = [result for result in results if result.tool_name == "refund"]
    if not results:
        return ModelResponse(parts=_lookups(parts))
    if found and not refunds:
        return ModelResponse(parts=[_refund_call(order) for order in found])
    asked = {part.tool_call_id: part.args_as_dict() for part in parts if isinstance(part, ToolCallPart)}
    sentences = [_outcome(asked[result.tool_call_id], result) for result in refunds]
    return ModelResponse(parts=[TextPart(" ".join(sentences or ["I found none of these orders."]))])


def _lookups(parts: Sequence[Any]) -> Sequence[ModelResponsePart]:
    ticket = " ".join(str(part.content) for part in parts if isinstance(part, UserPromptPart))
    return [ToolCallPart("get_order", {"order": number}) for number in orders_in(ticket)] or [
        TextPart("Which order is it?")
    ]


def _refund_call(order: Any) -> ToolCallPart:
    return ToolCallPart("refund", {"order": order["order_id"], "amount": order["amount"]})


def _outcome(asked: dict[str, Any], result: ToolReturnPart) -> str:
    if result.outcome != "success":
        return not_refunded(asked, str(result.content), rejected=result.outcome == "denied")
    return refunded(asked, result.content)


app = make_app(Orders(Path(os.environ.get(settings.DATABASE_VARIABLE, "orders.db"))), make_model())
