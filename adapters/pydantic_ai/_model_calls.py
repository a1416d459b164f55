"""Every single call of a model: let through by the budget, priced where it is made, and counted once."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any

from pydantic_ai._genai_prices import fill_response_cost
from pydantic_ai._model_request_attempts import carried_attempts
from pydantic_ai.durable_exec._utils import DurableModel, StreamedActivityResult
from pydantic_ai.exceptions import FallbackExceptionGroup
from pydantic_ai.messages import ModelRequestAttempt, ModelResponse
from pydantic_ai.usage import RequestUsage, RunUsage

from interlock.adapters.pydantic_ai._scope import Scope, usage_of
from interlock.contracts.payloads import Usage
from interlock.contracts.ports import Prices

Segment = Callable[..., Awaitable[Any]]


def counted(model: DurableModel, scope: Scope | None) -> DurableModel:
    """The model, with each activity of it let through and counted by the ledger of the run that it is made for."""
    if scope is None:
        return model
    for name in ("_request_segment", "_request_stream_segment", "_compact_messages_segment"):
        setattr(model, name, _counted(getattr(model, name), scope))
    return model


def _counted(segment: Segment, scope: Scope) -> Segment:
    async def through(*args: Any) -> Any:
        async with scope.gate.model_call(scope.path) as call:
            try:
                result = await segment(*args)
            except Exception as error:
                call.used(_of_attempts(_attempts(error)))
                raise
            if (response := _response(result)) is not None:
                call.used(_of_response(response))
            return result

    return through


def priced(result: Any, prices: Prices | None) -> Any:
    """The result of an activity. A model's response says what it cost: this goes into the history, and no replay, with
    whatever prices of its own, makes it another."""
    if (response := _response(result)) is not None:
        own = _own_cost(prices, response.model_name, response.usage)
        if own is not None:
            response.usage.cost = own
        fill_response_cost(response)
        for attempt in response.failed_attempts or ():
            if attempt.usage and (own := _own_cost(prices, attempt.model_name, attempt.usage)) is not None:
                attempt.usage.cost = own
    return result


def spent_since(before: RunUsage, now: RunUsage) -> Usage:
    """What a counter of the framework's has counted since, in an activity; tool calls are not among it."""
    counts = {name: value - getattr(usage_of([before]), name) for name, value in usage_of([now])}
    spent = Usage(**{**counts, "tool_calls": 0})
    if now.cost is None:
        return spent.model_copy(update={"unpriced": spent.requests})
    return spent.model_copy(update={"cost_usd": max(now.cost - (before.cost or Decimal(0)), Decimal(0))})


def _own_cost(prices: Prices | None, model: str | None, usage: RequestUsage) -> Decimal | None:
    return prices.cost_usd(model, _tokens(usage)) if prices and model else None


def _response(result: Any) -> ModelResponse | None:
    found = result.response if isinstance(result, StreamedActivityResult) else result
    return found if isinstance(found, ModelResponse) else None


def _of_response(response: ModelResponse) -> Usage:
    used = _cost(response.usage, _tokens(response.usage)).model_copy(update={"requests": 1})
    return used + _of_attempts(response.failed_attempts or ())


def _of_attempts(attempts: Any) -> Usage:
    """What attempts have used that a provider has answered and that were not taken."""
    return sum((_cost(one.usage, _tokens(one.usage)) for one in attempts if one.usage is not None), Usage())


def _attempts(error: Exception) -> list[ModelRequestAttempt]:
    return [*(error.attempts if isinstance(error, FallbackExceptionGroup) else ()), *carried_attempts(error)]


def _tokens(usage: RequestUsage) -> Usage:
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    return Usage(**{name: max(getattr(usage, name), 0) for name in names})


def _cost(usage: RequestUsage, used: Usage) -> Usage:
    cost = usage.cost
    if cost is None or not cost.is_finite() or cost < 0:
        return used.model_copy(update={"unpriced": 1})
    return used.model_copy(update={"cost_usd": cost})
