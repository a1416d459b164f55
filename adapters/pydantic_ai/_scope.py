"""Which agent run the current workflow code belongs to, and how its activities are shown."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from pydantic_ai import RunContext
from pydantic_ai.durable_exec.temporal import TemporalRunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.usage import RunUsage
from temporalio import workflow
from temporalio.common import RetryPolicy

from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Fork, Ticket, Usage
from interlock.contracts.ports import ActivityPlan, Gate, Recovery, activity_plan, place
from interlock.retries import Retries

T = TypeVar("T")
Deferral = ApprovalRequired | CallDeferred


@dataclass
class Scope:
    """The agent run that the current workflow code belongs to.

    path: the agents from the root of this workflow to here. spent: the usage counters of all agents of the workflow.
    asked: calls whose arguments validator asked for approval or deferred, by call id.
    edits: what reviewers changed, by call id, for the model to be told.
    tickets: of calls that a hook asked for, by call id, until they run.
    calls: counts the tool calls of the workflow, in their order. requests: counts the agent's model requests.
    hooked: whether hooks of the agent take the errors of its tools.
    fork: what the run takes over from another one.
    key_root: what idempotency keys are made of; empty for the run's first execution.
    is_long: whether the execution is to end before the next request to the model, and another one to go on.
    over: failures that were kept for somebody to retry: as the end of the run they are final.
    """

    gate: Gate
    recovery: Recovery
    retries: Retries
    path: tuple[str, ...]
    judged: bool
    hooked: bool
    fork: Fork | None
    key_root: str
    is_long: Callable[[], bool]
    spent: list[RunUsage]
    asked: dict[str, Deferral] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)
    over: list[Exception] = field(default_factory=list)
    calls: Iterator[int] = field(default_factory=lambda: count(1))
    requests: Iterator[int] = field(default_factory=lambda: count(1))

    def next_call(self) -> tuple[str, str]:
        """The place of the next tool call among those of the workflow, and an idempotency key for it.

        The key is made of the first execution of the workflow and the place, so that attempts, replays and resets of
        the run make the same one, and a run that is started over makes others. A fork makes the keys of the run it was
        forked from as long as it does the same.
        """
        number, root = next(self.calls), self.key_root or workflow.info().first_execution_run_id
        return f"tool:{number}", digest([root, number])[:32]

    def count(self) -> None:
        """Tell the gate what all agents of the workflow have used so far."""
        self.gate.count(usage_of(self.spent))


current_scope: ContextVar[Scope | None] = ContextVar("interlock_scope", default=None)
current_ticket: ContextVar[Ticket | None] = ContextVar("interlock_ticket", default=None)
current_key: ContextVar[str] = ContextVar("interlock_key", default="")


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
        if key := current_key.get():
            carried["interlock_key"] = key
        return carried


def idempotency_key(ctx: RunContext[Any]) -> str:
    """A key for one tool call, to hand to whatever the tool calls: the same in every attempt of the call.

    It stays the same over attempts, replays, resets and restarts of workers and servers; another call, also one with
    equal arguments, has another. 32 hex digits in a run; outside of one, the framework's own ids of run and call.
    """
    key = ctx.__dict__.get("interlock_key") or current_key.get()
    return str(key) if key else f"{ctx.run_id}:{ctx.tool_call_id}"


class HistoryIsLongError(BaseException):
    """Takes the agent out of its loop between two requests to its model. No hook of an agent has a say in it."""


def never() -> bool:
    """No."""
    return False


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
        else dataclasses.replace(
            scope, path=(*scope.path, agent), asked={}, edits={}, tickets={}, requests=count(1), is_long=never
        )
    )
    if not any(counter is ctx.usage for counter in scope.spent):
        scope.spent.append(ctx.usage)
    token = current_scope.set(inner)
    try:
        yield
    finally:
        current_scope.reset(token)


@contextmanager
def planned(
    summary: str, ticket: Ticket | None = None, retries: RetryPolicy | None = None, call: str = ""
) -> Iterator[None]:
    """Give the activities started inside their summary, the ticket of an approved call, their retries, and a digest of
    the call."""
    plan, held = activity_plan.set(ActivityPlan(summary, retries, call)), current_ticket.set(ticket)
    try:
        yield
    finally:
        current_ticket.reset(held)
        activity_plan.reset(plan)


@contextmanager
def called(at: str, key: str) -> Iterator[None]:
    """Give the tool that is called inside its place among the run's calls, and its idempotency key."""
    token, before = current_key.set(key), place.set(at)
    try:
        yield
    finally:
        place.reset(before)
        current_key.reset(token)


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
