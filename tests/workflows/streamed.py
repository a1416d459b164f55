"""Models that stream in step with a test: each goes on when a reader has seen what it said."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from interlock import Run, RunEvent
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts import names
from interlock.testing import RunningApp

SOON = timedelta(milliseconds=50)
Turn = Callable[[], AsyncIterator[Any]]


class Reader:
    """Reads a run's events as they come. What waits for one of a kind goes on when it is there."""

    def __init__(self) -> None:
        self.events: list[RunEvent] = []
        self._more = asyncio.Condition()

    async def read(self, run: Run, from_offset: int = 0) -> list[RunEvent]:
        async for event in run.events(from_offset=from_offset):
            async with self._more:
                self.events.append(event)
                self._more.notify_all()
        return self.events

    async def seen(self, holds: Callable[[RunEvent], bool]) -> RunEvent:
        async with asyncio.timeout(60), self._more:
            while True:
                for event in self.events:
                    if holds(event):
                        return event
                await self._more.wait()

    async def said(self, text: str) -> None:
        """Wait until somebody could have read this."""
        async with asyncio.timeout(60), self._more:
            while text not in said(self.events):
                await self._more.wait()


def agent(*turns: Turn, name: str = "support", **options: Any) -> Agent[Any, Any]:
    """A durable agent whose model streams one turn after the other."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        async for piece in turns[turn]():
            yield piece

    model = FunctionModel(stream_function=stream, model_name="scripted")
    return Agent(model, name=name, capabilities=[Durable(**options.pop("durable", {}))], **options)


def turn(*pieces: Any) -> Turn:
    """A turn that says its pieces at once."""

    async def stream() -> AsyncIterator[Any]:
        for piece in pieces:
            yield piece

    return stream


def thought(text: str) -> dict[int, DeltaThinkingPart]:
    return {0: DeltaThinkingPart(content=text)}


def call(tool: str, call_id: str, arguments: str = "", *, at: int = 1) -> dict[int, DeltaToolCall]:
    return {at: DeltaToolCall(name=tool, json_args=arguments, tool_call_id=call_id)}


def more_of_call(arguments: str, *, at: int = 1) -> dict[int, DeltaToolCall]:
    return {at: DeltaToolCall(json_args=arguments)}


def said(events: list[RunEvent], kind: str = "text", step: int | None = None) -> str:
    """What a reader that takes back what failed attempts said has of it."""
    texts: dict[int | None, str] = {}
    for event in events:
        if event.kind == "attempt_failed":
            texts.pop(event.step, None)
        elif event.kind == kind and step in (None, event.step):
            texts[event.step] = texts.get(event.step, "") + event.text
    return "".join(texts.values())


def kinds(events: list[RunEvent]) -> list[str]:
    """The kinds of events in their order, each repeated one once."""
    found = [event.kind for event in events]
    return [kind for kind, before in zip(found, ["", *found], strict=False) if kind != before]


async def records(app: RunningApp, run: Run) -> int:
    """How many batches of events the run's history holds."""
    history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    signals = [event.workflow_execution_signaled_event_attributes.signal_name for event in history.events]
    return signals.count(names.RECORD_EVENTS)
