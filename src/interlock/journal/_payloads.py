"""Stored payloads as values, and as much of a value as a journal may show."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Final, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter

from interlock._rpc import own_failure
from interlock.contracts.masking import masked, masked_text
from interlock.contracts.payloads import Json, Usage
from interlock.contracts.payloads import Payload as Record

P = TypeVar("P", bound=Record)

UNREADABLE: Final = object()
"""In place of a value whose payload could not be decoded."""

_COUNTS = [name for name in Usage.model_fields if name != "cost_usd"]
_LONGEST_TEXT = 2_000
_MOST_ITEMS = 100
_DEEPEST = 8
_MOST_CHARACTERS = 20_000  # Of one value in all, so that a journal stays small whatever tools are called with.


class Decoder:
    """Decodes what a history holds, by a client's data converter. Nothing that is stored can make it raise."""

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter

    async def first(self, payloads: Payloads) -> Any:
        """The value of the first payload: None when there is none, `UNREADABLE` when it cannot be decoded."""
        return await self.value(payloads.payloads[0]) if payloads.payloads else None

    async def value(self, payload: Payload) -> Any:
        """The value of a payload, or `UNREADABLE`."""
        try:
            (value,) = await self._converter.decode([payload])
        except Exception:  # Whatever a codec or a converter makes of bytes that are not its own.
            return UNREADABLE
        return value

    async def text(self, payload: Payload) -> str:
        """The masked text of a payload; empty when there is none or it is no text."""
        value = await self.value(payload) if payload.data else None
        return masked_text(value) if isinstance(value, str) else ""

    async def failure(self, failure: Failure) -> tuple[str, str]:
        """The type and the masked message of a failure, as `own_failure` finds it."""
        failure = own_failure(failure)
        kind = failure.application_failure_info.type if failure.HasField("application_failure_info") else ""
        message = failure.message
        if failure.HasField("encoded_attributes"):
            attributes = await self.value(failure.encoded_attributes)
            message = text_in(attributes, "message") or "(not readable)"
        return kind, cut(masked_text(message))


def size(payloads: Payloads) -> int:
    """The bytes of stored payloads."""
    return sum(len(payload.data) for payload in payloads.payloads)


def shown(value: Json) -> Json:
    """A value with its secrets masked, and short enough to be kept."""
    return _shortened(masked(value), [_MOST_CHARACTERS], 0)


def shown_object(value: Any) -> dict[str, Json] | None:
    """`shown` of a JSON object; None of anything else."""
    return dict(shown(value)) if isinstance(value, dict) else None


def cut(text: str, longest: int = _LONGEST_TEXT) -> str:
    """A text, or its beginning and how much more there is."""
    return text if len(text) <= longest else f"{text[:longest]}… ({len(text) - longest:,} characters more)"


def number_in(value: Any, name: str) -> int:
    """A field that is a whole number; 0 when there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, int) else 0


def text_in(value: Any, name: str) -> str:
    """The text under a name of a JSON object; empty when it is not there."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def texts_in(value: Any, name: str) -> tuple[str, ...]:
    """The list of texts under a name of a JSON object; empty when it is not there."""
    found = value.get(name) if isinstance(value, dict) else None
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()


def time_in(value: Any, name: str) -> datetime | None:
    """The time under a name of a JSON object."""
    try:
        found = datetime.fromisoformat(text_in(value, name))
    except ValueError:
        return None
    return found if found.tzinfo else None


def usage_in(value: Any, *, requests: int | None = None) -> Usage | None:
    """The usage that a JSON object holds, whoever counted it. requests: in place of its own count."""
    if not isinstance(value, dict):
        return None
    counts = {name: value[name] for name in _COUNTS if _is_count(value.get(name))}
    if requests is not None:
        counts["requests"] = requests
    return Usage(**counts, cost_usd=_cost_in(value) or Decimal(0))


def model_usage_in(response: Any) -> Usage | None:
    """What a model's response says that it used, and the attempts that failed before it."""
    used = usage_in(response.get("usage"), requests=1) if isinstance(response, dict) else None
    if used is None:
        return None
    if "cost_usd" in response:  # The answers of OpenAI agents say it beside their usage.
        cost = _cost_in(response)
        used = used + (Usage(unpriced=1) if cost is None else Usage(cost_usd=cost))
    attempts = response.get("failed_attempts")
    billed = [response, *(one for one in (attempts if isinstance(attempts, list) else []) if isinstance(one, dict))]
    for one in billed:
        of = one.get("usage")
        if isinstance(of, dict) and "cost" in of and _cost_in(of) is None:
            used = used + Usage(unpriced=1)
    return sum((found for one in billed[1:] if (found := usage_in(one.get("usage")))), used)


def _cost_in(value: dict[str, Any]) -> Decimal | None:
    try:
        cost = Decimal(str(value.get("cost_usd") or value.get("cost")))
    except ArithmeticError:
        return None
    return cost if cost.is_finite() and cost >= 0 else None


def made(kind: type[P], value: Any) -> P | None:
    """A payload from a value; None when it is none."""
    try:
        return kind.model_validate(value)
    except ValidationError:
        return None


def moment(timestamp: Timestamp) -> datetime:
    """A time of the server's."""
    return timestamp.ToDatetime(tzinfo=UTC)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shortened(value: Json, left: list[int], depth: int) -> Json:
    if left[0] <= 0 or depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        pairs = islice(value.items(), _MOST_ITEMS)
        kept = {cut(masked_text(str(key)), 200): _shortened(item, left, depth + 1) for key, item in pairs}
        return kept | dict.fromkeys(_more(len(value)), "")
    if isinstance(value, list):
        return [*(_shortened(item, left, depth + 1) for item in value[:_MOST_ITEMS]), *_more(len(value))]
    text = cut(value, min(_LONGEST_TEXT, max(left[0], 1))) if isinstance(value, str) else value
    left[0] -= len(str(text)) + 10
    return text


def _more(count: int) -> list[str]:
    return [f"… ({count - _MOST_ITEMS:,} more)"] if count > _MOST_ITEMS else []
