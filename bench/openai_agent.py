"""The agent of the OpenAI Agents SDK that its benchmark runs. Its model follows the prompt, as that of `bench.agents`.

Workflow modules load this inside Temporal's sandbox, so it imports nothing of Interlock.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelProvider, ModelResponse, Tool, Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from bench.payload import text


class Following(Model):
    """Makes one call per turn, until all that the prompt asks for are made."""

    async def get_response(
        self, system_instructions: str | None, input: Any, *args: Any, **named: Any
    ) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        tool, _, times = items[0]["content"].partition("*")
        turn = sum(item.get("type") == "function_call" for item in items)
        if turn == int(times):
            return _answer(_said("done"))
        arguments = json.dumps({"key": f"item-{turn}"})
        return _answer(
            ResponseFunctionToolCall(type="function_call", name=tool, call_id=f"call-{turn}", arguments=arguments)
        )

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Models(ModelProvider):
    """The model behind every name."""

    def get_model(self, model_name: str | None) -> Model:
        return Following()


def _answer(item: Any) -> ModelResponse:
    usage = Usage(requests=1, input_tokens=5, output_tokens=2, total_tokens=7)
    return ModelResponse(output=[item], usage=usage, response_id=None)


def _said(words: str) -> ResponseOutputMessage:
    content = ResponseOutputText(type="output_text", text=words, annotations=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[content])


async def lookup(key: str) -> str:
    """Look an item up."""
    return text(key)


def make_agent(tool: Tool) -> Agent[Any]:
    return Agent(name="bench", model="following", tools=[tool])
