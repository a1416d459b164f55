"""`Durable()`: the capability that makes a pydantic-ai agent run durably under Interlock."""

import copy
import dataclasses
from contextlib import AbstractContextManager
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec._toolset import DurableDynamicToolset
from pydantic_ai.durable_exec._utils import DurableModel, StreamedModelRequestResult
from pydantic_ai.durable_exec.temporal import TemporalDurability
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelAPIError,
    ModelRetry,
    RetryModelRequest,
    SkipToolExecution,
    UserError,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tool_manager import _ValidationDeferral
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, ExternalToolset, WrapperToolset
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType, ActivityConfig

from interlock._failures import failure_of
from interlock.adapters._calls import HEARTBEAT_TIMEOUT, OPEN_END, HistoryIsLongError, current_ticket, kept, planned
from interlock.adapters.pydantic_ai import _gated
from interlock.adapters.pydantic_ai._delegation import current_worker
from interlock.adapters.pydantic_ai._model_calls import counted
from interlock.adapters.pydantic_ai._predicates import with_recorded_predicates
from interlock.adapters.pydantic_ai._scope import InterlockRunContext, at_call, current_scope, entered
from interlock.adapters.pydantic_ai._streamed import StreamedModel, told_to
from interlock.contracts import names
from interlock.contracts.ports import event_sink, place


