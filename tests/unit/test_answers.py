"""What models have answered is read from the forms that the frameworks record, whatever else is there."""

from typing import Any

import pytest
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
)
from openai.types.responses.response_reasoning_item import Summary
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from interlock.journal._answers import Call, answer_in

CALL = Call("refund", "c1", {"order": "A-1", "api_key": "[masked]"})
ARGUMENTS = '{"order": "A-1", "api_key": "abc"}'


def of_pydantic_ai() -> Any:
    parts: list[ModelResponsePart] = [
        ThinkingPart("I look."),
        TextPart("The password: "),
        ToolCallPart("refund", ARGUMENTS, "c1"),
        TextPart("hunter2"),
    ]
    return TypeAdapter(ModelResponse).dump_python(ModelResponse(parts=parts), mode="json")


def of_openai() -> Any:
    texts = [
        ResponseOutputText(text=text, type="output_text", annotations=[]) for text in ("The password: ", "hunter2")
    ]
    items: list[Any] = [
        ResponseReasoningItem(id="r1", type="reasoning", summary=[Summary(text="I look.", type="summary_text")]),
        ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=list(texts)),
        ResponseFunctionToolCall(type="function_call", name="refund", call_id="c1", arguments=ARGUMENTS),
    ]
    return {"output": [item.model_dump(mode="json") for item in items], "usage": {}, "response_id": "x"}


@pytest.mark.parametrize("result", [of_pydantic_ai(), of_openai()], ids=["pydantic-ai", "openai"])
def test_an_answer_is_its_text_its_thoughts_and_its_calls(result: Any) -> None:
    answer = answer_in(result)

    assert answer.said == {"thinking": "I look.", "text": "The password: [masked]"}
    assert answer.calls == (CALL,)


@pytest.mark.parametrize(
    "result",
    [None, "text", [], {"parts": 7}, {"parts": [None, 1, {"part_kind": "text"}]}, {"output": [{"type": "message"}]}],
    ids=str,
)
def test_what_is_no_answer_says_nothing(result: Any) -> None:
    answer = answer_in(result)

    assert (answer.said, answer.calls) == ({"thinking": "", "text": ""}, ())


def test_arguments_that_are_no_json_are_left_out() -> None:
    result = {"parts": [{"part_kind": "tool-call", "tool_name": "refund", "tool_call_id": "c1", "args": "{broken"}]}

    assert answer_in(result).calls == (Call("refund", "c1", None),)
