"""The worker's side of model calls: asks the model, tells a stream's readers of it, and says what it cost."""

import asyncio
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

from agents import Model, ModelResponse, ModelTracing, Usage
from agents.exceptions import ModelTimeoutError
from agents.models._retry_runtime import provider_managed_retries_disabled, websocket_pre_event_retries_disabled
from agents.retry import ModelRetryAdviceRequest, ModelRetrySettings, RetryPolicyContext
from agents.run_internal.model_retry import _call_retry_policy, _normalize_retry_error
from genai_prices import Usage as PricedUsage
from genai_prices import calc_price
from openai import APIStatusError
from openai.types.responses import Response, ResponseFunctionToolCall
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.openai_agents._invoke_model_activity import _build_tools_and_handoffs
from temporalio.openai_agents._temporal_worker_env_ref import _WorkerEnvRefResolver

from interlock.adapters.openai_agents._model import Answer, RequestInput
from interlock.adapters.openai_agents._scope import usage_of
from interlock.contracts.failures import told
from interlock.contracts.ports import EventSink, Prices, event_sink

_AGAIN = (408, 409, 429)
_THINKING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ENDS = ("response.completed", "response.incomplete")


async def ask(
    model: Model, name: str, request: RequestInput, prices: Prices | None, retries: ModelRetrySettings | None = None
) -> Answer:
    """The model's answer to a request. name: of the model, for its price. retries: whose policy has a say.

    One attempt is one request: what the provider's client would try again by itself is for the activity to try again.
    Raises what the model raises, ModelTimeoutError when it took longer than its settings allow; ApplicationError for an
    answer with an error status, with the provider's word on when to try again, and whether. Where there is a policy of
    the user's, its word counts instead.
    """
    tools, handoffs = _build_tools_and_handoffs(request, _WorkerEnvRefResolver(()))
    options: dict[str, Any] = {
        "system_instructions": request.get("system_instructions"),
        "input": request["input"],
        "model_settings": request["model_settings"],
        "tools": tools,
        "output_schema": request.get("output_schema"),
        "handoffs": handoffs,
        "tracing": ModelTracing(request["tracing"]),
        "previous_response_id": request.get("previous_response_id"),
        "conversation_id": request.get("conversation_id"),
        "prompt": request.get("prompt"),
    }
    sink = event_sink.get()
    try:
        with provider_managed_retries_disabled(True), websocket_pre_event_retries_disabled(True):
            response = await _in_time(model, options, sink)
    except ApplicationError:
        raise
    except Exception as error:
        if retries is not None and retries.policy is not None:
            raise await _by_policy(retries, model, options, error, streams=sink is not None) from error
        if isinstance(error, APIStatusError):
            raise _refused(error) from error
        raise
    values = {field.name: getattr(response, field.name) for field in fields(ModelResponse)}
    return Answer(**values, cost_usd=cost_of(name, response.usage, prices))


async def _in_time(model: Model, options: Mapping[str, Any], sink: EventSink | None) -> ModelResponse:
    seconds = options["model_settings"].timeout
    try:
        async with asyncio.timeout(seconds) as limit:
            return await model.get_response(**options) if sink is None else await _streamed(model, options, sink)
    except TimeoutError:
        if limit.expired():
            raise ModelTimeoutError(seconds) from None
        raise


async def _by_policy(
    retries: ModelRetrySettings, model: Model, options: Mapping[str, Any], error: Exception, *, streams: bool
) -> ApplicationError:
    """The failure of an attempt, as the user's policy wants it to be tried again or not."""
    assert retries.policy
    attempt, previous = activity.info().attempt, options["previous_response_id"]
    advice = model.get_retry_advice(
        ModelRetryAdviceRequest(error=error, attempt=attempt, stream=streams, previous_response_id=previous)
    )
    about = RetryPolicyContext(
        error=error,
        attempt=attempt,
        max_retries=retries.max_retries or 0,
        stream=streams,
        normalized=_normalize_retry_error(error, advice),
        provider_advice=advice,
        previous_response_id=previous,
    )
    decision = await _call_retry_policy(retries.policy, about)
    approved = decision.approve_unsafe_replay or decision._approves_replay
    seconds = decision.delay if decision.delay is not None else about.normalized.retry_after
    what = _refused(error) if isinstance(error, APIStatusError) else told(error)
    return ApplicationError(
        what.message,
        type=what.type,
        non_retryable=not decision.retry or (about.replay_safety == "unsafe" and not approved),
        next_retry_delay=None if seconds is None else timedelta(seconds=seconds),
    )


async def _streamed(model: Model, options: Mapping[str, Any], sink: EventSink) -> ModelResponse:
    """The answer, told piece by piece as it comes; at once from a model that does not stream."""
    calls: dict[int, ResponseFunctionToolCall] = {}
    final: Response | None = None
    try:
        async for event in model.stream_response(**options):
            if event.type == "response.output_text.delta":
                sink.text(event.delta)
            elif event.type in _THINKING:
                sink.thinking(str(event.delta))  # type: ignore[union-attr]
            elif event.type == "response.output_item.added" and isinstance(event.item, ResponseFunctionToolCall):
                calls[event.output_index] = event.item
            elif event.type == "response.function_call_arguments.delta" and event.output_index in calls:
                call = calls[event.output_index]
                sink.call(call.call_id, call.name, event.delta)
            elif event.type in _ENDS:
                final = event.response  # type: ignore[union-attr]
            elif event.type == "response.failed":
                raise _failed(event.response)
    except NotImplementedError:
        return await model.get_response(**options)
    # A stream of nothing reads as an answer of nothing where the SDK puts the pieces of Chat Completions together.
    if final is None or (not final.output and not (final.usage and final.usage.total_tokens)):
        raise ApplicationError("The model's answer broke off before its end.", type="ModelBehaviorError")
    return ModelResponse(output=final.output, usage=_usage(final), response_id=final.id)


def _usage(response: Response) -> Usage:
    used = response.usage
    if used is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )


def _failed(response: Response) -> ApplicationError:
    error = response.error
    return ApplicationError(error.message if error else "The model's answer failed.", type="ModelBehaviorError")


def _refused(error: APIStatusError) -> ApplicationError:
    """An answer with an error status. What its sender says of trying again holds: whether, and when."""
    said = error.response.headers.get("x-should-retry")
    again = error.status_code in _AGAIN or error.status_code >= 500
    if error.code == "insufficient_quota":
        again = False
    return ApplicationError(
        f"The model's provider answered with status {error.status_code}: {error.message}",
        type=type(error).__name__,
        non_retryable=not (again if said not in ("true", "false") else said == "true"),
        next_retry_delay=_delay(error.response.headers),
    )


def _delay(headers: Mapping[str, str]) -> timedelta | None:
    """After how long a provider wants to be asked again: milliseconds, seconds or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return timedelta(seconds=max(float(headers.get(name, "")) * unit, 0))
        except (ValueError, OverflowError):
            continue
    try:
        return max(parsedate_to_datetime(headers.get("retry-after", "")) - datetime.now(UTC), timedelta())
    except (ValueError, TypeError):
        return None


def cost_of(name: str, usage: Usage, prices: Prices | None) -> Decimal | None:
    """What an answer of a model cost, by the name of the model; None where nobody knows."""
    used = usage_of(usage, 0)
    if prices is not None and (own := prices.cost_usd(name, used)) is not None:
        return own
    counts = {key: getattr(used, key) for key in ("input_tokens", "output_tokens", "cache_read_tokens")}
    try:
        return calc_price(PricedUsage(**counts), model_ref=name, provider_id="openai").total_price
    except (LookupError, ValueError):
        return None
