"""The agents of the soak, in every framework: the same steps, and the same questions to a person."""

from typing import Any

from soak.agents import openai_agents, pydantic_ai
from soak.bodies import Bodies
from soak.script import Adapter


def make_agents(adapter: Adapter, bodies: Bodies) -> list[Any]:
    """The agent `desk`, and the agent `payer` that one of its tools runs where that is to be registered too."""
    if adapter == "openai-agents":
        return list(openai_agents.make_agents(bodies))
    return list(pydantic_ai.make_agents(bodies))
