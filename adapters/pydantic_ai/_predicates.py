"""Records what the predicates of `approval_required(...)` say, so that a replay hears the same."""

import asyncio
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
from temporalio import activity, workflow
from temporalio.common import RetryPolicy

from interlock.contracts import names

Predicate = Callable[[RunContext[Any], ToolDefinition, dict[str, Any]], bool]

# What waits to be asked, by a key that no two questions share. A predicate is called with the values it would get
# anywhere else, which cannot all travel: so it runs in this process, as a local activity that fetches it from here.
_questions: dict[str, Callable[[], bool]] = {}


@activity.defn(name=names.ASK_PREDICATE)
async def ask_predicate(key: str) -> bool:
    """Call one predicate. Whatever it raises fails the run, with its type."""
    return bool(_questions[key]())


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
        key = f"{workflow.info().run_id}/{workflow.uuid4()}"
        _questions[key] = lambda: self.predicate(ctx, tool_def, tool_args)
        try:
            verdict: bool = await asyncio.shield(
                workflow.start_local_activity(
                    names.ASK_PREDICATE,
                    key,
                    result_type=bool,
                    start_to_close_timeout=timedelta(seconds=60),
                    retry_policy=RetryPolicy(maximum_attempts=1),
                    summary=f"does {tool_def.name} need an approval?",
                )
            )
            return verdict
        finally:
            del _questions[key]


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
