"""Which agent run the current workflow code belongs to, and how its activities are shown."""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic_ai import RunContext
from pydantic_ai.durable_exec.temporal import TemporalRunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.usage import RunUsage

from interlock.contracts.payloads import Ticket, Usage
from interlock.contracts.ports import ActivityPlan, Gate, activity_plan

T = TypeVar("T")
Deferral = ApprovalRequired | CallDeferred


@dataclass
class Scope:
    """The agent run that the current workflow code belongs to.

    path: the agents from the root of this workflow to here. spent: the usage counters of all agents of the workflow.
    asked: calls whose arguments validator asked for approval or deferred, by call id.
    edits: what reviewers changed, by call id, for the model to be told.
    tickets: of calls that a hook asked for, by call id, until they run.
    """

    gate: Gate
    path: tuple[str, ...]
    judged: bool
    spent: list[RunUsage]
    asked: dict[str, Deferral] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)

    def count(self) -> None:
        """Tell the gate what all agents of the workflow have used so far."""
        self.gate.count(usage_of(self.spent))


current_scope: ContextVar[Scope | None] = ContextVar("interlock_scope", default=None)
current_ticket: ContextVar[Ticket | None] = ContextVar("interlock_ticket", default=None)


class InterlockRunContext(TemporalRunContext[Any]):
    """The run context that travels to activities, with where it comes from and the ticket of an approved call."""

    @classmethod
    def serialize_run_context(cls, ctx: RunContext[Any]) -> dict[str, Any]:
        """See `TemporalRunContext`."""
        carried = super().serialize_run_context(ctx)
        if scope := current_scope.get():
            carried["interlock_path"] = scope.path
        if ticket := current_ticket.get():
            carried["interlock_ticket"] = ticket.model_dump(mode="json")
        return carried


@contextmanager
def entered(agent: str, ctx: RunContext[Any]) -> Iterator[None]:
    """Mark what runs inside as the run of an agent: the root of the workflow, or one that a tool in it runs."""
    scope = current_scope.get()
    if scope is None:
        yield
        return
    inner = (
        scope
        if scope.path[-1] == agent
        else dataclasses.replace(scope, path=(*scope.path, agent), asked={}, edits={}, tickets={})
    )
    if not any(counter is ctx.usage for counter in scope.spent):
        scope.spent.append(ctx.usage)
    token = current_scope.set(inner)
    try:
        yield
    finally:
        current_scope.reset(token)


@contextmanager
def planned(summary: str, ticket: Ticket | None = None) -> Iterator[None]:
    """Give the activities started inside their summary, and the ticket that lets an approved call run."""
    plan, held = activity_plan.set(ActivityPlan(summary)), current_ticket.set(ticket)
    try:
        yield
    finally:
        current_ticket.reset(held)
        activity_plan.reset(plan)


async def shielded(handle: "asyncio.Future[T]") -> T:
    """Wait for an activity in a way that a cancelled scope of the framework's can end.

    Such a scope cancels its task again on every turn of the loop, and Temporal's handle would swallow each one and
    never give way. The shield takes the cancellation here, once.
    """
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.cancel()
        raise


def usage_of(counters: list[RunUsage]) -> Usage:
    """The sum of the framework's counters."""
    total = Usage()
    for counter in counters:
        total += Usage(
            requests=counter.requests,
            tool_calls=counter.tool_calls,
            input_tokens=counter.input_tokens,
            output_tokens=counter.output_tokens,
            cache_read_tokens=counter.cache_read_tokens,
            cache_write_tokens=counter.cache_write_tokens,
        )
    return total
