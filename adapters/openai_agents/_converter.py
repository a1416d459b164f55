"""How the payloads of runs of these agents are written and read."""

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, get_origin

from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.openai_agents._temporal_openai_agents import OpenAIPayloadConverter

_STRICT = PydanticPayloadConverter()
_LENIENT = OpenAIPayloadConverter()


class InterlockOpenAIConverter(OpenAIPayloadConverter):
    """The integration's converter, which leaves out what the SDK's models do not set, and takes what providers send
    although it does not fit them; Interlock's own records are written whole and have to fit, as with every other
    framework."""

    def __init__(self) -> None:
        super().__init__()
        # To find out how the SDK's types are read takes longer than many a run, and is the same for every client.
        self.converters = _LENIENT.converters

    def to_payloads(self, values: Any) -> list[Payload]:
        """See `PayloadConverter`."""
        return super().to_payloads([_whole(value) for value in values])

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See `PayloadConverter`. Raises ValueError for what is no record, or no answer at all."""
        if any(_is_record(hint) or get_origin(hint) is list for hint in type_hints or ()):  # Lists are of MCP's tools.
            return _STRICT.from_payloads(payloads, type_hints)
        values = super().from_payloads(payloads, type_hints)
        for value, hint in zip(values, type_hints or (), strict=False):
            if isinstance(hint, type) and is_dataclass(hint) and not isinstance(value, hint):
                raise ValueError(f"this is no {hint.__name__}")
        return values


def _whole(value: Any) -> Any:
    return value.model_dump(mode="json") if _is_record(type(value)) else value


def _is_record(kind: Any) -> bool:
    """Whether this is a type of Interlock's own."""
    return isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__.partition(".")[0] == "interlock"
