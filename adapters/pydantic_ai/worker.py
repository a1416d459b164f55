"""The worker's half: what pydantic-ai agents need around the workflow, and the check before an approved call runs."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Union, cast

import anyio
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, ToolOutput
from pydantic_ai.capabilities.abstract import AbstractCapability, leaf_capabilities
from pydantic_ai.durable_exec.temporal import PydanticAIPayloadConverter
from pydantic_ai.durable_exec.temporal._durability import worker_registrations
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from interlock.activities.own_time import waiting_for_others
from interlock.adapters.pydantic_ai._delegation import current_worker
from interlock.adapters.pydantic_ai._durable import OPEN_END, Durable
from interlock.adapters.pydantic_ai._gated import JudgeCall
from interlock.adapters.pydantic_ai._json import MESSAGES, PROMPT
from interlock.adapters.pydantic_ai._scope import usage_of
from interlock.adapters.pydantic_ai.workflow import Runner
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import MisconfiguredError, RunFailedError
from interlock.contracts.payloads import JudgeVerdict, Parent, RunInput, RunOutput, Ticket
from interlock.contracts.ports import AgentRunner, SubRuns


class SubRunFailedError(UnexpectedModelBehavior):
    """An agent that a tool ran as a run of its own ended without an output. Not retried."""


class PydanticAIAdapter:
    """Everything a worker needs to run these agents. The agents are checked, by name, when it is made."""

    payload_converter = PydanticAIPayloadConverter

    def __init__(self, agents: Mapping[str, Agent[Any, Any]], sub_runs: SubRuns | None = None) -> None:
        self._agents = agents
        self._sub_runs = sub_runs
        self._durables = {name: _durable(name, agent) for name, agent in agents.items()}
        self._judged = {name: _has_judges(agent) for name, agent in agents.items()}
        self.runners: dict[str, AgentRunner] = {}
        self.activities: list[Callable[..., Any]] = []
        self.child_workflows: list[type] = []
        for name, agent in agents.items():
            _check_deps(name, agent)
            self.runners[name] = Runner(agent, judged=self._judged[name])
            activities, workflows = worker_registrations(self._durables[name])
            self.activities += activities
            self.child_workflows += workflows
            if self._judged[name]:
                self.activities.append(_judge_activity(name, self._durables[name], agent))

    @property
    def interceptor(self) -> Interceptor:
        """The interceptor of the worker's activities."""
        return _WorkerInterceptor(self)

    def fingerprint(self, agent: str, toolset: str, tool: str) -> str:
        """See `ToolCatalog`."""
        if agent not in self._agents:
            raise MisconfiguredError(f"This worker has no agent {agent!r}; it has: {', '.join(sorted(self._agents))}.")
        return digest([toolset, tool, _definition(self._durables[agent], toolset, tool)])

    async def delegate(self, agent: str, ctx: RunContext[Any]) -> AgentRunResult[Any]:
        """See `Delegating`. The id of the new run comes from the activity, so that a later attempt attaches to it."""
        if agent not in self._agents:
            raise UserError(
                f"Agent {agent!r} is run by a tool but is not one of this worker's agents "
                f"({', '.join(sorted(self._agents))}). Add it to Interlock(agents=[...])."
            )
        info = activity.info()
        assert self._sub_runs
        assert info.workflow_id
        assert info.workflow_run_id
        place = f"{info.workflow_run_id.split('-')[0]}-{info.activity_id}-{next(_sub_runs.get())}"
        parent = Parent(workflow_id=info.workflow_id, run_id=info.workflow_run_id, agent_path=_path.get())
        workflow_id = f"{info.workflow_id}/{agent}-{place}"
        with waiting_for_others():
            try:
                output = await self._sub_runs.run(workflow_id, _sub_run_input(agent, ctx, self._agents[agent], parent))
            except RunFailedError as error:
                raise SubRunFailedError(
                    f"Agent {agent!r} failed ({error.error_type or error.status}): {error}"
                ) from error
            except asyncio.CancelledError:
                # A stopping worker cancels its activities too; then the run goes on and the next attempt finds it.
                details = activity.cancellation_details()
                if details and details.cancel_requested:
                    with anyio.CancelScope(shield=True):
                        await self._sub_runs.cancel(workflow_id)
                raise
        result = _result(self._agents[agent], output)
        ctx.usage.incr(result.usage)
        return result

    def check_ticket(self, ticket: Ticket, arguments: Mapping[str, Any]) -> None:
        """Raise when what would run now is not what was approved."""
        if digest(from_json(to_json(arguments))) != ticket.arguments_digest:
            raise _changed(ticket, "the arguments")
        if self.fingerprint(ticket.agent, ticket.toolset, ticket.tool) != ticket.fingerprint:
            raise _changed(ticket, "the tool")


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
            self._adapter.check_ticket(Ticket.model_validate(ticket), input.args[0].tool_args)
        current_worker.set(self._adapter)
        _sub_runs.set(itertools.count(1))
        _path.set(tuple(carried.get("interlock_path", ())))
        return await super().execute_activity(input)


_sub_runs: ContextVar[Iterator[int]] = ContextVar("interlock_sub_runs")
_path: ContextVar[tuple[str, ...]] = ContextVar("interlock_path")


