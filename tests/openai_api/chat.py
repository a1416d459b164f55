"""Answers in the words of the Chat Completions API, made of the installed SDK's own types."""

from collections.abc import Iterator
from typing import Literal

from openai.types import CompletionUsage
from openai.types.chat import (
    ChatCompletion,
    ChatCompletionChunk,
    ChatCompletionMessage,
    ChatCompletionMessageFunctionToolCall,
)
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import ChoiceDelta, ChoiceDeltaToolCall, ChoiceDeltaToolCallFunction
from openai.types.chat.chat_completion_message_function_tool_call import Function
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails

from tests.openai_api.responses import CREATED, pieces
from tests.openai_api.script import Answer, Call, Request, Text

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


def whole(answer: Answer, request: Request, number: int) -> ChatCompletion:
    """The answer in one piece. number: of the answer, among all that the server gave."""
    message = ChatCompletionMessage(
        role="assistant",
        content=_text(answer, refused=False),
        refusal=_text(answer, refused=True),
        tool_calls=[
            ChatCompletionMessageFunctionToolCall(
                id=call_id, function=Function(name=call.tool, arguments=call.arguments), type="function"
            )
            for call_id, call in _calls(answer, request)
        ]
        or None,
    )
    return ChatCompletion(
        id=f"chatcmpl-{number}",
        choices=[Choice(index=0, message=message, finish_reason=_reason(answer), logprobs=None)],
        created=CREATED,
        model=request.model,
        object="chat.completion",
        usage=_usage(answer),
    )


def events(answer: Answer, request: Request, number: int) -> Iterator[ChatCompletionChunk]:
    """The answer as the chunks of a stream; the usage comes last, when it is asked for."""

    def chunk(*deltas: ChoiceDelta, reason: FinishReason | None = None, usage: bool = False) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=f"chatcmpl-{number}",
            choices=[ChunkChoice(delta=delta, index=0, finish_reason=reason) for delta in deltas],
            created=CREATED,
            model=request.model,
            object="chat.completion.chunk",
            usage=_usage(answer) if usage else None,
        )

    yield chunk(ChoiceDelta(role="assistant", content=""))
    for piece in pieces(_text(answer, refused=False) or ""):
        yield chunk(ChoiceDelta(content=piece))
    for piece in pieces(_text(answer, refused=True) or ""):
        yield chunk(ChoiceDelta(refusal=piece))
    for index, (call_id, call) in enumerate(_calls(answer, request)):
        begun = ChoiceDeltaToolCallFunction(name=call.tool, arguments="")
        yield chunk(
            ChoiceDelta(tool_calls=[ChoiceDeltaToolCall(index=index, id=call_id, function=begun, type="function")])
        )
        for piece in pieces(call.arguments):
            more = ChoiceDeltaToolCallFunction(arguments=piece)
            yield chunk(ChoiceDelta(tool_calls=[ChoiceDeltaToolCall(index=index, function=more)]))
    yield chunk(ChoiceDelta(), reason=_reason(answer))
    if (request.body.get("stream_options") or {}).get("include_usage"):
        yield chunk(usage=True)


def _text(answer: Answer, *, refused: bool) -> str | None:
    texts = [item.text for item in answer.items if isinstance(item, Text) and item.refused == refused]
    return "".join(texts) if texts else None


def _calls(answer: Answer, request: Request) -> Iterator[tuple[str, Call]]:
    for index, item in enumerate(answer.items):
        if isinstance(item, Call):
            yield item.call_id or f"call_{request.answers}_{index}", item
        elif not isinstance(item, Text):
            raise LookupError(f"Chat Completions has no item such as {type(item).__name__}; use Responses.")


def _reason(answer: Answer) -> FinishReason:
    if answer.incomplete:
        return "length" if answer.incomplete == "max_output_tokens" else "content_filter"
    return "tool_calls" if any(isinstance(item, Call) for item in answer.items) else "stop"


def _usage(answer: Answer) -> CompletionUsage:
    return CompletionUsage(
        prompt_tokens=answer.input_tokens,
        completion_tokens=answer.output_tokens,
        total_tokens=answer.input_tokens + answer.output_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=answer.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=answer.reasoning_tokens),
    )
