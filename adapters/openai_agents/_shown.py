"""What a person is shown of agents before anything runs."""

from collections.abc import Iterator
from typing import Any

from agents import Agent, FunctionTool, HostedMCPTool, Model, RunConfig, Tool

from interlock.adapters.openai_agents._hosted import label_of


def tool_names(agent: Agent[Any]) -> list[str]:
    """The agent's tools; of a server's, which only it can list, where they come from."""
    return [*(_shown(tool) for tool in agent.tools), *(f"(of {server.name})" for server in agent.mcp_servers)]


def unmade_model(agent: Agent[Any], config: RunConfig) -> Iterator[tuple[str, Exception]]:
    """The agent's model, given by its name, if it cannot be made here, and why. config: of the app's runs."""
    if isinstance(model := config.model or agent.model, Model):
        return
    try:
        config.model_provider.get_model(model)
    except Exception as error:  # What a provider's package raises while it is made may be anything.
        yield model or "default", error


def _shown(tool: Tool) -> str:
    if not isinstance(tool, FunctionTool):
        return f"(of {label_of(tool)})" if isinstance(tool, HostedMCPTool) else tool.name
    if tool.needs_approval is True:
        return f"{tool.qualified_name} (waits for approval)"
    return f"{tool.qualified_name} (may wait for approval)" if tool.needs_approval else tool.qualified_name
