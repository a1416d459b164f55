"""Tells the watchers of a run what its models say as they say it, and how far its tools are."""

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai._run_context import get_current_run_context
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models._request_timeout import open_durable_unit_stream
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_core import to_json

from interlock.contracts.ports import EventSink, event_sink


def progress(ctx: RunContext[Any], done: float | None = None, total: float | None = None, text: str = "") -> None:
    """Tell whoever watches the run how far a tool is: done of total, with a word about it, or any of these.

    Cheap, and may be called as often as you like, from any thread: of what comes fast only the latest is recorded. It
    does nothing where the run is not streamed.
    """
    if (sink := event_sink.get()) is not None:
        sink.progress(done, total, text)


class StreamedModel(WrapperModel):
    """Asks its model for a stream, tells each piece, and gives the whole answer as the model itself would."""

    def __init__(self, model: Model, sink: EventSink) -> None:
        super().__init__(model)
        self._sink = sink

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """See `Model`. A model that cannot stream is asked for its whole answer."""
        told = _Told(self._sink)
        stream = open_durable_unit_stream(
            self.wrapped, messages, model_settings, model_request_parameters, get_current_run_context()
        )
        try:
            async with stream as streamed:
                async for event in streamed:
                    told.tell(event)
            return streamed.get()  # Once it is closed: closing fills the last of it in.
        except (NotImplementedError, AssertionError):
            if told.anything:
                raise
            return await self.wrapped.request(messages, model_settings, model_request_parameters)


def told_to(sink: EventSink, handler: EventStreamHandler[Any] | None) -> EventStreamHandler[Any]:
    """The handler, or one that does nothing, with all that it gets told to the sink too."""

    async def telling(ctx: RunContext[Any], stream: AsyncIterable[Any]) -> None:
        told = _Told(sink)

        async def passing() -> AsyncIterator[Any]:
            async for event in stream:
                told.tell(event)
                yield event

        if handler is not None:
            return await handler(ctx, passing())
        async for _ in passing():
            pass
        return None

    return telling


class _Told:
    """Tells the pieces of one answer. anything: whether any has come."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._calls: dict[int, list[str]] = {}
        self.anything = False

    def tell(self, event: Any) -> None:
        self.anything = True
        if isinstance(event, PartStartEvent):
            self._started(event.index, event.part)
        elif isinstance(event, PartDeltaEvent):
            self._goes_on(event.index, event.delta)

    def _started(self, index: int, part: ModelResponsePart) -> None:
        if isinstance(part, TextPart):
            self._sink.text(part.content)
        elif isinstance(part, ThinkingPart):
            self._sink.thinking(part.content)
        elif isinstance(part, ToolCallPart):
            self._calls[index] = [part.tool_call_id, part.tool_name]
            self._sink.call(part.tool_call_id, part.tool_name, _written(part.args))

    def _goes_on(self, index: int, delta: Any) -> None:
        if isinstance(delta, TextPartDelta):
            self._sink.text(delta.content_delta)
        elif isinstance(delta, ThinkingPartDelta):
            self._sink.thinking(delta.content_delta or "")
        elif isinstance(delta, ToolCallPartDelta) and index in self._calls:
            call = self._calls[index]
            self._sink.call(call[0], call[1], _written(delta.args_delta))


def _written(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return to_json(arguments).decode() if arguments else ""
