"""What a model's recorded answer says, in the JSON forms of the frameworks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Json
from interlock.journal._payloads import shown, shown_object, text_in

SPOKEN = ("thinking", "text")


@dataclass(frozen=True)
class Call:
    """A tool call that a model has made; arguments: masked and shortened, null when they are no JSON object."""

    tool: str
    call_id: str
    arguments: dict[str, Json] | None


@dataclass(frozen=True)
class Answer:
    """said: by kind, `thinking` and `text`, joined and masked."""

    said: Mapping[str, str]
    calls: tuple[Call, ...]


def answer_in(result: Any) -> Answer:
    """The answer in the stored result of a model's step; empty for a form that is not known.

    pydantic-ai stores a `ModelResponse` with `parts`; the OpenAI SDK one with `output`, the items of its Responses API.
    """
    pieces = [*_parts(_list_in(result, "parts")), *_items(_list_in(result, "output"))]
    said = {kind: masked_text("".join(text for name, text in pieces if name == kind)) for kind in SPOKEN}
    return Answer(said, tuple(piece for _, piece in pieces if isinstance(piece, Call)))


def _parts(parts: list[Any]) -> Iterator[tuple[str, Any]]:
    for part in parts:
        kind = text_in(part, "part_kind")
        if kind in SPOKEN:
            yield kind, text_in(part, "content")
        elif kind == "tool-call":
            yield "call", _call(text_in(part, "tool_name"), text_in(part, "tool_call_id"), part.get("args"))


def _items(items: list[Any]) -> Iterator[tuple[str, Any]]:
    for item in items:
        kind = text_in(item, "type")
        if kind == "message":
            yield from (("text", text_in(one, "text")) for one in _list_in(item, "content"))
        elif kind == "reasoning":
            said = [*_list_in(item, "summary"), *_list_in(item, "content")]
            yield from (("thinking", text_in(one, "text")) for one in said)
        elif kind == "function_call":
            yield "call", _call(text_in(item, "name"), text_in(item, "call_id"), item.get("arguments"))


def _call(tool: str, call_id: str, written: Any) -> Call:
    arguments = written
    if isinstance(written, str):
        try:
            arguments = from_json(written)
        except ValueError:
            arguments = None
    return Call(str(shown(tool)), call_id, shown_object(arguments))


def _list_in(value: Any, name: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
