"""Which agent run the current workflow code belongs to, and how its activities are shown."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.durable_exec.temporal import TemporalRunContext
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.usage import RunUsage

from interlock.adapters._calls import CallScope, current_key, current_ticket, placed
from interlock.adapters.pydantic_ai._json import as_prompt
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Ticket, Usage

Deferral = ApprovalRequired | CallDeferred


@dataclass(kw_only=True)
class Scope(CallScope):
    """The agent run that the current workflow code belongs to.

    spent: the usage counters of all agents of the workflow.
    asked: calls whose arguments validator asked for approval or deferred, by call id.
    edits: what reviewers changed, by call id, for the model to be told.
    tickets: of calls that a hook asked for, by call id, until they run.
    requests: counts the agent's model requests.
    judged: whether the agent has handlers that are asked before a person. hooked: whether hooks of it take the errors
    of its tools.
    task: of an agent inside of another one's, a digest of what it was asked: where agents run side by side, one must
    not take over what another one's model said.
    """

    judged: bool
    hooked: bool
    spent: list[RunUsage]
    asked: dict[str, Deferral] = field(default_factory=dict)
    edits: dict[str, str] = field(default_factory=dict)
    tickets: dict[str, Ticket] = field(default_factory=dict)
    requests: Iterator[int] = field(default_factory=lambda: count(1))
    task: str = ""

    def count(self) -> None:
        """Tell the gate what all agents of the workflow have used so far."""
        self.gate.count(usage_of(self.spent))


current_scope: ContextVar[Scope | None] = ContextVar("interlock_scope", default=None)


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
        if scope and (account := scope.gate.account):
            carried["interlock_account"] = account.model_dump(mode="json")
        return carried


def idempotency_key(ctx: RunContext[Any]) -> str:
    """A key for one tool call, to hand to whatever the tool calls: the same in every attempt of the call.

    It stays the same over attempts, replays, resets and restarts of workers and servers; another call, also one with
    equal arguments, has another. 32 hex digits in a run; outside of one, the framework's own ids of run and call.
    """
    key = ctx.__dict__.get("interlock_key") or current_key.get()
    return str(key) if key else f"{ctx.run_id}:{ctx.tool_call_id}"


@contextmanager
def entered(agent: str, ctx: RunContext[Any]) -> Iterator[None]:
    """Mark what runs inside as the run of an agent: the root of the workflow, or one that a tool in it runs."""
    scope = current_scope.get()
    if scope is None:
        yield
        return
    is_root = scope.path[-1] == agent and not (scope.by_answer and scope.inside)
    here = scope if is_root else _inside(scope, agent, ctx)
    if not any(counter is ctx.usage for counter in scope.spent):
        scope.spent.append(ctx.usage)
    token, before = current_scope.set(here), scope.inside
    scope.inside = True
    try:
        with placed(here.at) if scope.by_answer else nullcontext():
            yield
    finally:
        scope.inside = before
        current_scope.reset(token)


def run_usage(used: Usage) -> RunUsage:
    """A counter of the framework's that has counted this. Its cost stays unknown where that of a call is."""
    counts = used.model_dump(exclude={"cost_usd", "unpriced"})
    return RunUsage(**counts, cost=used.cost_usd if used.cost_usd and not used.unpriced else None)


def _inside(scope: Scope, agent: str, ctx: RunContext[Any]) -> Scope:
    task = digest([agent, as_prompt(ctx.prompt or "")]) if scope.by_answer else ""
    return scope.inner(agent, asked={}, edits={}, tickets={}, requests=count(1), task=task)


@contextmanager
def at_call(call_id: str) -> Iterator[None]:
    """Say that what is done inside belongs to a call that the model made."""
    scope = current_scope.get()
    with placed(scope.place_of(call_id)) if scope and scope.by_answer else nullcontext():
        yield


def usage_of(counters: list[RunUsage]) -> Usage:
    """The sum of the framework's counters, without the cost: the framework prices calls again on every replay."""
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
