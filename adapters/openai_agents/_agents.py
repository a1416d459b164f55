"""Agents as they run in the workflow: copies whose models, tools and handoffs are steps of the run."""

import copy
import dataclasses
from typing import Any

from agents import Agent, FunctionTool, Handoff, HostedMCPTool, Tool

from interlock.adapters.openai_agents._callbacks import recorded_agent, recorded_enabled, recorded_handoff
from interlock.adapters.openai_agents._graph import agent_of_handoff
from interlock.adapters.openai_agents._hosted import durable_hosted
from interlock.adapters.openai_agents._model import INSTANCE, RecordedModel
from interlock.adapters.openai_agents._scope import Scope
from interlock.adapters.openai_agents._servers import RecordedServer
from interlock.adapters.openai_agents._settings import for_loop
from interlock.adapters.openai_agents._tools import durable_tool


def durable(scope: Scope, agent: Agent[Any]) -> Agent[Any]:
    """The copy of an agent that runs in the scope, with copies of all that it hands over to."""
    if agent.name in scope.durable:
        return scope.durable[agent.name]
    if isinstance(agent.model, RecordedModel):
        return agent
    made = copy.copy(agent)  # Not made anew: a class of the user's may take other arguments.
    scope.durable[agent.name] = made  # Before its handoffs: they may lead back to it.
    made.model = RecordedModel(agent, scope.model or _model_name(agent))
    made.model_settings = for_loop(agent.model_settings)
    made.tools = [_durable_tool(agent, tool) for tool in agent.tools]
    made.handoffs = [_durable_handoff(scope, agent, one) for one in agent.handoffs]
    recorded_agent(agent, made)
    if agent.mcp_servers:
        made.mcp_servers = [RecordedServer(agent, at) for at in range(len(agent.mcp_servers))]

        async def mcp_tools(run_context: Any) -> list[Tool]:
            return [_durable_tool(agent, tool) for tool in await Agent.get_mcp_tools(made, run_context)]

        made.get_mcp_tools = mcp_tools  # type: ignore[method-assign]
    return made


def _model_name(agent: Agent[Any]) -> str | None:
    return agent.model if agent.model is None or isinstance(agent.model, str) else INSTANCE


def _durable_tool(agent: Agent[Any], tool: Tool) -> Tool:
    if isinstance(tool, HostedMCPTool):
        return durable_hosted(agent, tool)
    return durable_tool(agent, tool) if isinstance(tool, FunctionTool) else tool


def _durable_handoff(scope: Scope, agent: Agent[Any], one: Agent[Any] | Handoff[Any, Any]) -> Any:
    if isinstance(one, Agent):
        return durable(scope, one)
    target = agent_of_handoff(one)
    assert target, "A handoff without an agent is refused when the app is made."

    async def on_invoke(ctx: Any, arguments: str) -> Agent[Any]:
        await recorded_handoff(agent, one, ctx, arguments)
        return durable(scope, target)

    return dataclasses.replace(
        one,
        on_invoke_handoff=on_invoke,
        is_enabled=recorded_enabled(agent, f"handoff:{one.tool_name}", one.is_enabled),
    )