class Durable(TemporalDurability[Any]):
    """Makes every model call and tool call of an agent an activity, and holds gated calls at the approval gate.

    Takes what `TemporalDurability` takes. Outside of a workflow the agent behaves as it would without it. Inside a
    tool's activity on an Interlock worker the agent becomes a run of its own.

    strict: raise UserError where the agent is run outside of both, instead of running it without a record.
    """

    def __init__(self, *, strict: bool = False, **options: Any) -> None:
        self._strict = strict
        self._own_retries = "retry_policy" in (options.get("activity_config") or {})
        self._own_model_retries = self._own_retries or "retry_policy" in (options.get("model_activity_config") or {})
        config: ActivityConfig = {
            "start_to_close_timeout": OPEN_END,
            "heartbeat_timeout": HEARTBEAT_TIMEOUT,
            # A cancelled run waits until its calls have cleaned up, and the agents they started are cancelled.
            "cancellation_type": ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        }
        options["activity_config"] = {**config, **(options.get("activity_config") or {})}
        policy = options["activity_config"].get("retry_policy") or RetryPolicy()
        never = [*(policy.non_retryable_error_types or ()), names.NOT_SERIALIZABLE]
        options["activity_config"]["retry_policy"] = dataclasses.replace(policy, non_retryable_error_types=never)
        options.setdefault("run_context_type", InterlockRunContext)
        if not issubclass(options["run_context_type"], InterlockRunContext):
            raise TypeError("`run_context_type` has to be a subclass of interlock's InterlockRunContext.")
        super().__init__(**options)

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """See `AbstractCapability`."""
        if workflow.in_workflow():
            with entered(self.name, ctx):
                return await super().wrap_run(ctx, handler=handler)
        if activity.in_activity() and (worker := current_worker.get()):
            return await worker.delegate(self.name, ctx)
        if self._strict:
            raise UserError(
                f"Agent {self.name!r} is strict (`Durable(strict=True)`), and here nothing of it would be recorded or "
                f"held for approval. Start a run of it: `interlock runs start {self.name}`, or "
                f"`await client.start({self.name!r}, ...)`. A tool of another agent of the app may run it too."
            )
        return await handler()

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Any) -> Any:
        """See `AbstractCapability`."""
        if workflow.in_workflow():
            _end_with_stop_async_iteration(node)
        return await handler(node)

    def get_wrapper_toolset(self, toolset: AbstractToolset[Any]) -> AbstractToolset[Any] | None:
        """See `AbstractCapability`."""
        if not workflow.in_workflow():
            return super().get_wrapper_toolset(toolset)
        as_begun = self if self._own_toolsets_are_steps() else self._with_own_toolsets_in_runs()
        durable = super(Durable, as_begun).get_wrapper_toolset(toolset)
        return _gated.GatedToolset(with_recorded_predicates(durable or toolset))

    def _wrap_other_leaf_toolset(self, ts: AbstractToolset[Any]) -> WrapperToolset[Any] | None:
        """A toolset of a class of its own: its listing and its calls are steps, like those of one made for each run.

        The framework would leave it as it is, in the workflow, where each replay would do again whatever it does.
        """
        if isinstance(ts, ExternalToolset):
            return None  # It runs nothing.
        durable = self._build_dynamic_toolset(DynamicToolset(lambda ctx: ts, id=ts.id))
        durable.wrapped = ts  # By which the framework finds its place among the agent's toolsets.
        return durable

    def _own_toolsets_are_steps(self) -> bool:
        has_own = any(is_own(one) for one in self._toolsets_by_id.values())
        return not has_own or workflow.patched(names.STEPS_OF_OWN_TOOLSETS)

    def _with_own_toolsets_in_runs(self) -> "Durable":
        before = copy.copy(self)
        before._toolsets_by_id = {key: one for key, one in self._toolsets_by_id.items() if not is_own(one)}
        return before

    async def wrap_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> dict[str, Any]:
        """See `AbstractCapability`."""
        try:
            with at_call(call.tool_call_id):
                validated: dict[str, Any] = await handler(args)
        except _ValidationDeferral as deferred:
            # Left alone it would wait for the calls beside it to end before anybody is asked.
            if workflow.in_workflow() and _gated.remember_asked(call, deferred.deferral):
                return deferred.validated_args
            raise
        if workflow.in_workflow() and not isinstance(validated, dict):
            # The validator of a tool that brings only a schema takes anything; the framework's loop breaks over it.
            raise ModelRetry("The arguments have to be a JSON object.")
        return validated

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any], handler: Any
    ) -> Any:
        """See `AbstractCapability`."""
        if not workflow.in_workflow():
            return await handler(args)
        try:
            with at_call(call.tool_call_id):
                try:
                    result = await handler(args)
                except (ApprovalRequired, CallDeferred) as deferral:
                    result = await _gated.hooked(ctx, call, args, deferral)
        except SkipToolExecution as skip:
            if not isinstance(skip.result, ToolDenied):
                raise
            return skip.result  # As a returned value a rejected call is not counted as one that ran.
        return _gated.told_of_edit(call, result)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """See `AbstractCapability`. Nothing is left to handle but what a hook around this one has asked for."""
        if not workflow.in_workflow() or not workflow.patched(names.ASK_FOR_HOOKS):
            return None
        return await _gated.asked_around(ctx, requests)

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: Any
    ) -> ModelResponse:
        """See `AbstractCapability`."""
        if (scope := current_scope.get()) is not None:
            if scope.is_long():
                raise HistoryIsLongError
            _gated.add_message(scope, request_context)
        with self._planned_request(ctx, request_context):
            return await super().wrap_model_request(ctx, request_context=request_context, handler=handler)

    def get_wrapper_model(self, model: Model) -> Model | None:
        """See `AbstractCapability`."""
        sink = event_sink.get()
        return super().get_wrapper_model(model) if sink is None else StreamedModel(model, sink)

    def _model_stream_event_handler(self) -> EventStreamHandler[Any] | None:
        # Of an agent with a handler of the user's, whose model is asked for a stream anyway.
        handler, sink = super()._model_stream_event_handler(), event_sink.get()
        return handler if sink is None else told_to(sink, handler)

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """See `AbstractCapability`."""
        scope = current_scope.get()
        # An agent in a tool's code: left alone, the tool would start it from nothing, and its completed calls with it.
        if scope is None or not place.get() or not _helped_by_asking_again(error):
            return await super().on_model_request_error(ctx, request_context=request_context, error=error)
        failure = error if isinstance(error, ActivityError) else failure_of(error)
        await kept(scope, f"model of {self.name}, request {ctx.usage.requests + 1}", failure, "model")
        raise RetryModelRequest

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """See `AbstractCapability`."""
        response = await super().after_model_request(ctx, request_context=request_context, response=response)
        if not workflow.in_workflow():
            return response
        response = _gated.with_distinct_call_ids(response, ctx.messages)
        if (scope := current_scope.get()) is not None:
            scope.number(part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart))
        return response

    async def _build_durable_model(self, ctx: RunContext[Any], request_context: ModelRequestContext) -> DurableModel:
        model = await super()._build_durable_model(ctx, request_context)
        request_stream = model._request_stream_segment

        async def planned_stream(request: ModelRequestContext) -> StreamedModelRequestResult:
            # It is opened by the task that reads the stream, which knows nothing of what `wrap_model_request` has set.
            with self._planned_request(ctx, request_context):
                return await request_stream(request)

        model._request_stream_segment = planned_stream
        return counted(model, current_scope.get())

    def _planned_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> AbstractContextManager[None]:
        model = request_context.model_id or getattr(request_context.model, "model_name", "model")
        scope = current_scope.get()
        retries = None if scope is None or self._own_model_retries else scope.retries.model
        return planned(f"model {model}, turn {ctx.run_step}", retries=retries, call=scope.task if scope else "")

    def _resolve_temporal_tool_config(self, operation_id: Any, tool: Any, name: str) -> Any:
        config = super()._resolve_temporal_tool_config(operation_id, tool, name)
        scope = current_scope.get()
        if scope is None or not config or "child_workflow" in config:
            return config
        policy = config.get("retry_policy") or RetryPolicy()
        if not self._has_own_retries(operation_id.toolset_id, tool):
            policy = dataclasses.replace(
                scope.retries.of_tool(name), non_retryable_error_types=policy.non_retryable_error_types
            )
        if current_ticket.get() is not None and not _gated.is_idempotent(tool):
            policy = dataclasses.replace(policy, maximum_attempts=1)  # One approval, one execution.
        return {**config, "retry_policy": policy}

    def _has_own_retries(self, toolset_id: str, tool: Any) -> bool:
        of_tool = ((tool.tool_def.metadata or {}) if tool is not None else {}).get("temporal") or {}
        of_toolset = self._toolset_activity_config.get(toolset_id, {})
        return self._own_retries or "retry_policy" in of_tool or "retry_policy" in of_toolset


def is_own(durable: WrapperToolset[Any]) -> bool:
    """Whether it stands for a toolset of a class that the framework does not know."""
    return isinstance(durable, DurableDynamicToolset) and not isinstance(durable.wrapped, DynamicToolset)


def _helped_by_asking_again(error: Exception) -> bool:
    gone = isinstance(error, ModelAPIError | ActivityError) and not is_cancelled_exception(error)
    return gone and workflow.patched(names.KEEP_INNER_MODELS)


def _end_with_stop_async_iteration(node: Any) -> None:
    """Let a StopAsyncIteration that a node raises end the run. The framework takes it for the end of its own loop, and
    runs the node again without end."""
    run = node.run

    async def ending(context: Any) -> Any:
        try:
            return await run(context)
        except StopAsyncIteration as error:
            raise RuntimeError("StopAsyncIteration was raised in the agent's code") from error

    node.run = ending
