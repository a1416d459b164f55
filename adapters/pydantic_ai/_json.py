"""Values of the framework in their JSON forms, and what is said when one does not fit."""

from collections.abc import Mapping, Sequence
from typing import Any, Union

from pydantic import BaseModel, RootModel, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_ai._output import types_from_output_spec
from pydantic_ai.messages import ModelMessage, UserContent
from pydantic_ai.tools import DeferredToolRequests
from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError

from interlock.adapters._calls import written
from interlock.contracts import names
from interlock.contracts.payloads import Json

MESSAGES: TypeAdapter[list[ModelMessage]] = TypeAdapter(list[ModelMessage])
PROMPT: TypeAdapter[Any] = TypeAdapter(list[UserContent])


def as_json_object(args: Mapping[str, Any]) -> dict[str, Json]:
    """Arguments in the JSON form in which they travel to the tool's activity, the same in every process."""
    return dict(_without_chance(dict(args), from_json(to_json(dict(args)))))


def _without_chance(value: Any, written: Json) -> Json:
    """The written value with what came from a set in a fixed order: a set has another order in each process."""
    if isinstance(value, RootModel):
        return _without_chance(value.root, written)
    if isinstance(value, set | frozenset | list | tuple) and isinstance(written, list) and len(value) == len(written):
        items = [_without_chance(one, as_written) for one, as_written in zip(value, written, strict=True)]
        return sorted(items, key=to_json) if isinstance(value, set | frozenset) else items
    if isinstance(value, dict) and isinstance(written, dict) and len(value) == len(written):
        pairs = zip(value.values(), written.items(), strict=True)
        return {key: _without_chance(one, as_written) for one, (key, as_written) in pairs}
    if isinstance(written, dict):
        fields = _fields_as_written(value)
        return {
            key: _without_chance(getattr(value, str(fields.get(key, key)), None), one) for key, one in written.items()
        }
    return written


def _fields_as_written(value: Any) -> dict[str, str]:
    fields = type(value).model_fields if isinstance(value, BaseModel) else {}
    return {field.serialization_alias or field.alias or name: name for name, field in fields.items()}


def as_prompt(prompt: str | Sequence[UserContent]) -> str | list[Json]:
    """A prompt as the input of a run has it."""
    if isinstance(prompt, str):
        return prompt
    parts: list[Json] = PROMPT.dump_python(list(prompt), mode="json")
    return parts


def as_json(value: Any) -> Json:
    if isinstance(value, DeferredToolRequests):
        raise ApplicationError(
            "The agent ended on calls that nobody may decide: a capability outside of Interlock's took them over.",
            type=names.AGENT_RUN_FAILED,
            non_retryable=True,
        )
    as_written: Json = written(value)
    return as_written


def output_adapter(spec: Any) -> TypeAdapter[Any]:
    """Reads an output that an agent with these output types could give, from its JSON."""
    kinds = tuple(kind for kind in types_from_output_spec(spec) if kind is not DeferredToolRequests)
    union: Any = Union[kinds]  # noqa: UP007 - the members are only known here
    try:
        return TypeAdapter(union)
    except (PydanticUserError, TypeError):  # Of a type of the user's own that has no form in JSON to be read from.
        return TypeAdapter(Any)


def type_name(kind: Any) -> str:
    """How a person would write a type: unions and the like have no name of their own."""
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
