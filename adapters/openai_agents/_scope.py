"""Which agent run the current workflow code belongs to, and what its activities are told."""

import asyncio
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agents import Agent, ModelResponse, TResponseInputItem, Usage
from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_output_item import McpApprovalRequest
from openai.types.responses.response_usage import InputTokensDetails
from temporalio.exceptions import ApplicationError

from interlock.adapters._calls import CallScope, all_settled, current_key, current_ticket
from interlock.adapters.openai_agents._context import Context
from interlock.contracts.payloads import Json
from interlock.contracts.payloads import Usage as Used


@dataclass(frozen=True)
class Asked:
    """The last request to the model of a run's own agents: from here the run can go on.

    agent: by name. previous_response_id: of the answer that the input goes on from, where the provider keeps it.
    used_tools: see `Scope`.
    """

    agent: str
    input: str | list[TResponseInputItem]
    previous_response_id: str | None
    used_tools: frozenset[str]


@dataclass
class Answered:
    """The last answer of a run's models, and what has become of its calls, by call id.

    made: those that returned. told: what the model is to read of them, once their guardrails and hooks have seen it.
    """

    response: ModelResponse
    made: set[str] = field(default_factory=set)
    told: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Scope(CallScope):
    """The run of one agent, and of those it hands over to: the root of the workflow, or an agent that is a tool.

    context: of the whole run. agents: of the graph, by name. durable: the copies of them that run here.
    model: the run's own model, in place of the agents'.
    asked, answered: see `Asked` and `Answered`. turns: requests to the models of this run so far.
    above: the run of the agent that this one is a tool of. at_work: the calls of the whole workflow, by their places.
    used_tools: agents that have called tools: a choice of a tool that is to be made once has been made.
    made: the calls that returned, of the whole workflow. made_before: how many did in the run's executions before it.
    fatal: what ends the run, whatever a tool's error function makes of it.
    """

    context: Context
    agents: Mapping[str, Agent[Any]]
    durable: dict[str, Agent[Any]] = field(default_factory=dict)
    model: str | None = None
    asked: Asked | None = None
    answered: Answered | None = None
    above: "Scope | None" = None
    at_work: dict[str, "asyncio.Task[Any]"] = field(default_factory=dict)
    turns: int = 0
    used_tools: set[str] = field(default_factory=set)
    made: list[str] = field(default_factory=list)
    fatal: list[ApplicationError] = field(default_factory=list)
    made_before: int = 0

    @property
    def tool_calls(self) -> int:
        """How many calls of the run have returned."""
        return self.made_before + len(self.made)

    @property
    def is_ending(self) -> bool:
        """Whether a failure ends this agent's run that nobody can retry."""
        return bool(self.fatal or self.final) or (self.above is not None and self.above.is_ending)

    def is_in_vain(self) -> bool:
        """Whether an agent that was given up may end before it has settled: somebody whom it asks need not come."""
        return self.is_ending or not self.recovery.keeps

    async def settle(self, under: str = "") -> None:
        """Wait for the calls that the SDK has given up and that are at work still. under: the place of a call, when
        only what an agent does in it counts."""
        await all_settled([call for at, call in self.at_work.items() if at.startswith(under)])

    def path_to(self, agent: str) -> tuple[str, ...]:
        """The agents from the root of the workflow to one of this run's."""
        return self.path if self.path[-1] == agent else (*self.path, agent)

    def numbered(self, response: ModelResponse, before: str | list[TResponseInputItem]) -> ModelResponse:
        """The answer with a call id of its own for every call, so that no two can trade results or rulings.

        Each call gets its place among the run's calls here, in the model's order: whatever guardrails and hooks do
        before a call begins, and however long they take, its place and its key stay the same.
        """
        seen = {item.get("call_id") for item in before} if isinstance(before, list) else set()
        output: list[Any] = []
        asked: list[str] = []
        for number, item in enumerate(response.output, start=1):
            if isinstance(item, McpApprovalRequest):
                asked.append(item.id)
            if isinstance(item, ResponseFunctionToolCall):
                base = call_id = item.call_id or f"call-{number}"
                copies = 1
                while call_id in seen:
                    copies += 1
                    call_id = f"{base}-{copies}"
                seen.add(call_id)
                asked.append(call_id)
                item = item.model_copy(update={"call_id": call_id})
            output.append(item)
        self.number(asked)
        numbered = dataclasses.replace(response, output=output)
        self.answered = Answered(numbered)
        return numbered

    def told(self, path: Sequence[str], call_id: str = "") -> dict[str, Json]:
        """What an activity is told of the run it belongs to; the journal reads it too."""
        told: dict[str, Json] = {"interlock_path": list(path)}
        if call_id:
            told["tool_call_id"] = call_id
        if ticket := current_ticket.get():
            told["interlock_ticket"] = ticket.model_dump(mode="json")
        if key := current_key.get():
            told["interlock_key"] = key
        if account := self.gate.account:
            told["interlock_account"] = account.model_dump(mode="json")
        return told


current_scope: ContextVar[Scope | None] = ContextVar("interlock_openai_scope", default=None)


@contextmanager
def entered(scope: Scope) -> Iterator[None]:
    """Mark what runs inside as belonging to the scope."""
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)


@contextmanager
def ending(scope: Scope) -> Iterator[None]:
    """Let what Interlock itself raises inside end the run: the SDK makes an error of its own of it."""
    try:
        yield
    except ApplicationError as error:
        scope.fatal.append(error)
        raise


def inner(scope: Scope, agent: str) -> Scope:
    """The scope of an agent that is a tool of this one's."""
    fresh: dict[str, Any] = {"durable": {}, "asked": None, "answered": None, "turns": 0, "model": None, "final": []}
    return scope.inner(agent, above=scope, used_tools=set(), **fresh)


def usage_of(usage: Usage, tool_calls: int) -> Used:
    """The SDK's count as ours."""
    details = usage.input_tokens_details
    return Used(
        requests=usage.requests,
        tool_calls=tool_calls,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=details.cached_tokens or 0,
        cache_write_tokens=getattr(details, "cache_write_tokens", 0) or 0,
    )


def sdk_usage(used: Used) -> Usage:
    """Our count as the SDK's."""
    return Usage(
        requests=used.requests,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.input_tokens + used.output_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=used.cache_read_tokens, cache_write_tokens=used.cache_write_tokens
        ),
    )
