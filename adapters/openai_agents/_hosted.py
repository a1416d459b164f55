"""Tools that the provider runs: calls that it asks about are held at the gate like any other."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from agents import Agent, HostedMCPTool, MCPToolApprovalFunctionResult, MCPToolApprovalRequest

from interlock.adapters.openai_agents._callbacks import as_json, recorded_approval
from interlock.adapters.openai_agents._marks import limit_of
from interlock.adapters.openai_agents._scope import current_scope, ending
from interlock.contracts.payloads import Json
from interlock.contracts.ports import GatedCall

_NOT_SHOWN = ("headers", "authorization")


def durable_hosted(agent: Agent[Any], tool: HostedMCPTool) -> HostedMCPTool:
    """The tool as it runs in the workflow: what its provider asks about is asked of a person, or of the function that
    the user gave, as a step."""

    async def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        if tool.on_approval_request is not None:
            said: MCPToolApprovalFunctionResult = await recorded_approval(agent, label_of(tool), request)
            return said
        return await _ask(agent, tool, request)

    return dataclasses.replace(tool, on_approval_request=decide)


def label_of(tool: HostedMCPTool) -> str:
    """The name of the provider's server."""
    return str(tool.tool_config.get("server_label", ""))


def hosted_connection(agent: Agent[Any], label: str) -> Json:
    """What says which server it is, without its secrets."""
    for tool in agent.tools:
        if isinstance(tool, HostedMCPTool) and label_of(tool) == label:
            return as_json({key: value for key, value in tool.tool_config.items() if key not in _NOT_SHOWN})
    return None


async def _ask(
    agent: Agent[Any], tool: HostedMCPTool, request: MCPToolApprovalRequest
) -> MCPToolApprovalFunctionResult:
    scope = current_scope.get()
    assert scope, "A durable tool is only used inside a run."
    data = request.data
    try:
        arguments = json.loads(data.arguments or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return {"approve": False, "reason": "The arguments are not a JSON object."}

    def check(edited: Mapping[str, Json]) -> dict[str, Json]:
        if dict(edited) != arguments:
            raise ValueError("its provider runs this call, with the arguments it asked about; approve or reject it")
        return dict(edited)

    with ending(scope), scope.calling(data.id):
        ruling = await scope.gate.ask(
            GatedCall(
                kind="approval",
                agent_path=scope.path_to(agent.name),
                toolset=data.server_label,
                tool=data.name,
                description=f"A tool of {data.server_label}, which the model's provider calls.",
                call_id=data.id,
                arguments=arguments,
                metadata=None,
                check=check,
                time_limit=limit_of(tool),
            )
        )
    if ruling.outcome in ("rejected", "timed_out"):
        return {"approve": False, "reason": ruling.reason}
    return {"approve": True}
