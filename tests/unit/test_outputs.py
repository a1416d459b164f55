"""An output that a reviewer gives fits when the agent could have given it."""

from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import AgentOutputSchema
from pydantic import BaseModel, field_validator
from pydantic_ai import Agent, NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import DeferredToolRequests

from interlock.adapters.openai_agents._results import fitting_output
from interlock.adapters.pydantic_ai.workflow import Runner
from interlock.retries import Retries


class Refund(BaseModel):
    order: str
    amount: float = 0.0

    @field_validator("order")
    @classmethod
    def _known(cls, order: str) -> str:
        if order == "A-0":
            raise KeyError(order)
        return order


class Denial(BaseModel):
    reason: str


def count_words(text: str) -> int:
    return len(text.split())


def decide(order: str) -> Refund:
    return Refund(order=order)


REFUND = {"order": "A-1", "amount": 2.0}
CASES = [
    (str, "text", [5, None, REFUND]),
    (int, 5, ["five", None]),
    (Refund, REFUND, ["A-1", {"amount": 1}, {"order": "A-1", "amount": "much"}, {"order": "A-0"}]),
    (list[Refund], [REFUND], [REFUND, [{"amount": 1}]]),
]
OF_PYDANTIC_AI = [
    *CASES,
    (ToolOutput(Refund), REFUND, ["text"]),
    (NativeOutput[Any]([Refund, Denial]), {"reason": "late"}, [{"why": "late"}]),
    (PromptedOutput(Refund), REFUND, ["text"]),
    ([Refund, str], "text", [5]),
    (Refund | Denial, {"reason": "late"}, [{}]),
    ([str, DeferredToolRequests], "text", [{"calls": []}]),
    (TextOutput(count_words), 5, ["five"]),
    (decide, REFUND, ["A-1"]),
]
OF_OPENAI_AGENTS = [
    *CASES,
    (AgentOutputSchema(Refund, strict_json_schema=False), REFUND, ["text"]),
    (None, "text", [5]),
]


def of_pydantic_ai(kind: Any) -> Callable[[Any], Any]:
    agent: Agent[None, Any] = Agent("test", name="support", output_type=kind)
    return Runner(agent, Retries(), judged=False, hooked=False)._fitting


@pytest.mark.parametrize(("kind", "fits", "others"), OF_PYDANTIC_AI)
def test_an_output_fits_the_output_types_of_pydantic_ai(kind: Any, fits: Any, others: list[Any]) -> None:
    fitting = of_pydantic_ai(kind)

    assert fitting(fits) == fits
    for other in others:
        with pytest.raises(ValueError, match=r"\w"):
            fitting(other)


@pytest.mark.parametrize(("kind", "fits", "others"), OF_OPENAI_AGENTS)
def test_an_output_fits_the_output_type_of_the_agents_sdk(kind: Any, fits: Any, others: list[Any]) -> None:
    agent: OpenAIAgent[Any] = OpenAIAgent(name="support", output_type=kind)

    assert fitting_output(agent, fits, fits) == fits
    for other in others:
        with pytest.raises(ValueError, match=r"\w"):
            fitting_output(agent, fits, other)


@pytest.mark.parametrize("of", [of_pydantic_ai(Refund), lambda given: fitting_output(OF_REFUNDS, REFUND, given)])
def test_an_output_is_completed_as_the_agents_would_be_and_quoted_in_no_message(of: Callable[[Any], Any]) -> None:
    assert of({"order": "A-1"}) == {"order": "A-1", "amount": 0.0}
    with pytest.raises(ValueError, match="amount") as unfit:
        of({"order": "A-1", "amount": "hunter2"})
    assert "hunter2" not in str(unfit.value)


OF_REFUNDS: OpenAIAgent[Any] = OpenAIAgent(name="support", output_type=Refund)


def test_any_output_fits_where_a_function_made_the_agents_own() -> None:
    assert fitting_output(OF_REFUNDS, "made by a tool", {"anything": 1}) == {"anything": 1}
