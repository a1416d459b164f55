"""Judges: an agent's own handlers of deferred calls, asked in an activity before a person is."""

from collections.abc import Callable
from copy import copy
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import Hooks
from pydantic_ai.capabilities.abstract import AbstractCapability, leaf_capabilities
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied
from pydantic_core import from_json, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from interlock.adapters.pydantic_ai._durable import Durable
from interlock.adapters.pydantic_ai._gated import JudgeCall
from interlock.adapters.pydantic_ai._model_calls import spent_since
from interlock.contracts import names
from interlock.contracts.failures import told
from interlock.contracts.payloads import JudgeVerdict


def has_judges(agent: Agent[Any, Any]) -> bool:
    """Whether the agent has handlers of deferred calls."""
    default = AbstractCapability.handle_deferred_tool_calls
    others = [one for one in leaf_capabilities(agent.root_capability) if not isinstance(one, Durable)]
    return any(type(one).handle_deferred_tool_calls is not default for one in others)


def has_error_hooks(agent: Agent[Any, Any]) -> bool:
    """Whether the agent has hooks that take the errors of its tools."""
    return any(_takes_errors(one) for one in leaf_capabilities(agent.root_capability))


def _takes_errors(capability: AbstractCapability[Any]) -> bool:
    method = type(capability).on_tool_execute_error
    if isinstance(capability, Hooks) and method is Hooks.on_tool_execute_error:
        return bool(capability._get("on_tool_execute_error"))
    return method is not AbstractCapability.on_tool_execute_error


def judge_activity(name: str, durable: Durable, agent: Agent[Any, Any]) -> Callable[..., Any]:
    """The activity that asks the agent's handlers, registered under the agent's name."""

    async def judge_call(params: JudgeCall, deps: Any = None) -> JudgeVerdict:
        """Ask the agent's handlers of deferred calls about one call. Any error means: ask a person."""
        ctx = durable.deserialize_operation_run_context(params.serialized_run_context, deps)
        part = ToolCallPart(params.tool, params.arguments, tool_call_id=params.call_id)
        requests = DeferredToolRequests(
            approvals=[part] if params.kind == "approval" else [],
            calls=[part] if params.kind == "tool_result" else [],
            metadata={params.call_id: params.metadata} if params.metadata else {},
        )
        before = copy(ctx.usage)
        try:
            results = await agent.root_capability.handle_deferred_tool_calls(ctx, requests=requests)
            return _verdict(params, results).model_copy(update={"usage": spent_since(before, ctx.usage)})
        except Exception as error:  # What was used up to there counts all the same.
            what, used = told(error), spent_since(before, ctx.usage)
            raise ApplicationError(
                what.message, used.model_dump(mode="json"), type=what.type, non_retryable=True
            ) from error

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
