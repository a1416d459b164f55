"""Records what the predicates of `approval_required(...)` say, so that a replay hears the same."""

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.durable_exec._toolset import DurableToolsetBase
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import (
    AbstractToolset,
    ApprovalRequiredToolset,
    CombinedToolset,
    ToolsetTool,
    WrapperToolset,
)
from temporalio import workflow

from interlock.adapters._calls import planned, shielded
from interlock.contracts import names

Predicate = Callable[[RunContext[Any], ToolDefinition, dict[str, Any]], bool]


@dataclasses.dataclass
class RecordedApprovals(WrapperToolset[Any]):
    """`ApprovalRequiredToolset`, with the predicate's word in the history."""

    predicate: Predicate

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """See `AbstractToolset`."""
        if not ctx.tool_call_approved and await self._asked(ctx, tool.tool_def, tool_args):
            raise ApprovalRequired
        return await super().call_tool(name, tool_args, ctx, tool)

    async def _asked(self, ctx: RunContext[Any], tool_def: ToolDefinition, tool_args: dict[str, Any]) -> bool:
        word = bool(self.predicate(ctx, tool_def, tool_args))
        with planned(f"{tool_def.name} {'needs' if word else 'needs no'} approval"):
            handle = workflow.start_activity(
                names.RECORD_VERDICT, word, result_type=bool, start_to_close_timeout=timedelta(seconds=10)
            )
        # On a replay the predicate may say something else; what counts is what it said the first time.
        return await shielded(handle)


def with_recorded_predicates(toolset: AbstractToolset[Any]) -> AbstractToolset[Any]:
    """The toolset, with each predicate in it recorded."""
    if isinstance(toolset, DurableToolsetBase):
        return toolset
    if type(toolset) is ApprovalRequiredToolset:
        return RecordedApprovals(with_recorded_predicates(toolset.wrapped), toolset.approval_required_func)
    if isinstance(toolset, CombinedToolset):
        inner = [with_recorded_predicates(one) for one in toolset.toolsets]
        unchanged = all(new is old for new, old in zip(inner, toolset.toolsets, strict=True))
        return toolset if unchanged else dataclasses.replace(toolset, toolsets=inner)
    if isinstance(toolset, WrapperToolset):
        wrapped = with_recorded_predicates(toolset.wrapped)
        return toolset if wrapped is toolset.wrapped else dataclasses.replace(toolset, wrapped=wrapped)
    return toolset
