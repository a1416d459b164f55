"""Answers in the words of the Responses API, made of the installed SDK's own types."""

import re
from collections.abc import Iterator
from typing import Any

from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseContentPartAddedEvent,
    ResponseContentPartDoneEvent,
    ResponseCreatedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseInProgressEvent,
    ResponseOutputItem,
    ResponseOutputItemAddedEvent,
    ResponseOutputItemDoneEvent,
    ResponseOutputMessage,
    ResponseOutputRefusal,
    ResponseOutputText,
    ResponseRefusalDeltaEvent,
    ResponseRefusalDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseUsage,
)
from openai.types.responses.response import IncompleteDetails
from openai.types.responses.response_output_item import McpApprovalRequest
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import TypeAdapter

from tests.openai_api.script import Answer, Approval, Call, Item, Request, Text

CREATED = 1_767_225_600
_ITEM: TypeAdapter[ResponseOutputItem] = TypeAdapter(ResponseOutputItem)


def whole(answer: Answer, request: Request, number: int) -> Response:
    """The answer in one piece. number: of the answer, among all that the server gave."""
    output = [_item(item, request, f"{number}_{place}", place) for place, item in enumerate(answer.items)]
    response = _begun(request, number)
    response.status = "incomplete" if answer.incomplete else "completed"
    response.incomplete_details = IncompleteDetails(reason=answer.incomplete) if answer.incomplete else None
    response.output = output
    response.usage = ResponseUsage(
        input_tokens=answer.input_tokens,
        input_tokens_details=InputTokensDetails(cache_write_tokens=0, cached_tokens=answer.cached_tokens),
        output_tokens=answer.output_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=answer.reasoning_tokens),
        total_tokens=answer.input_tokens + answer.output_tokens,
    )
    return response


def events(answer: Answer, request: Request, number: int) -> Iterator[Any]:
    """The answer as the events of a stream."""
    response = whole(answer, request, number)
    made = [
        ResponseCreatedEvent(response=_begun(request, number), sequence_number=0, type="response.created"),
        ResponseInProgressEvent(response=_begun(request, number), sequence_number=0, type="response.in_progress"),
        *(event for place, item in enumerate(response.output) for event in _events_of(item, place)),
        ResponseIncompleteEvent(response=response, sequence_number=0, type="response.incomplete")
        if answer.incomplete
        else ResponseCompletedEvent(response=response, sequence_number=0, type="response.completed"),
    ]
    for sequence_number, event in enumerate(made):
        yield event.model_copy(update={"sequence_number": sequence_number})


def pieces(text: str) -> list[str]:
    """A text word by word."""
    return re.findall(r"\S+\s*|\s+", text)


def _begun(request: Request, number: int) -> Response:
    return Response(
        id=f"resp_{number}",
        created_at=CREATED,
        error=None,
        incomplete_details=None,
        instructions=request.body.get("instructions"),
        metadata={},
        model=request.model,
        object="response",
        output=[],
        parallel_tool_calls=True,
        previous_response_id=request.body.get("previous_response_id"),
        status="in_progress",
        tool_choice="auto",
        tools=[],
    )


def _item(item: Item, request: Request, place: str, index: int) -> Any:
    match item:
        case Text(text, refused):
            return ResponseOutputMessage(
                id=f"msg_{place}", content=[_part(text, refused)], role="assistant", status="completed", type="message"
            )
        case Call(tool, arguments, call_id):
            return ResponseFunctionToolCall(
                id=f"fc_{place}",
                call_id=call_id or f"call_{request.answers}_{index}",
                name=tool,
                arguments=arguments,
                status="completed",
                type="function_call",
            )
        case Approval(tool, arguments, server, request_id):
            return McpApprovalRequest(
                id=request_id, name=tool, arguments=arguments, server_label=server, type="mcp_approval_request"
            )
        case _:
            return _ITEM.validate_python(item)


def _part(text: str, refused: bool) -> ResponseOutputText | ResponseOutputRefusal:
    if refused:
        return ResponseOutputRefusal(refusal=text, type="refusal")
    return ResponseOutputText(text=text, annotations=[], logprobs=[], type="output_text")


def _events_of(item: Any, place: int) -> Iterator[Any]:
    begun = item
    if isinstance(item, ResponseOutputMessage):
        begun = item.model_copy(update={"content": [], "status": "in_progress"})
    if isinstance(item, ResponseFunctionToolCall):
        begun = item.model_copy(update={"arguments": "", "status": "in_progress"})
    yield ResponseOutputItemAddedEvent(
        item=begun, output_index=place, sequence_number=0, type="response.output_item.added"
    )
    if isinstance(item, ResponseOutputMessage):
        yield from _events_of_message(item, place)
    if isinstance(item, ResponseFunctionToolCall):
        yield from _events_of_call(item, place)
    yield ResponseOutputItemDoneEvent(
        item=item, output_index=place, sequence_number=0, type="response.output_item.done"
    )


def _events_of_message(message: ResponseOutputMessage, place: int) -> Iterator[Any]:
    (part,) = message.content
    where: dict[str, Any] = {
        "item_id": message.id,
        "output_index": place,
        "content_index": 0,
        "sequence_number": 0,
    }
    refused = isinstance(part, ResponseOutputRefusal)
    text = part.refusal if isinstance(part, ResponseOutputRefusal) else part.text
    empty = _part("", refused)
    yield ResponseContentPartAddedEvent(part=empty, type="response.content_part.added", **where)
    for piece in pieces(text):
        if refused:
            yield ResponseRefusalDeltaEvent(delta=piece, type="response.refusal.delta", **where)
        else:
            yield ResponseTextDeltaEvent(delta=piece, logprobs=[], type="response.output_text.delta", **where)
    if refused:
        yield ResponseRefusalDoneEvent(refusal=text, type="response.refusal.done", **where)
    else:
        yield ResponseTextDoneEvent(text=text, logprobs=[], type="response.output_text.done", **where)
    yield ResponseContentPartDoneEvent(part=part, type="response.content_part.done", **where)


def _events_of_call(call: ResponseFunctionToolCall, place: int) -> Iterator[Any]:
    where: dict[str, Any] = {"item_id": call.id, "output_index": place, "sequence_number": 0}
    for piece in pieces(call.arguments):
        yield ResponseFunctionCallArgumentsDeltaEvent(
            delta=piece, type="response.function_call_arguments.delta", **where
        )
    yield ResponseFunctionCallArgumentsDoneEvent(
        arguments=call.arguments, type="response.function_call_arguments.done", **where
    )
