"""Values of the framework in their JSON forms, and what is said when one does not fit."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.tools import DeferredToolRequests
from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError

from interlock.contracts import names
from interlock.contracts.payloads import Json

MESSAGES: TypeAdapter[list[ModelMessage]] = TypeAdapter(list[ModelMessage])
PROMPT: TypeAdapter[Any] = TypeAdapter(list[UserContent])


def as_json_object(args: Mapping[str, Any]) -> dict[str, Json]:
    """Arguments in the JSON form in which they travel to the tool's activity."""
    return dict(from_json(to_json(dict(args))))


def as_json(value: Any) -> Json:
    if isinstance(value, DeferredToolRequests):
        raise ApplicationError(
            "The agent ended on calls that nobody may decide: a capability outside of Interlock's took them over.",
            type=names.AGENT_RUN_FAILED,
            non_retryable=True,
        )
    try:
        return from_json(to_json(value))
    except ValueError as error:
        raise ApplicationError(
            f"A value of type {type(value).__name__} cannot be written as JSON: {error}",
            type=names.AGENT_RUN_FAILED,
            non_retryable=True,
        ) from error


def problems(error: ValidationError) -> str:
    # Without the inputs: they may be secrets, and this text ends up in the history.
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(str(step) for step in one['loc']) or 'value'}: {one['msg']}" for one in found)


def type_name(kind: Any) -> str:
    """How a person would write a type: unions and the like have no name of their own."""
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
