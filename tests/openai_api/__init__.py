"""An OpenAI-compatible server on loopback, for the path through the real SDK clients.

async def test_it(openai_api: OpenAIAPI) -> None:
    script = openai_api.script([call("look", "a", order="A-1")], attempts(error(429), "done"))
    model = OpenAIResponsesModel(script.model, provider=OpenAIProvider(openai_client=openai_api.client()))
    ...
    assert script.calls == 3
"""

from tests.openai_api.script import (
    Answer,
    Attempts,
    Request,
    Script,
    Text,
    Turn,
    answer,
    approval,
    attempts,
    call,
    cut,
    dropped,
    error,
    malformed,
    refusal,
    reply,
    slow,
)
from tests.openai_api.server import OpenAIAPI

__all__ = [
    "Answer",
    "Attempts",
    "OpenAIAPI",
    "Request",
    "Script",
    "Text",
    "Turn",
    "answer",
    "approval",
    "attempts",
    "call",
    "cut",
    "dropped",
    "error",
    "malformed",
    "refusal",
    "reply",
    "slow",
]
