"""What a person is shown of agents before anything runs."""

from collections.abc import Iterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models import infer_model


def tool_names(agent: Agent[Any, Any]) -> list[str]:
    """The agent's tools; of a server's, which only it can list, where they come from."""
    found: list[str] = []
    for toolset in agent.toolsets:
        toolset.apply(lambda leaf: found.extend(_tools(leaf)))
    return found


def unmade_model(agent: Agent[Any, Any]) -> Iterator[tuple[str, Exception]]:
    """The agent's model, given by its name, if it cannot be made here, and why."""
    if not isinstance(model := agent.model, str):
        return
    try:
        infer_model(model)
    except Exception as error:  # What a provider's package raises while it is made may be anything.
        yield model, error


def _tools(toolset: Any) -> list[str]:
    tools = getattr(toolset, "tools", None)
    if not isinstance(tools, dict):
        return [f"(of {toolset.label})"]
    return [f"{name} (waits for approval)" if tool.requires_approval else name for name, tool in tools.items()]
