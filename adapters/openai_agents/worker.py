"""The worker's half: the models and the tools behind the steps, and the check before an approved call runs."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from agents import Agent, FunctionTool, Model, ModelBehaviorError, ModelProvider, ModelResponse, MultiProvider
from agents.tool import invoke_function_tool, maybe_invoke_function_tool_failure_error_function
from agents.tool_context import ToolContext
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.openai_agents._invoke_model_activity import ModelActivity
from temporalio.worker import Interceptor

from interlock.adapters._calls import current_key
from interlock.adapters._worker import AttemptInterceptor, check_ticket
from interlock.adapters.openai_agents._callbacks import Callback, CallbackResult
from interlock.adapters.openai_agents._called import Callbacks
from interlock.adapters.openai_agents._context import changes_of, context_type
from interlock.adapters.openai_agents._converter import InterlockOpenAIConverter
from interlock.adapters.openai_agents._graph import function_tools, graph_of
from interlock.adapters.openai_agents._model import INSTANCE, RequestInput
from interlock.adapters.openai_agents._results import ToolResult, encoded
from interlock.adapters.openai_agents._runner import install
from interlock.adapters.openai_agents._tools import CallInput
from interlock.adapters.openai_agents._versions import check_versions
from interlock.adapters.openai_agents.workflow import Runner
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.failures import told
from interlock.contracts.payloads import Ticket
from interlock.contracts.ports import AgentRunner, SubRuns
from interlock.retries import Retries

CALLBACKS = ("instructions", "guardrail", "predicate", "hook", "handoff")


class OpenAIAgentsAdapter:
    """Everything a worker needs to run these agents. The agents are checked, by name, when it is made."""

    payload_converter = InterlockOpenAIConverter

    def __init__(self, agents: Mapping[str, Agent[Any]], retries: Retries, sub_runs: SubRuns | None = None) -> None:
        check_versions()
        self._agents = graph_of(agents)
        self._sub_runs = sub_runs
        self._context = context_type(self._agents.values())
        self._provider = _Provider(self._agents)
        self._callbacks = Callbacks(self._agents, self._context)
        self.runners: dict[str, AgentRunner] = {
            name: Runner(agent, self._agents, self._context, retries) for name, agent in agents.items()
        }
        self.activities = [one for name in self._agents for one in self._activities_of(name)]
        self.child_workflows: list[type] = []
        install()

    @property
    def interceptor(self) -> Interceptor:
        """The interceptor of the worker's activities."""
        return AttemptInterceptor()

    def fingerprint(self, agent: str, toolset: str, tool: str) -> str:
        """See `ToolCatalog`."""
        one = self._tool(agent, tool)
        return digest([toolset, tool, one.name, one.description, one.params_json_schema])

    def _tool(self, agent: str, name: str) -> FunctionTool:
        if agent not in self._agents:
            raise MisconfiguredError(f"This worker has no agent {agent!r}; it has: {', '.join(sorted(self._agents))}.")
        tools = function_tools(self._agents[agent])
        if name not in tools:
            raise MisconfiguredError(
                f"Agent {agent!r} of this worker has no tool {name!r}; it has: {', '.join(sorted(tools)) or 'none'}."
            )
        return tools[name]

    def _activities_of(self, agent: str) -> list[Callable[..., Any]]:
        @activity.defn(name=names.model_activity(agent))
        async def model_request(request: RequestInput) -> ModelResponse:
            return await self._ask(agent, request)

        @activity.defn(name=names.tool_activity(agent))
        async def call_tool(call: CallInput) -> ToolResult:
            return await self._call(agent, call)

        return [model_request, call_tool, *(self._callback_activity(agent, kind) for kind in CALLBACKS)]

    def _callback_activity(self, agent: str, kind: str) -> Callable[..., Any]:
        @activity.defn(name=names.callback_activity(agent, kind))
        async def callback(call: Callback) -> CallbackResult:
            return await self._callbacks.call(agent, call)

        return callback

    async def _ask(self, agent: str, request: RequestInput) -> ModelResponse:
        model = ModelActivity(self._provider.of(agent))
        return await model.invoke_model_activity(request)

    async def _call(self, agent: str, call: CallInput) -> ToolResult:
        about = call.serialized_run_context
        tool = self._tool(agent, call.name)
        if ticket := about.get("interlock_ticket"):
            check_ticket(self, Ticket.model_validate(ticket), call.tool_args)
        context = self._context.load(call.context)
        before = self._context.dump(context)
        arguments = to_json(call.tool_args).decode()
        ctx = ToolContext(
            context=context,
            tool_name=tool.name,
            tool_call_id=str(about.get("tool_call_id", "")),
            tool_arguments=arguments,
            agent=self._agents[agent],
        )
        current_key.set(str(about.get("interlock_key", "")))
        output = await _invoked(tool, ctx, arguments)
        return encoded(output, changes_of(before, self._context.dump(context)))


async def _invoked(tool: FunctionTool, ctx: ToolContext[Any], arguments: str) -> Any:
    """The tool's output. What it raises is this attempt's failure, with what the tool would have its model told."""
    raw = getattr(tool.on_invoke_tool, "_invoke_tool_impl", None)
    working = tool
    if raw is not None:
        working = _without_error_function(tool, raw)
    try:
        return await invoke_function_tool(function_tool=working, context=ctx, arguments=arguments)
    except ApplicationError:
        raise
    except Exception as error:
        text = await maybe_invoke_function_tool_failure_error_function(function_tool=tool, context=ctx, error=error)
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
    """The models of the agents: their own objects, or what the SDK makes of a name."""

    def __init__(self, agents: Mapping[str, Agent[Any]]) -> None:
        self._agents = agents
        self._named: ModelProvider | None = None

    def of(self, agent: str) -> ModelProvider:
        provider = self

        class OfAgent(ModelProvider):
            def get_model(self, model_name: str | None) -> Model:
                own = provider._agents[agent].model
                if model_name == INSTANCE and isinstance(own, Model):
                    return own
                return provider._by_name(model_name)

        return OfAgent()

    def _by_name(self, name: str | None) -> Model:
        if self._named is None:
            self._named = MultiProvider()
        return self._named.get_model(name)
