"""The support agent, written with the OpenAI Agents SDK, and the script that plays its model's part."""

import ast
import json
import os
from collections.abc import AsyncIterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from agents import Agent, Model, ModelResponse, OpenAIChatCompletionsModel, TResponseInputItem, Usage, function_tool
from agents.tool_context import ToolContext
from openai import AsyncOpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic import Field
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries
from interlock.adapters.openai_agents import idempotency_key
from interlock.demo import settings
from interlock.demo.answers import not_refunded, orders_in, refunded
from interlock.demo.orders import Orders, RefundRefusedError

_NOT_PAID = "Not paid: "


def make_app(orders: Orders, model: Model) -> Interlock:
    """An app with the agent `support`, on this database."""

    @function_tool
    def get_order(order: str) -> dict[str, Any]:
        """Look up an order by its number: who bought what, for how much, and where it is."""
        orders.record(f"get_order {order}")
        found = orders.find(order)
        return asdict(found) if found else {"error": f"There is no order {order!r}."}

    @function_tool(needs_approval=True)
    def refund(ctx: ToolContext[Any], order: str, amount: Annotated[float, Field(gt=0)]) -> str:
        """Pay a customer back for an order: once, and at most what the order cost."""
        orders.record(f"refund {order}")
        try:
            orders.refund(order, amount, idempotency_key(ctx))
        except RefundRefusedError as error:
            return f"{_NOT_PAID}{error}"
        return json.dumps({"order_id": order, "amount": amount})

    support = Agent(
        name=settings.AGENT,
        model=CountedModel(model, orders),
        instructions=settings.INSTRUCTIONS,
        tools=[get_order, refund],
    )
    return Interlock([support], retries=Retries(model=RetryPolicy(maximum_attempts=settings.MODEL_ATTEMPTS)))


class CountedModel(Model):
    """Writes each request down in the database before it passes it on."""

    def __init__(self, wrapped: Model, orders: Orders) -> None:
        self.model = getattr(wrapped, "model", "scripted")
        self._wrapped = wrapped
        self._orders = orders

    async def get_response(
        self, system_instructions: str | None, input: str | list[TResponseInputItem], *args: Any, **named: Any
    ) -> ModelResponse:
        """See `Model`."""
        self._orders.record(f"model turn {_turn(input)}")
        return await self._wrapped.get_response(system_instructions, input, *args, **named)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        """See `Model`."""
        return self._wrapped.stream_response(*args, **named)


class ScriptedModel(Model):
    """Answers as a model would: looks up the orders of the ticket, asks for their refunds, says what became of them."""

    async def get_response(
        self, system_instructions: str | None, input: str | list[TResponseInputItem], *args: Any, **named: Any
    ) -> ModelResponse:
        """See `Model`."""
        output = list(scripted(input))
        asked, said = _words(input), _words([item.model_dump() for item in output])
        usage = Usage(requests=1, input_tokens=asked, output_tokens=said, total_tokens=asked + said)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        """See `Model`."""
        raise NotImplementedError("The script does not stream.")


def make_model() -> Model:
    """The model that the environment names, or the script."""
    name = settings.openai_model()
    return ScriptedModel() if name is None else OpenAIChatCompletionsModel(name, AsyncOpenAI())


def scripted(input: str | list[TResponseInputItem]) -> list[Any]:
    """The answer to a conversation."""
    items: list[Any] = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
    asked = {item["call_id"]: item for item in items if item.get("type") == "function_call"}
    told = {item["call_id"]: item["output"] for item in items if item.get("type") == "function_call_output"}
    found = [_read(told[one]) for one, call in asked.items() if call["name"] == "get_order" and one in told]
    refunds = {one: call for one, call in asked.items() if call["name"] == "refund"}
    if not asked:
        numbers = orders_in(" ".join(str(item.get("content", "")) for item in items if item.get("role") == "user"))
        return [_call("get_order", order=number) for number in numbers] or [_text("Which order is it?")]
    known = [order for order in found if order and "order_id" in order]
    if known and not refunds:
        return [_call("refund", order=order["order_id"], amount=order["amount"]) for order in known]
    sentences = [_outcome(json.loads(call["arguments"]), str(told[one])) for one, call in refunds.items()]
    return [_text(" ".join(sentences or ["I found none of these orders."]))]


def _outcome(asked: dict[str, Any], told: str) -> str:
    paid = _read(told.partition("\n\n")[0])  # Behind it is what a reviewer changed.
    if paid is not None:
        return refunded(asked, paid)
    return not_refunded(asked, told.removeprefix(_NOT_PAID), rejected=not told.startswith(_NOT_PAID))


def _read(told: Any) -> dict[str, Any] | None:
    """A tool's output as JSON; the SDK writes a dictionary the way Python does."""
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(str(told))
        except (ValueError, SyntaxError):
            continue
        return value if isinstance(value, dict) else None
    return None


def _turn(input: str | list[TResponseInputItem]) -> int:
    """Which request of the conversation this is. Calls that stand together are one answer."""
    items: list[Any] = [] if isinstance(input, str) else list(input)
    answers = [bool(item.get("type") == "function_call" or item.get("role") == "assistant") for item in items]
    return 1 + sum(answer and not before for before, answer in pairwise([False, *answers]))


def _words(value: Any) -> int:
    """What stands for tokens where there is no model."""
    return len(str(value).split())


def _call(tool: str, **arguments: Any) -> ResponseFunctionToolCall:
    # One id for one order and tool, so that a request that is made again gets the same answer.
    call_id = f"{tool}-{arguments['order']}"
    return ResponseFunctionToolCall(
        type="function_call", name=tool, call_id=call_id, arguments=json.dumps(arguments), status="completed"
    )


def _text(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="answer", type="message", role="assistant", status="completed", content=[content])


app = make_app(Orders(Path(os.environ.get(settings.DATABASE_VARIABLE, "orders.db"))), make_model())
