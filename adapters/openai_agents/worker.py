"""The worker's half: the models and the tools behind the steps, and the check before an approved call runs."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelBehaviorError,
    ModelProvider,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Usage,
)
from agents.retry import ModelRetrySettings
from agents.tool import invoke_function_tool, maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext
from mcp.types import Tool as MCPTool
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import Interceptor

from interlock.adapters._calls import current_key
from interlock.adapters._delegation import Delegation
from interlock.adapters._worker import AttemptInterceptor, check_ticket
from interlock.adapters.openai_agents._bound import toolsets_in
from interlock.adapters.openai_agents._callbacks import Callback, CallbackResult
from interlock.adapters.openai_agents._called import Callbacks
from interlock.adapters.openai_agents._context import changes_of, context_type
from interlock.adapters.openai_agents._converter import InterlockOpenAIConverter
from interlock.adapters.openai_agents._graph import Running, function_tools, graph_of
from interlock.adapters.openai_agents._hosted import hosted_connection
from interlock.adapters.openai_agents._in_steps import AgentsInSteps
from interlock.adapters.openai_agents._model import INSTANCE, OF_ALL, Answer, RequestInput
from interlock.adapters.openai_agents._requests import ask
from interlock.adapters.openai_agents._results import ToolResult, encoded
from interlock.adapters.openai_agents._runner import install
from interlock.adapters.openai_agents._scope import sdk_usage
from interlock.adapters.openai_agents._servers import ListInput, Servers, connection_of, server_of, toolset_of
from interlock.adapters.openai_agents._shown import tool_names, unmade_model
from interlock.adapters.openai_agents._sub_runs import SubRunFailedError
from interlock.adapters.openai_agents._tools import CallInput
from interlock.adapters.openai_agents._traces import keep_here, send
from interlock.adapters.openai_agents._versions import check_versions
from interlock.adapters.openai_agents.workflow import Runner
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.failures import told
from interlock.contracts.payloads import Ticket
from interlock.contracts.payloads import Usage as Used
from interlock.contracts.ports import AgentRunner, Prices, SubRuns
from interlock.retries import Retries

CALLBACKS = ("instructions", "guardrail", "predicate", "hook", "handoff")


class OpenAIAgentsAdapter:
    """Everything a worker needs to run these agents. The agents are checked, by name, when it is made.

    run_config, run_hooks: what the SDK's `Runner.run` would be given. prices: of models, before those that are known.
    send_traces: whether the worker sends the SDK's own traces to OpenAI.
    """

    payload_converter = InterlockOpenAIConverter

    def __init__(
        self,
        agents: Mapping[str, Agent[Any]],
        retries: Retries,
        sub_runs: SubRuns | None = None,
        *,
        run_config: RunConfig | None = None,
        run_hooks: RunHooks[Any] | None = None,
        prices: Prices | None = None,
        send_traces: bool = False,
    ) -> None:
        check_versions()
        self._agents = graph_of(agents)
        self._context = context_type(self._agents.values())
        self._running = running = Running(run_config or RunConfig(), run_hooks)
        self._provider = _Provider(self._agents, running.config)
        self._prices = prices
        self._servers = Servers()
        self._server_tools: dict[str, dict[str, FunctionTool]] = {}
        self._callbacks = Callbacks(self._agents, self._context, running, self._found)
        self.runners: dict[str, AgentRunner] = {
            name: Runner(agent, self._agents, self._context, retries, running) for name, agent in agents.items()
        }
        delegation = Delegation(sub_runs, SubRunFailedError)
        self._inside = AgentsInSteps(agents, self._agents, self._context, delegation, prices)
        self.activities = [one for name in self._agents for one in self._activities_of(name)]
        self.child_workflows: list[type] = []
        self.interceptors: list[Interceptor] = [AttemptInterceptor()]
        install()
        if sub_runs is not None:  # A worker's, not one that only checks the agents.
            if send_traces:
                self.interceptors.append(send())
            else:
                keep_here()

    def tools(self) -> Mapping[str, Sequence[str]]:
        """See `Adapter`."""
        return {name: tool_names(agent) for name, agent in self._agents.items()}

    def unmade_models(self) -> Iterator[tuple[str, str, Exception]]:
        """See `Adapter`."""
        for name, agent in self._agents.items():
            yield from ((name, *found) for found in unmade_model(agent, self._running.config))

    async def close(self) -> None:
        """See `Adapter`."""
        await self._servers.close()

    def fingerprint(self, agent: str, toolset: str, tool: str) -> str:
        """See `ToolCatalog`."""
        if agent not in self._agents:
            raise MisconfiguredError(f"This worker has no agent {agent!r}; it has: {', '.join(sorted(self._agents))}.")
        if toolset:
            server = server_of(self._agents[agent], toolset)
            connection = connection_of(server) if server else hosted_connection(self._agents[agent], toolset)
            return digest([toolset, tool, connection])
        tools = function_tools(self._agents[agent])
        if tool not in tools:
            raise _no_tool(agent, tool, tools)
        one = tools[tool]
        return digest([toolset, tool, one.name, one.description, one.params_json_schema, *toolsets_in(one)])

    async def _found(self, agent: str, name: str, context: Any) -> FunctionTool:
        """A tool of an agent's, its own or of one of its servers."""
        known = {**self._server_tools.get(agent, {}), **function_tools(self._agents[agent])}
        if name not in known and self._agents[agent].mcp_servers:
            servers = self._agents[agent].mcp_servers
            async with self._servers.using(servers):
                listed = await self._agents[agent].get_mcp_tools(RunContextWrapper(context))
            self._server_tools[agent] = {tool.name: tool for tool in listed if isinstance(tool, FunctionTool)}
            known |= self._server_tools[agent]
        if name not in known:
            raise _no_tool(agent, name, known)
        return known[name]

    async def _list(self, agent: str, wanted: ListInput) -> list[MCPTool]:
        server = self._agents[agent].mcp_servers[wanted.at]
        context = RunContextWrapper(self._context.load(wanted.context))
        async with self._servers.using([server]):
            return await server.list_tools(context, self._agents[agent])

    def _activities_of(self, agent: str) -> list[Callable[..., Any]]:
        @activity.defn(name=names.model_activity(agent))
        async def model_request(request: RequestInput) -> Answer:
            return await self._ask(agent, request)

        @activity.defn(name=names.tool_activity(agent))
        async def call_tool(call: CallInput) -> ToolResult:
            return await self._call(agent, call)

        @activity.defn(name=names.list_tools_activity(agent))
        async def list_tools(wanted: ListInput) -> list[MCPTool]:
            return await self._list(agent, wanted)

        return [model_request, call_tool, list_tools, *(self._callback_activity(agent, kind) for kind in CALLBACKS)]

    def _callback_activity(self, agent: str, kind: str) -> Callable[..., Any]:
        @activity.defn(name=names.callback_activity(agent, kind))
        async def callback(call: Callback) -> CallbackResult:
            with self._inside.step(call.serialized_run_context, tool=False) as step:
                return await step.ended(self._callbacks.call(agent, call))

        return callback

    async def _ask(self, agent: str, request: RequestInput) -> Answer:
        model = self._provider.of(agent).get_model(request.get("model_name"))
        name = str(getattr(model, "model", None) or request.get("model_name") or "")
        return await ask(model, name, request, self._prices, self._provider.retries(agent))

    async def _call(self, agent: str, call: CallInput) -> ToolResult:
        about = call.serialized_run_context
        if ticket := about.get("interlock_ticket"):
            check_ticket(self, Ticket.model_validate(ticket), call.tool_args)
        context = self._context.load(call.context)
        tool = await self._found(agent, call.name, context)
        server = server_of(self._agents[agent], toolset_of(tool))
        before = self._context.dump(context)
        arguments = to_json(call.tool_args).decode()
        ctx = ToolContext(
            context=context,
            usage=_counter(call),
            tool_name=tool.name,
            tool_call_id=str(about.get("tool_call_id", "")),
            tool_arguments=arguments,
            agent=self._agents[agent],
        )
        current_key.set(str(about.get("interlock_key", "")))
        with self._inside.step(about, tool=True):
            output = await _invoked(tool, ctx, arguments, self._servers.using([server] if server else []))
        return encoded(output, changes_of(before, self._context.dump(context)))