def _changed(ticket: Ticket, what: str) -> ApplicationError:
    return ApplicationError(
        f"Since request {ticket.request_id!r} was approved {what} of {ticket.tool!r} changed; it is asked for again.",
        type=names.TOOL_CHANGED,
        non_retryable=True,
    )


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
            f"The dependency type {agent.deps_type.__name__} of agent {name!r} cannot travel to an activity. "
            "Make it a pydantic model or a dataclass of plain data; make clients inside the tools."
        ) from error


def _has_judges(agent: Agent[Any, Any]) -> bool:
    default = AbstractCapability.handle_deferred_tool_calls
    return any(type(one).handle_deferred_tool_calls is not default for one in leaf_capabilities(agent.root_capability))


def _judge_activity(name: str, durable: Durable, agent: Agent[Any, Any]) -> Callable[..., Any]:
    async def judge_call(params: JudgeCall, deps: Any = None) -> JudgeVerdict:
        """Ask the agent's handlers of deferred calls about one call. Any error means: ask a person."""
        ctx = durable.deserialize_operation_run_context(params.serialized_run_context, deps)
        part = ToolCallPart(params.tool, params.arguments, tool_call_id=params.call_id)
        requests = DeferredToolRequests(
            approvals=[part] if params.kind == "approval" else [],
            calls=[part] if params.kind == "tool_result" else [],
            metadata={params.call_id: params.metadata} if params.metadata else {},
        )
        before = usage_of([ctx.usage])
        results = await agent.root_capability.handle_deferred_tool_calls(ctx, requests=requests)
        verdict = _verdict(params, results)
        spent = {
            field: value - getattr(before, field) for field, value in usage_of([ctx.usage]) if field != "tool_calls"
        }
        return verdict.model_copy(update={"usage": type(before)(**spent)})

    judge_call.__annotations__ = {"params": JudgeCall, "deps": agent.deps_type | None, "return": JudgeVerdict}
    return activity.defn(name=names.judge_activity(name))(judge_call)


def _verdict(asked: JudgeCall, results: DeferredToolResults | None) -> JudgeVerdict:
    if results is None:
        return JudgeVerdict()
    approval = results.approvals.get(asked.call_id) if asked.kind == "approval" else None
    if approval is True or isinstance(approval, ToolApproved):
        edited = approval.override_args if isinstance(approval, ToolApproved) else None
        return JudgeVerdict(verdict="approve", arguments=edited)
    if approval is False or isinstance(approval, ToolDenied):
        return JudgeVerdict(verdict="reject", reason=approval.message if isinstance(approval, ToolDenied) else "")
    if asked.kind == "tool_result" and asked.call_id in results.calls:
        result = results.calls[asked.call_id]
        if isinstance(result, Exception):
            return JudgeVerdict(verdict="fail", reason=str(result))
        return JudgeVerdict(verdict="complete", result=from_json(to_json(result)))
    return JudgeVerdict()


def _definition(durable: Durable, toolset: str, tool: str) -> Any:
    """What this worker's code says of a tool: its schema, or for a server's tools how the server is reached."""
    wrapper = durable._toolsets_by_id.get(toolset)
    source: AbstractToolset[Any] | None = wrapper.wrapped if wrapper is not None else None
    if isinstance(source, FunctionToolset):
        # A wrapper around the toolset may have prefixed or renamed the tool; then the whole toolset counts.
        held = [source.tools[tool]] if tool in source.tools else list(source.tools.values())
        return [[one.name, one.description, one.function_schema.json_schema] for one in held]
    client = getattr(source, "client", None)
    return repr(getattr(client, "transport", type(source).__name__))


def _sub_run_input(agent: str, ctx: RunContext[Any], of: Agent[Any, Any], parent: Parent) -> RunInput:
    if not ctx.prompt:
        raise UserError(f"Agent {agent!r} was run by a tool without a prompt; a run of its own needs one.")
    return RunInput(
        agent=agent,
        prompt=ctx.prompt if isinstance(ctx.prompt, str) else PROMPT.dump_python(list(ctx.prompt), mode="json"),
        deps=from_json(to_json(ctx.deps)),
        message_history=MESSAGES.dump_python(ctx.messages, mode="json") if ctx.messages else None,
        model=ctx.model_id if ctx.model is not of.model else None,
        model_settings=cast("dict[str, Any] | None", ctx.model_settings),
        usage_limits=from_json(to_json(ctx.usage_limits)) if ctx.usage_limits else None,
        parent=parent,
    )


def _result(agent: Agent[Any, Any], output: RunOutput) -> AgentRunResult[Any]:
    value = TypeAdapter(_output_types(agent.output_type)).validate_python(output.output)
    used = RunUsage(**output.usage.model_dump())
    result: AgentRunResult[Any] = TypeAdapter(AgentRunResult[Any]).validate_python(
        {"output": None, "messages": output.messages or [], "usage": used}
    )
    result.output = value
    return result


def _output_types(spec: Any) -> Any:
    """The type of an agent's output, whatever markers its output types wear."""
    if isinstance(spec, ToolOutput):
        return spec.output
    if isinstance(spec, NativeOutput | PromptedOutput):
        return _output_types(spec.outputs)
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return Union[tuple(_output_types(one) for one in spec)]  # noqa: UP007 - the members are only known here
    if callable(spec) and not isinstance(spec, type):
        return Any
    return spec


__all__ = ["OPEN_END", "PydanticAIAdapter", "SubRunFailedError"]
