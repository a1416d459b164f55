"""Scripted models: what the model answers, turn by turn."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock.adapters.pydantic_ai import Durable

Turn = Sequence[ModelResponsePart] | str | Callable[[list[ModelMessage]], Sequence[ModelResponsePart] | str]


class Script:
    """A model that gives one answer per turn, and remembers what it was asked.

    The turn is the number of answers in the conversation, so a call that is made again gets the same answer.
    """

    def __init__(self, *turns: Turn, earlier_answers: int = 0) -> None:
        self._turns = turns
        self._earlier = earlier_answers
        self.asked: list[list[ModelMessage]] = []
        self.model = FunctionModel(self._answer, model_name="scripted")

    @property
    def calls(self) -> int:
        """How often the model was called."""
        return len(self.asked)

    def results(self, turn: int = -1) -> dict[str, Any]:
        """What the model was told of each call, by call id, when it was asked for a turn."""
        parts = [part for message in self.asked[turn] for part in message.parts]
        return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}

    def outcomes(self, turn: int = -1) -> dict[str, str]:
        """How each call went, by call id, as the model was told."""
        parts = [part for message in self.asked[turn] for part in message.parts]
        return {part.tool_call_id: part.outcome for part in parts if isinstance(part, ToolReturnPart)}

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked.append(list(messages))
        turn = sum(isinstance(message, ModelResponse) for message in messages) - self._earlier
        answer = self._turns[turn]
        parts = answer(messages) if callable(answer) else answer
        return ModelResponse(parts=[TextPart(parts)] if isinstance(parts, str) else list(parts))


def call(tool: str, call_id: str | None = None, /, **arguments: Any) -> ToolCallPart:
    """A tool call as a model makes it."""
    return ToolCallPart(tool, arguments) if call_id is None else ToolCallPart(tool, arguments, tool_call_id=call_id)


def agent(script: Script, *, name: str = "support", **options: Any) -> Agent[Any, Any]:
    """A durable agent that the script plays the model of."""
    capabilities = [*options.pop("capabilities", []), Durable(**options.pop("durable", {}))]
    return Agent(script.model, name=name, capabilities=capabilities, **options)


def prompt_of(messages: list[ModelMessage]) -> str:
    """The text that the conversation begins with."""
    return str(getattr(messages[0].parts[0], "content", ""))


def user_texts(messages: list[ModelMessage]) -> list[str]:
    """What the last message tells the model in a user's voice, part by part."""
    texts: list[str] = []
    for part in messages[-1].parts:
        if isinstance(part, UserPromptPart):
            texts += [part.content] if isinstance(part.content, str) else [str(one) for one in part.content]
    return texts
