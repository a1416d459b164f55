"""Scripted models of the OpenAI Agents SDK: what the model answers, turn by turn."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from agents import Agent, Model, ModelResponse, ModelSettings, Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
)
from pydantic_core import to_json

Turn = Sequence[ResponseOutputItem] | str | Callable[[list[Any]], Sequence[ResponseOutputItem] | str]


class Script(Model):
    """A model that gives one answer per turn, and remembers what it was asked.

    The turn is the number of answers in the conversation, so a call that is made again gets the same answer.
    """

    def __init__(self, *turns: Turn, tokens: tuple[int, int] = (5, 2)) -> None:
        self.model = "scripted"
        self._turns = turns
        self._tokens = tokens
        self.asked: list[list[Any]] = []
        self.instructions: list[str | None] = []
        self.settings: list[ModelSettings] = []

    @property
    def calls(self) -> int:
        """How often the model was called."""
        return len(self.asked)

    def results(self, turn: int = -1) -> dict[str, Any]:
        """What the model was told of each call, by call id, when it was asked for a turn."""
        return {
            item["call_id"]: item["output"] for item in self.asked[turn] if item.get("type") == "function_call_output"
        }

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],
        model_settings: ModelSettings,
        *args: Any,
        **named: Any,
    ) -> ModelResponse:
        """See `Model`."""
        self.settings.append(model_settings)
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.asked.append(items)
        self.instructions.append(system_instructions)
        answer = self._turns[answers_in(items)]
        given = answer(items) if callable(answer) else answer
        output: list[ResponseOutputItem] = [message(given)] if isinstance(given, str) else list(given)
        asked, said = self._tokens
        usage = Usage(requests=1, input_tokens=asked, output_tokens=said, total_tokens=asked + said)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        """See `Model`."""
        raise NotImplementedError


def answers_in(items: list[Any]) -> int:
    """How many answers of a model a conversation has: calls that stand together are one."""
    count, before = 0, False
    for item in items:
        answer = item.get("type") == "function_call" or item.get("role") == "assistant"
        count += answer and not before
        before = answer
    return count


def message(text: str) -> ResponseOutputMessage:
    """A text answer."""
    content = ResponseOutputText(type="output_text", text=text, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


def call(tool: str, call_id: str, /, **arguments: Any) -> ResponseFunctionToolCall:
    """A tool call as a model makes it."""
    return ResponseFunctionToolCall(
        type="function_call", name=tool, call_id=call_id, arguments=to_json(arguments).decode()
    )


def agent(script: Script, *, name: str = "support", **options: Any) -> Agent[Any]:
    """An agent with a scripted model."""
    return Agent(name=name, model=script, **options)
