"""Reads what comes to a run. A message that cannot be read must harm neither the run nor whoever's secrets it holds."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_ai.durable_exec.temporal import PydanticAIPayloadConverter
from temporalio.api.common.v1 import Payload

from interlock.adapters.pydantic_ai._json import problems
from interlock.contracts.payloads import Message
from interlock.contracts.ports import Unreadable


class Converter(PydanticAIPayloadConverter):
    """The framework's converter; but what is no message comes out as `Unreadable`.

    Left alone, the SDK would write the values of such a message into its log and into the answer to its sender.
    """

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """See `PayloadConverter`."""
        hint = type_hints[0] if type_hints and len(type_hints) == 1 else None
        if isinstance(hint, type) and issubclass(hint, Message):
            return [self._message(payloads, hint)]
        try:
            return super().from_payloads(payloads, type_hints)
        except Exception:
            # The SDK asks for no types when a message has too many arguments or too few.
            if type_hints or len(payloads) == 1:
                raise
            return [Unreadable("This cannot be read.")] * len(payloads)

    def _message(self, payloads: Sequence[Payload], kind: type[Message]) -> Message | Unreadable:
        try:
            (message,) = super().from_payloads(payloads, [kind])
        except ValidationError as error:
            wrong = problems(error)
        except Exception as error:  # Whatever a converter makes of an encoding it does not know.
            wrong = f"it is not JSON ({type(error).__name__})"
        else:
            if isinstance(message, kind):
                return message
            wrong = "it is null or not JSON"
        return Unreadable(
            f"A {kind.__name__} is expected, and this is none: {wrong}. One has {', '.join(kind.model_fields)}."
        )
