"""The worker's half: what pydantic-ai agents need around the workflow, and the check before an approved call runs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_ai import Agent, RunContext
from pydantic_ai.durable_exec.temporal import PydanticAIPayloadConverter
from pydantic_ai.durable_exec.temporal._durability import worker_registrations
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.run import AgentRunResult
from pydantic_ai.toolsets import (
    AbstractToolset,
    CombinedToolset,
    ExternalToolset,
    FunctionToolset,
    SetMetadataToolset,
    WrapperToolset,
)
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from interlock.adapters._delegation import Delegation, begin
from interlock.adapters._worker import AttemptInterceptor, bound_to, check_ticket
from interlock.adapters.pydantic_ai._delegation import current_worker
from interlock.adapters.pydantic_ai._durable import Durable, is_own
from interlock.adapters.pydantic_ai._gated import GATED_CHILD, is_child_workflow, limit_of
from interlock.adapters.pydantic_ai._json import type_name
from interlock.adapters.pydantic_ai._judges import has_error_hooks, has_judges, judge_activity
from interlock.adapters.pydantic_ai._model_calls import priced
from interlock.adapters.pydantic_ai._shown import tool_names, unmade_model
from interlock.adapters.pydantic_ai._sub_runs import sub_run_input, sub_run_result
from interlock.adapters.pydantic_ai.workflow import Runner
from interlock.contracts.canonical import digest
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import Ticket
from interlock.contracts.ports import AgentRunner, Prices, SubRuns
from interlock.retries import Retries


class SubRunFailedError(UnexpectedModelBehavior):
    """An agent that a tool ran as a run of its own ended without an output. Not retried."""


class PydanticAIAdapter:
    """Everything a worker needs to run these agents. The agents are checked, by name, when it is made."""

    payload_converter = PydanticAIPayloadConverter

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        retries: Retries,
        sub_runs: SubRuns | None = None,
        prices: Prices | None = None,
    ) -> None:
        self._agents = agents
        self.prices = prices
        self._delegation = Delegation(sub_runs, SubRunFailedError)
        self._durables = {name: _durable(name, agent) for name, agent in agents.items()}
        self._judged = {name: has_judges(agent) for name, agent in agents.items()}
        self.runners: dict[str, AgentRunner] = {}
        self.activities: list[Callable[..., Any]] = []
        self.child_workflows: list[type] = []
        _check_retries(agents, retries)
        for name, agent in agents.items():
            _check_deps(name, agent)
            _check_tools(name, agent)
            _check_children(agent)
            self.runners[name] = Runner(agent, retries, judged=self._judged[name], hooked=has_error_hooks(agent))
            activities, workflows = worker_registrations(self._durables[name])
            self.activities += activities
            self.child_workflows += workflows
            if self._judged[name]:
                self.activities.append(judge_activity(name, self._durables[name], agent))

    @property
    def interceptors(self) -> list[Interceptor]:
        """See `Adapter`."""
        return [AttemptInterceptor(), _WorkerInterceptor(self)]

    def tools(self) -> Mapping[str, Sequence[str]]:
        """See `Adapter`."""
        return {name: tool_names(agent) for name, agent in self._agents.items()}

    def unmade_models(self) -> Iterator[tuple[str, str, Exception]]:
        """See `Adapter`."""
        for name, agent in self._agents.items():
            yield from ((name, *found) for found in unmade_model(agent))

    async def close(self) -> None:
        """See `Adapter`. Its toolsets are entered for each call."""

    def fingerprint(self, agent: str, toolset: str, tool: str) -> str:
        """See `ToolCatalog`."""
        if agent not in self._agents:
            raise MisconfiguredError(f"This worker has no agent {agent!r}; it has: {', '.join(sorted(self._agents))}.")
        return digest([toolset, tool, _definition(self._durables[agent], toolset, tool)])

    async def delegate(self, agent: str, ctx: RunContext[Any]) -> AgentRunResult[Any]:
        """See `Delegating`."""
        if agent not in self._agents:
            raise UserError(
                f"Agent {agent!r} is run by a tool but is not one of this worker's agents "
                f"({', '.join(sorted(self._agents))}). Add it to Interlock(agents=[...])."
            )
        output = await self._delegation.run(agent, partial(sub_run_input, agent, ctx, self._agents[agent]))
        result = sub_run_result(self._agents[agent], output)
        ctx.usage.incr(result.usage)
        return result


class _WorkerInterceptor(Interceptor):
    def __init__(self, adapter: PydanticAIAdapter) -> None:
        self._adapter = adapter

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Inbound(next, self._adapter)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, adapter: PydanticAIAdapter) -> None:
        super().__init__(next)
        self._adapter = adapter

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        carried = getattr(input.args[0], "serialized_run_context", None) if input.args else None
        if not isinstance(carried, dict):
            return await super().execute_activity(input)
        if ticket := carried.get("interlock_ticket"):
            check_ticket(self._adapter, Ticket.model_validate(ticket), input.args[0].tool_args)
        current_worker.set(self._adapter)
        begin(carried)
        return priced(await super().execute_activity(input), self._adapter.prices)


def _durable(name: str, agent: Agent[Any, Any]) -> Durable:
    durable = Durable.from_agent(agent)
    if durable is None:
        raise MisconfiguredError(
            f"Agent {name!r} has no `Durable()`: its calls would not be recorded. Add "
            "`capabilities=[Durable()]` from interlock.adapters.pydantic_ai where the agent is made."
        )
    return durable


def _check_deps(name: str, agent: Agent[Any, Any]) -> None:
    try:
        TypeAdapter(agent.deps_type)
    except PydanticUserError as error:
        raise MisconfiguredError(
            f"The dependency type {type_name(agent.deps_type)} of agent {name!r} cannot travel to an activity. "
            "Make it a pydantic model or a dataclass of plain data; make clients inside the tools."
        ) from error


def _check_tools(name: str, agent: Agent[Any, Any]) -> None:
    """Refuse a tool whose words no model can be sent, or whose time limit is none: they would end each run that gets
    there."""
    for whose, metadata in _metadata(agent):
        try:
            limit_of(whose, metadata)
        except UserError as error:
            raise MisconfiguredError(f"Agent {name!r}: {error}") from None
    for tool in (tool for leaf in _leaves(agent) if isinstance(leaf, FunctionToolset) for tool in leaf.tools.values()):
        told = json.dumps([tool.name, tool.description, tool.function_schema.json_schema], ensure_ascii=False)
        try:
            told.encode()
        except UnicodeEncodeError as error:
            raise MisconfiguredError(
                f"Tool {tool.name!r} of agent {name!r} has {told[error.start]!r} in its name, its docstring or its "
                "parameters. That is half of a character and no text: write the whole one."
            ) from error


def _check_children(agent: Agent[Any, Any]) -> None:
    for leaf in _leaves(agent):
        for tool in leaf.tools.values() if isinstance(leaf, FunctionToolset) else ():
            if tool.requires_approval and is_child_workflow(tool.metadata):
                raise MisconfiguredError(GATED_CHILD.format(tool=tool.name))


def _leaves(agent: Agent[Any, Any]) -> list[AbstractToolset[Any]]:
    leaves: list[AbstractToolset[Any]] = []
    for toolset in agent.toolsets:
        toolset.apply(leaves.append)
    return leaves


def _metadata(agent: Agent[Any, Any]) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """What tools, and toolsets for all of theirs, say beyond what models are told."""
    waiting = list(agent.toolsets)
    while waiting:
        toolset = waiting.pop()
        if isinstance(toolset, SetMetadataToolset):
            yield f"every one of {toolset.wrapped.label}", toolset.metadata
        elif isinstance(toolset, FunctionToolset):
            yield from ((tool.name, tool.metadata) for tool in toolset.tools.values())
        elif isinstance(toolset, ExternalToolset):
            yield from ((tool.name, tool.metadata) for tool in toolset.tool_defs)
        if isinstance(toolset, WrapperToolset):
            waiting.append(toolset.wrapped)
        elif isinstance(toolset, CombinedToolset):
            waiting += toolset.toolsets


def _check_retries(agents: Mapping[str, Agent[Any, Any]], retries: Retries) -> None:
    """Refuse a policy for a tool that there is not, unless some tools are only known once a server is asked."""
    leaves = [leaf for agent in agents.values() for leaf in _leaves(agent)]
    known = {name for leaf in leaves if isinstance(leaf, FunctionToolset) for name in leaf.tools}
    if (unknown := sorted(set(retries.tools) - known)) and all(isinstance(leaf, FunctionToolset) for leaf in leaves):
        raise MisconfiguredError(
            f"Retries(tools=...) names {', '.join(unknown)}; there are: {', '.join(sorted(known)) or 'no tools'}."
        )


def _definition(durable: Durable, toolset: str, tool: str) -> Any:
    """What this worker's code says of a tool: its schema, or for a server's tools how the server is reached."""
    if not toolset:
        # A wrapper has taken the tool's toolset for itself; then all that the agent has count, by their ids too.
        return [[one, _definition(durable, one, tool)] for one in sorted(durable._toolsets_by_id)]
    wrapper = durable._toolsets_by_id.get(toolset)
    source: AbstractToolset[Any] | None = wrapper.wrapped if wrapper is not None else None
    if isinstance(source, FunctionToolset):
        # A wrapper around the toolset may have prefixed or renamed the tool; then the whole toolset counts.
        held = [source.tools[tool]] if tool in source.tools else list(source.tools.values())
        return [[one.name, one.description, one.function_schema.json_schema] for one in held]
    if wrapper is not None and is_own(wrapper):
        return [type(source).__name__, *bound_to(source)]
    client = getattr(source, "client", None)
    return repr(getattr(client, "transport", type(source).__name__))


__all__ = ["PydanticAIAdapter", "SubRunFailedError"]