@lru_cache(maxsize=1_000)
def _counter_of(run_id: str, *path: str) -> Usage:
    return Usage()


def _counter(call: CallInput) -> Usage:
    """What the run has used so far: one object for all calls of an agent's run, as in the SDK. By it a tool tells runs
    apart that counts, as Airflow's do, how often the model got it wrong."""
    path = call.serialized_run_context.get("interlock_path")
    counter = _counter_of(activity.info().workflow_run_id or "", *(path if isinstance(path, list) else ()))
    vars(counter).update(vars(sdk_usage(call.usage or Used())))
    return counter


def _no_tool(agent: str, name: str, known: Mapping[str, Any]) -> MisconfiguredError:
    return MisconfiguredError(
        f"Agent {agent!r} of this worker has no tool {name!r}; it has: {', '.join(sorted(known)) or 'none'}."
    )


async def _invoked(
    tool: FunctionTool, ctx: ToolContext[Any], arguments: str, connected: AbstractAsyncContextManager[None]
) -> Any:
    """The tool's output. What it raises is this attempt's failure, with what the tool would have its model told."""
    raw = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    working = tool
    if raw is not None:
        working = _without_error_function(tool, raw)
    try:
        async with connected:
            return await invoke_function_tool(function_tool=working, context=ctx, arguments=arguments)
    except ApplicationError:
        raise
    except Exception as error:
        # A tool that the SDK did not make of a function has nothing that tells the model of what it raises.
        telling = maybe_invoke_function_tool_failure_error_function
        text = await telling(function_tool=tool, context=ctx, error=error) if raw is not None else None
        what = told(error)
        raise ApplicationError(
            what.message,
            *([{"told": text}] if isinstance(text, str) else []),
            type=what.type,
            non_retryable=isinstance(error, ModelBehaviorError),
        ) from error


def _without_error_function(tool: FunctionTool, raw: Any) -> FunctionTool:
    working = copy.copy(tool)
    working.on_invoke_tool = raw
    return working


class _Provider:
    """The models of the agents: their own objects, or what the provider of the run configuration makes of a name."""

    def __init__(self, agents: Mapping[str, Agent[Any]], config: RunConfig) -> None:
        self._agents = agents
        self._config = config

    def of(self, agent: str) -> ModelProvider:
        """The models of one agent."""
        return _ModelsOf(self._agents[agent], self._config)

    def retries(self, agent: str) -> ModelRetrySettings | None:
        """What an agent's own code says of trying again."""
        return self._agents[agent].model_settings.resolve(self._config.model_settings).retry


class _ModelsOf(ModelProvider):
    def __init__(self, agent: Agent[Any], config: RunConfig) -> None:
        self._agent = agent
        self._config = config

    def get_model(self, model_name: str | None) -> Model:
        for mark, own in ((INSTANCE, self._agent.model), (OF_ALL, self._config.model)):
            if model_name == mark and isinstance(own, Model):
                return own
        return self._config.model_provider.get_model(model_name)
