"""The agents that an app's agents can reach, and what of them cannot be run durably."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    OpenAIConversationsSession,
    RunConfig,
    RunHooks,
    WebSearchTool,
)
from agents.sandbox import SandboxAgent
from agents.tool import ToolSearchTool

from interlock.adapters.openai_agents._hosted import label_of
from interlock.adapters.openai_agents._settings import check_settings
from interlock.contracts.errors import KEPT_ELSEWHERE, MisconfiguredError

HOSTED = (
    CodeInterpreterTool,
    FileSearchTool,
    HostedMCPTool,
    ImageGenerationTool,
    ToolSearchTool,
    WebSearchTool,
)
"""Tools that the provider runs as part of its answer: they are in the model call's step."""


@dataclass(frozen=True)
class Running:
    """What `Runner.run` would be given beside an agent: the configuration and the hooks of all runs of an app."""

    config: RunConfig = field(default_factory=RunConfig)
    hooks: RunHooks[Any] | None = None

    def __post_init__(self) -> None:
        check_settings(self.config.model_settings, "The run configuration")


def graph_of(agents: Mapping[str, Agent[Any]]) -> dict[str, Agent[Any]]:
    """All agents that these reach by handoffs and as tools, by name, themselves included.

    Raises MisconfiguredError for what cannot be run durably, or cannot be told apart by its name.
    """
    found: dict[str, Agent[Any]] = {}
    waiting = list(agents.values())
    while waiting:
        agent = waiting.pop()
        known = found.setdefault(agent.name, agent)
        if known is not agent:
            raise MisconfiguredError(f"Two agents have the name {agent.name!r}. Give each a name of its own.")
        waiting += [other for other in _reached(agent) if found.get(other.name) is not other]
    for agent in found.values():
        _check(agent)
    return found


def function_tools(agent: Agent[Any]) -> dict[str, FunctionTool]:
    """The agent's function tools by the names that the model knows them under."""
    return {tool.qualified_name: tool for tool in agent.tools if isinstance(tool, FunctionTool)}


def agent_of_tool(tool: FunctionTool) -> Agent[Any] | None:
    """The agent that `Agent.as_tool` made the tool of."""
    agent: Agent[Any] | None = tool._agent_instance if tool._is_agent_tool else None
    return agent


def agent_of_handoff(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    """The agent that `handoff()` hands over to; None for a handoff that was made by hand."""
    agent = handoff._agent_ref() if handoff._agent_ref is not None else None
    return agent if isinstance(agent, Agent) else None


def check_options(agent: str, options: Mapping[str, Any]) -> None:
    """Raise MisconfiguredError for options of the run of an agent inside of another one's that no run can have."""
    session = options.get("session")
    if options.get("conversation_id") is not None or isinstance(session, OpenAIConversationsSession):
        raise MisconfiguredError(f"Agent {agent!r} is a tool that takes part in a conversation: {KEPT_ELSEWHERE}")
    if session is not None:
        raise MisconfiguredError(
            f"Agent {agent!r} is a tool with a session of its own, which a replay would read and write again. "
            "Give it no session; a run may have one (`--session`)."
        )
    config = options.get("run_config")
    settings = config.model_settings if isinstance(config, RunConfig) else None
    check_settings(settings, f"The run configuration of agent {agent!r}, which is a tool,")
    if settings is not None and settings.retry is not None and settings.retry.policy is not None:
        raise MisconfiguredError(
            f"Agent {agent!r} is a tool with a retry policy in a run configuration of its own, where no worker finds "
            "it. Put it into the agent's `model_settings`."
        )


def _reached(agent: Agent[Any]) -> Iterator[Agent[Any]]:
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and (inner := agent_of_tool(tool)) is not None:
            yield inner
    for one in agent.handoffs:
        if isinstance(one, Agent):
            yield one
            continue
        target = agent_of_handoff(one)
        if target is None:
            raise MisconfiguredError(
                f"Handoff {one.tool_name!r} of agent {agent.name!r} does not say which agent it hands over to. "
                "Make it with `handoff(agent)`."
            )
        yield target


def _check(agent: Agent[Any]) -> None:
    if isinstance(agent, SandboxAgent):
        raise MisconfiguredError(f"Agent {agent.name!r} is a SandboxAgent: its sandbox would be lost with its worker.")
    check_settings(agent.model_settings, f"Agent {agent.name!r}")
    names: set[str] = set()
    for tool in agent.tools:
        name = tool.qualified_name if isinstance(tool, FunctionTool) else tool.name
        if not isinstance(tool, (FunctionTool, *HOSTED)) or getattr(tool, "_is_codex_tool", False):
            raise MisconfiguredError(
                f"Tool {name!r} of agent {agent.name!r} is a {type(tool).__name__}, which works on the machine of its "
                "worker and cannot go on after that is lost. Make it a function tool, or use a hosted one."
            )
        if isinstance(tool, FunctionTool) and name in names:
            raise MisconfiguredError(f"Agent {agent.name!r} has two tools named {name!r}. Give each a name of its own.")
        names.add(name)
        if isinstance(tool, FunctionTool) and (inner := agent_of_tool(tool)) is not None:
            check_options(inner.name, _options_of(tool))
    handoffs = [Handoff.default_tool_name(one) if isinstance(one, Agent) else one.tool_name for one in agent.handoffs]
    if twice := next((name for name in handoffs if handoffs.count(name) > 1), ""):
        raise MisconfiguredError(
            f"Agent {agent.name!r} has two handoffs named {twice!r}: the callback of one would be called for the "
            "other. Give each a `tool_name_override` of its own."
        )
    servers = [server.name for server in agent.mcp_servers]
    servers += [label_of(tool) for tool in agent.tools if isinstance(tool, HostedMCPTool)]
    if twice := next((name for name in servers if servers.count(name) > 1), ""):
        raise MisconfiguredError(
            f"Agent {agent.name!r} has two MCP servers named {twice!r}: an answer about a call of one would hold for "
            "the other. Give each a name, or a `server_label`, of its own."
        )


def _options_of(tool: FunctionTool) -> Mapping[str, Any]:
    """What `Agent.as_tool` was given for the runs of the agent; it keeps them where nobody can ask for them."""
    run = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    return inspect.getclosurevars(run).nonlocals if inspect.isfunction(run) else {}
