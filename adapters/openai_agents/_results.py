"""What tools return, in a form that reaches the model the same way live and on a replay."""

from collections.abc import Callable
from typing import Any, get_type_hints

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    FunctionTool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json

from interlock.contracts.failures import place, problems
from interlock.contracts.payloads import Json

_BLOCKS = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_BLOCK: TypeAdapter[Any] = TypeAdapter(ToolOutputText | ToolOutputImage | ToolOutputFileContent)


class ToolResult(BaseModel):
    """What a tool's step gives back.

    kind: `tool_return`. form: `json` when the value is plain JSON, `blocks` for the SDK's text, image and file
    outputs, `typed` for a value of the tool's return type, `text` for anything else.
    result: the value as JSON. text: what the model reads of a value that is not plain JSON.
    changes: the fields of the context that the tool has changed.
    """

    kind: str = "tool_return"
    form: str
    result: Json = None
    text: str = ""
    changes: dict[str, Json] = {}


def encoded(output: Any, changes: dict[str, Json]) -> ToolResult:
    """A tool's output as its step gives it back."""
    if _is_plain(output):
        return ToolResult(form="json", result=output, changes=changes)
    if isinstance(output, _BLOCKS) or _are_blocks(output):
        blocks = [block.model_dump(mode="json") for block in (output if isinstance(output, list) else [output])]
        return ToolResult(form="blocks", result=blocks, text="" if isinstance(output, list) else "one", changes=changes)
    text = str(output)
    try:
        return ToolResult(form="typed", result=from_json(to_json(output)), text=text, changes=changes)
    except (PydanticSerializationError, ValueError):
        return ToolResult(form="text", text=text, changes=changes)


def decoded(result: ToolResult, tool: FunctionTool) -> Any:
    """The output again: the same value where the tool's return type gives it back, else what the model reads of it."""
    if result.form == "json":
        return result.result
    if result.form == "blocks":
        blocks = [_BLOCK.validate_python(block) for block in result.result] if isinstance(result.result, list) else []
        return blocks[0] if result.text else blocks
    if result.form == "typed" and (kind := _return_type(tool)) is not None:
        try:
            value = TypeAdapter(kind).validate_json(to_json(result.result))
        except Exception:  # Whatever a validator of the user's makes of its own type's JSON; the text says the same.
            return result.text
        if str(value) == result.text:
            return value
    return result.text


def typed_output(agent: Agent[Any], written: Json) -> Any:
    """An agent's output from its JSON, as those who run the agent know it."""
    kind: Any = agent.output_type
    kind = kind.output_type if isinstance(kind, AgentOutputSchema) else kind
    try:
        return written if kind is None else TypeAdapter(kind).validate_json(to_json(written))
    except (PydanticUserError, ValidationError):
        return written  # A function has made it of what tools returned, or the schema is one of the user's own.


def fitting_output(agent: Agent[Any], proposed: Json, given: Json) -> Json:
    """An output that somebody gives instead of the agent's, as the agent would have given it.

    proposed: the agent's own; where that is not of the agent's output type, since a function has made it of what tools
    returned, any other will do. Raises ValueError when it does not fit.
    """
    kind: Any = agent.output_type
    read: Callable[[str], Any]
    if isinstance(kind, AgentOutputSchemaBase) and not isinstance(kind, AgentOutputSchema):
        read = kind.validate_json
    else:
        kind = kind.output_type if isinstance(kind, AgentOutputSchema) else kind
        read = TypeAdapter[Any](str if kind is None else kind).validate_json
    try:
        read(to_json(proposed).decode())
    except Exception:
        return given
    try:
        fitting: Json = from_json(to_json(read(to_json(given).decode())))
        return fitting
    except Exception as error:  # A validator of the user's own may raise anything.
        what = problems(error) if isinstance(error, ValidationError) else f"{type(error).__name__} {place(error)}"
        raise ValueError(what.rstrip()) from None


def _is_plain(value: Any) -> bool:
    """Whether JSON gives back the very same value."""
    if value is None or type(value) in (str, bool, int):
        return True
    if type(value) is float:
        return value == value and abs(value) != float("inf")
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    return type(value) is dict and all(type(key) is str and _is_plain(item) for key, item in value.items())


def _are_blocks(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, _BLOCKS) for one in value)


def _return_type(tool: FunctionTool) -> Any:
    function: Callable[..., Any] | None = getattr(tool, "__wrapped__", None)
    if function is None:
        return None
    try:
        return get_type_hints(function).get("return")
    except (NameError, TypeError):
        return None
