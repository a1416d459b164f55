"""Holds gated calls at the gate, and turns each ruling into what the framework knows."""

import asyncio
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import jsonschema
from pydantic import ValidationError
from pydantic_ai import RunContext
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturn, UserPromptPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_json
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from interlock.adapters._calls import (
    CallAtWork,
    ask_about_outcome,
    edit_note,
    has_infinite,
    is_lost,
    is_silent,
    kept,
    may_have_happened,
    outcome_unknown,
    planned,
    schema_problem,
    settled,
    shielded,
    timed_out,
    type_of,
    used_in_vain,
)
from interlock.adapters.pydantic_ai._json import as_json, as_json_object
from interlock.adapters.pydantic_ai._scope import Deferral, InterlockRunContext, Scope, current_scope
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.failures import problems
from interlock.contracts.limits import time_limit
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import Json, JudgeVerdict, RequestKind, Ticket, TimeLimit
from interlock.contracts.ports import GatedCall, Ruling

IDEMPOTENT = "idempotent"
"""The key of a tool's metadata by which it declares that running a call twice is the same as running it once."""

APPROVAL = "approval"
"""The key of a tool's metadata for the time limit of its requests: one stage, or a list of them."""

GATED_CHILD = (
    "Tool {tool!r} is to be approved and to run as a child workflow. What happens in one cannot be held to one "
    "execution for each approval: take `child_workflow` out of the tool's metadata, or have another tool do what needs "
    "the approval."
)

_MARK = "interlock_gate"
_OVER_TIME = re.compile(r"Timed out after [\d.]+ seconds\.")
_TAKE_ANYTHING = ("any", "dict[str,any]")
_JUDGE_TIMEOUT = timedelta(minutes=5)
_JUDGE_HEARTBEAT = timedelta(seconds=8)


class GatedToolset(WrapperToolset[Any]):
    """Holds gated calls at the gate, with the arguments the tool would get, and lets the others through."""

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, those that need an approval or an outside result as ordinary ones: they wait when called."""
        tools = await super().get_tools(ctx)
        if current_scope.get() is None:
            return tools  # There is no gate to wait at, so they stay what the framework defers by itself.
        return {name: _waiting_when_called(tool, ctx) for name, tool in tools.items()}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Run the call, at once or after its ruling."""
        scope = current_scope.get()
        if scope is None:
            return await super().call_tool(name, tool_args, ctx, tool)
        with scope.calling(ctx.tool_call_id or "") as at:
            if scope.fork and at in scope.fork.results:
                given = scope.fork.given.get(at)
                if given and given.executed is not None:
                    scope.edits[ctx.tool_call_id or ""] = edit_note(given.executed)
                return scope.fork.results[at]
            keys: dict[str, None] = {}
            try:
                result = await self._call(scope, at, keys, name, tool_args, ctx, tool)
            except asyncio.CancelledError:
                raise  # Of the run's own: its end sees to the agents.
            except BaseException as error:
                if isinstance(error, ApplicationError) or any(error is one for one in scope.over):
                    scope.final.append(error)
                await _end_agents(scope, keys)
                raise
            await _end_agents(scope, keys)
            return result

    async def _call(
        self,
        scope: Scope,
        at: str,
        keys: dict[str, None],
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Any],
        tool: ToolsetTool[Any],
    ) -> Any:
        args, ticket = tool_args, scope.tickets.pop(ctx.tool_call_id or "", None)
        asked = scope.asked.pop(ctx.tool_call_id or "", None) or _deferral(tool.tool_def)
        if ticket is not None:
            asked = None  # A hook asked for it, and was answered.
        while True:
            if asked is not None:
                if isinstance(asked, ApprovalRequired) and ctx.tool_call_approved:
                    raise UserError(
                        f"Tool {name!r} asked for an approval again although this call is approved. "
                        "A tool that raises ApprovalRequired has to let calls with `ctx.tool_call_approved` through."
                    )
                ruling = await ask(scope, asked, _Call(name, args, ctx, tool))
                if ruling.outcome in ("completed", "failed"):
                    return _outside_result(ruling)
                ctx = dataclasses.replace(ctx, tool_call_approved=True)
                args, ticket = await _ruled_arguments(ruling, args, ctx, tool), ruling.ticket
                if ruling.edited:
                    scope.edits[ctx.tool_call_id or ""] = edit_note(ruling.arguments)
            written = as_json_object(args)
            call = digest([name, written])
            key = scope.key_of(at, call, recorded=not _runs_in_workflow(tool))
            keys[key] = None
            ended = scope.recovery.agents_of(key)[1]
            try:
                make = partial(super().call_tool, name, _travelling(args, tool) if ticket else args, ctx, tool)
                body = CallAtWork(partial(_waits_in_vain, scope, key))
                with planned(call_label(name, written), ticket, call=call, key=key, body=body):
                    if _runs_in_workflow(tool):
                        return await settled(make, partial(_may_end, scope))
                    return await body.settled(make)
            except (ApprovalRequired, CallDeferred) as deferral:
                asked = deferral
            except ModelRetry as retry:
                if ticket is None or is_idempotent(tool) or not _is_over_time(retry):
                    raise
                ruling = await _ask_about_outcome(scope, ticket, timed_out(retry.message), _Call(name, args, ctx, tool))
                if ruling.outcome == "happened":
                    return ruling.result
                asked, ticket = None, ruling.ticket
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                if type_of(error) == names.BUDGET_USED_UP and error.cause is not None:
                    raise error.cause from None  # Of the run of an agent in the tool, and so of this run too.
                if type_of(error) == names.TOOL_CHANGED:
                    # The worker found that what was approved is not what it would run: the person is asked again.
                    asked, ctx = ApprovalRequired(), dataclasses.replace(ctx, tool_call_approved=False)
                elif ticket is not None and may_have_happened(error, idempotent=is_idempotent(tool)):
                    ruling = await _ask_about_outcome(scope, ticket, error, _Call(name, args, ctx, tool))
                    if ruling.outcome == "happened":
                        return ruling.result
                    asked, ticket = None, ruling.ticket
                elif is_lost(error) and scope.recovery.agents_of(key)[0] > ended:
                    # The tool did nothing wrong. It waited for an agent, as long as it takes, and its attempts went by
                    # with the workers that came and went: another one finds the agent again.
                    asked = None
                elif any(error is one for one in scope.over) and workflow.patched(names.KEEP_INNER_MODELS):
                    raise  # Of an agent in the tool: it was kept where it arose.
                elif scope.hooked:
                    raise _lasting(name, error) from error
                else:
                    await kept(scope, call_label(name, written), _lasting(name, error))
                    asked = None
            finally:
                scope.count()


def _waits_in_vain(scope: Scope, key: str) -> bool:
    """Whether the run ends by a failure beside a call that waits for an agent, which may wait for a person.

    Where no run is kept, whatever the framework gives its calls up for is such a failure.
    """
    started, ended = scope.recovery.agents_of(key)
    return started > ended and (bool(scope.final) or not scope.recovery.keeps)


def _may_end(scope: Scope) -> bool:
    """Whether a call in the workflow may end before it has settled: an agent in it may wait for a person."""
    return (bool(scope.final) or not scope.recovery.keeps) and workflow.patched(names.END_CALLS_IN_RUNS)


async def _end_agents(scope: Scope, keys: Iterable[str]) -> None:
    """End what a call has left at work. keys: of the call, in the order in which it was made with them."""
    for key in keys:
        await scope.recovery.end_agents(key)


def is_idempotent(tool: ToolsetTool[Any] | None) -> bool:
    """Whether a tool declares that running a call of it twice is the same as running it once."""
    return tool is not None and (tool.tool_def.metadata or {}).get(IDEMPOTENT) is True


def limit_of(tool: str, metadata: Mapping[str, Any] | None) -> TimeLimit | None:
    """The time limit of a tool's requests; None when it says nothing. Raises UserError for what is none."""
    given = (metadata or {}).get(APPROVAL)
    try:
        return None if given is None else time_limit(given)
    except ValueError as error:
        raise UserError(f"The time limit of tool {tool!r} (metadata {APPROVAL!r}) is none: {error}.") from None


def is_child_workflow(metadata: Mapping[str, Any] | None) -> bool:
    """Whether a tool with this metadata runs as a workflow of its own."""
    config = (metadata or {}).get("temporal")
    return isinstance(config, Mapping) and "child_workflow" in config


@dataclass(frozen=True)
class _Call:
    name: str
    args: dict[str, Any]
    ctx: RunContext[Any]
    tool: ToolsetTool[Any]


async def ask(scope: Scope, asked: Deferral, call: _Call) -> Ruling:
    """Wait at the gate. A rejection, and a denial by the time limit, leaves as the framework's own: the model reads the
    reviewer's reason, or that nobody has answered."""
    kind: RequestKind = "approval" if isinstance(asked, ApprovalRequired) else "tool_result"
    in_child = kind == "approval" and is_child_workflow(call.tool.tool_def.metadata)
    if in_child and workflow.patched(names.REFUSE_GATED_CHILDREN):
        raise UserError(GATED_CHILD.format(tool=call.name))
    arguments = _shown(call)
    gated = GatedCall(
        kind=kind,
        agent_path=scope.path,
        toolset=call.tool.tool_def.toolset_id or "",
        tool=call.name,
        description=call.tool.tool_def.description or "",
        call_id=call.ctx.tool_call_id or "",
        arguments=arguments,
        metadata=as_json(asked.metadata),
        check=partial(_checked, call),
        judge=partial(_judge, scope, kind, call, asked) if scope.judged else None,
        time_limit=limit_of(call.name, call.tool.tool_def.metadata),
    )
    try:
        ruling = await scope.gate.ask(gated)
    except ApplicationError as error:  # Of the limit that ends the run: nothing is waited for beside it.
        scope.final.append(error)
        raise
    if ruling.outcome in ("rejected", "timed_out"):
        raise SkipToolExecution(ToolDenied(ruling.reason) if ruling.reason else ToolDenied())
    return ruling


async def _ask_about_outcome(scope: Scope, ticket: Ticket, error: ActivityError, call: _Call) -> Ruling:
    """Ask a person whether an approved call happened. Raises when they give up."""
    if not workflow.patched(names.ASK_ABOUT_OUTCOME):
        if is_silent(error):
            raise outcome_unknown(call.name, ticket, error) from error
        raise error
    gated = GatedCall(
        kind="outcome",
        agent_path=scope.path,
        toolset=ticket.toolset,
        tool=call.name,
        description=call.tool.tool_def.description or "",
        call_id=call.ctx.tool_call_id or "",
        arguments=as_json_object(call.args),
        metadata=None,
        check=partial(_checked, call),
    )
    return await ask_about_outcome(scope, gated, ticket, error)


async def hooked(ctx: RunContext[Any], call: ToolCallPart, args: dict[str, Any], deferral: Deferral) -> Any:
    """Go on with a call that a hook wants approved or done elsewhere."""
    scope = current_scope.get()
    manager = ctx.tool_manager
    if scope is None or manager is None or manager.tools is None:
        raise deferral
    tool = manager.tools[call.tool_name]
    ruling = await ask(scope, deferral, _Call(call.tool_name, args, ctx, tool))
    if ruling.outcome in ("completed", "failed"):
        return _outside_result(ruling)
    approved = dataclasses.replace(call, args=ruling.arguments)
    if ruling.ticket is not None:
        scope.tickets[call.tool_call_id] = ruling.ticket
    validated = await manager.validate_tool_call(approved, approved=True)
    return await manager.execute_tool_call(validated)


async def asked_around(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
    """Ask for the calls that hooks around ours want approved or done elsewhere. The calls beside them have ended."""
    scope, manager = current_scope.get(), ctx.tool_manager
    if scope is None or manager is None or manager.tools is None:
        return None
    results, tools = DeferredToolResults(), manager.tools

    async def answer(part: ToolCallPart, deferral: Deferral) -> None:
        args = (await manager.validate_tool_call(part)).validated_args or {}
        call = _Call(
            part.tool_name, args, dataclasses.replace(ctx, tool_call_id=part.tool_call_id), tools[part.tool_name]
        )
        try:
            ruling = await ask(scope, deferral, call)
        except SkipToolExecution as rejection:
            results.approvals[part.tool_call_id] = rejection.result
            return
        if ruling.ticket is None:
            failed = ruling.outcome == "failed"
            results.calls[part.tool_call_id] = ToolFailed(ruling.reason) if failed else ruling.result
            return
        scope.tickets[part.tool_call_id] = ruling.ticket
        if ruling.edited:
            scope.edits[part.tool_call_id] = edit_note(ruling.arguments)
        results.approvals[part.tool_call_id] = ToolApproved(override_args=ruling.arguments if ruling.edited else None)

    metadata = requests.metadata
    await asyncio.gather(
        *(answer(part, ApprovalRequired(metadata.get(part.tool_call_id))) for part in requests.approvals),
        *(answer(part, CallDeferred(metadata.get(part.tool_call_id))) for part in requests.calls),
    )
    return results


def remember_asked(call: ToolCallPart, deferral: Deferral) -> bool:
    """Keep what an arguments validator asked for until the call runs. False outside a run of ours."""
    scope = current_scope.get()
    if scope is None:
        return False
    scope.asked[call.tool_call_id] = deferral
    return True


def told_of_edit(call: ToolCallPart, result: Any) -> Any:
    """The tool's result, and for an edited call a note to the model that says what ran instead."""
    scope = current_scope.get()
    note = scope.edits.pop(call.tool_call_id, None) if scope else None
    if note is None or isinstance(result, ToolDenied):
        return result
    if not isinstance(result, ToolReturn):
        return ToolReturn(return_value=result, content=note)
    content = [result.content] if isinstance(result.content, str) else list(result.content or [])
    return dataclasses.replace(result, content=[*content, note])


def add_message(scope: Scope, request: ModelRequestContext) -> None:
    """Put a message of a fork into the agent's model request that it is meant for."""
    number, last = next(scope.requests), request.messages[-1]
    text = scope.fork.messages.get(str(number)) if scope.fork and len(scope.path) == 1 else None
    if text is not None and isinstance(last, ModelRequest):
        last.parts = [*last.parts, UserPromptPart(text)]


def with_distinct_call_ids(response: ModelResponse, before: Sequence[ModelMessage]) -> ModelResponse:
    """The response with a call id of its own for every call, so that no two can trade results or rulings.

    before: the conversation so far. Providers refuse one that has an id twice.
    """
    parts = list(response.parts)
    calls = [part.tool_call_id or f"call-{at}" for at, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    seen = {part.tool_call_id for message in before for part in message.parts if isinstance(part, ToolCallPart)}
    if not seen.isdisjoint(calls) and not workflow.patched(names.DISTINCT_CALL_IDS):
        seen = set()
    for index, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            base = call_id = part.tool_call_id or f"call-{index}"
            copies = 1
            while call_id in seen:
                copies += 1
                call_id = f"{base}-{copies}"
            seen.add(call_id)
            if call_id != part.tool_call_id:
                parts[index] = dataclasses.replace(part, tool_call_id=call_id)
    return dataclasses.replace(response, parts=parts)


@dataclass
class JudgeCall:
    """What the judges of an agent are asked: one call, and the run context to rebuild."""

    kind: str
    call_id: str
    tool: str
    arguments: dict[str, Any]
    metadata: Any
    serialized_run_context: Any


async def _judge(scope: Scope, kind: RequestKind, call: _Call, asked: Deferral) -> JudgeVerdict:
    question = JudgeCall(
        kind=kind,
        call_id=call.ctx.tool_call_id or "",
        tool=call.name,
        arguments=as_json_object(call.args),
        metadata=as_json(asked.metadata),
        serialized_run_context=InterlockRunContext.serialize_run_context(call.ctx),
    )
    with planned(f"judge {call_label(call.name, question.arguments)}"):
        handle = workflow.start_activity(
            names.judge_activity(scope.path[-1]),
            args=[question, call.ctx.deps],
            result_type=JudgeVerdict,
            start_to_close_timeout=_JUDGE_TIMEOUT,
            heartbeat_timeout=_JUDGE_HEARTBEAT,
            retry_policy=RetryPolicy(maximum_attempts=1),
        )
    try:
        return await shielded(handle)
    except ActivityError as error:
        if is_cancelled_exception(error):
            raise
        # A judge that fails or takes too long settles nothing.
        return JudgeVerdict(verdict="ask", usage=used_in_vain(error))


def _waiting_when_called(tool: ToolsetTool[Any], ctx: RunContext[Any]) -> ToolsetTool[Any]:
    kind = tool.tool_def.kind
    if kind not in ("unapproved", "external"):
        return tool
    tool_def = dataclasses.replace(
        tool.tool_def, kind="function", metadata={**(tool.tool_def.metadata or {}), _MARK: kind}
    )
    # A toolset of calls that run outside allows the model no second try, since nothing there would ask for one.
    max_retries = tool.max_retries if kind == "unapproved" else max(tool.max_retries, ctx.max_retries)
    return dataclasses.replace(tool, tool_def=tool_def, max_retries=max_retries)


def _deferral(tool_def: ToolDefinition) -> Deferral | None:
    mark = (tool_def.metadata or {}).get(_MARK)
    if mark == "unapproved":
        return ApprovalRequired()
    return CallDeferred() if mark == "external" else None


def _outside_result(ruling: Ruling) -> Any:
    if ruling.outcome == "failed":
        raise ToolFailed(ruling.reason or "The tool call failed.")
    return ruling.result


async def _ruled_arguments(
    ruling: Ruling, args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
) -> dict[str, Any]:
    if not ruling.edited:
        return args
    edited: dict[str, Any] = tool.args_validator.validate_json(
        to_json(ruling.arguments), context=ctx.validation_context
    )
    if tool.args_validator_func is not None and workflow.patched(names.VALIDATE_EDITS):
        # An activity, so the reviewer's answer could not wait for it.
        await tool.args_validator_func(ctx, **edited)
    return edited


def _brings_only_a_schema(tool: ToolsetTool[Any]) -> bool:
    """Whether it is the tool of a server or of an external toolset, which has no validator of its own."""
    return getattr(tool.args_validator, "title", "") in _TAKE_ANYTHING


def _checked(call: _Call, edited: Mapping[str, Json]) -> dict[str, Json]:
    if has_infinite(dict(edited)):
        raise ValueError("numbers have to be finite")
    try:
        validated = call.tool.args_validator.validate_json(to_json(dict(edited)), context=call.ctx.validation_context)
        if _brings_only_a_schema(call.tool):
            jsonschema.validate(as_json_object(edited), call.tool.tool_def.parameters_json_schema)
    except ValidationError as error:
        raise ValueError(problems(error)) from error
    except jsonschema.ValidationError as error:
        raise ValueError(schema_problem(error)) from error
    except Exception as error:  # A validator of the user's own, or a schema that is none, may raise anything.
        raise ValueError(f"they could not be checked ({type(error).__name__})") from error
    return as_json_object(validated)


def _shown(call: _Call) -> dict[str, Json]:
    """The arguments as a reviewer sees them. What runs is read from this JSON, so that must give what was meant."""
    if has_infinite(call.args):
        raise ModelRetry("Numbers in the arguments have to be finite.")
    written = as_json_object(call.args)
    if _brings_only_a_schema(call.tool):
        _check_schema(written, call.tool.tool_def.parameters_json_schema)
        return written
    try:
        survives = call.args == call.tool.args_validator.validate_json(
            to_json(written), context=call.ctx.validation_context
        )
    except ValidationError:
        survives = False
    if not survives:
        raise UserError(
            f"Tool {call.name!r} cannot be gated with these arguments: written as JSON and read again they are others, "
            "so what would run is not what a reviewer would see. Its parameters need types that survive JSON: no alias "
            "for only one direction, no validator that changes its own result, no secret types."
        )
    return written


def _check_schema(arguments: dict[str, Json], schema: dict[str, Any]) -> None:
    """Give a call that its tool would not take back to the model: nobody needs to be asked about it."""
    try:
        jsonschema.validate(arguments, schema)
    except jsonschema.ValidationError as error:
        if workflow.patched(names.CHECK_BEFORE_ASKING):
            raise ModelRetry(f"The arguments do not fit: {schema_problem(error)}") from None
    except Exception:  # A schema that cannot be used, such as one with another language's patterns, says nothing.
        return


def _travelling(args: dict[str, Any], tool: ToolsetTool[Any]) -> dict[str, Any]:
    """Arguments as they go to an activity: as JSON, in the one order that was approved."""
    return args if _runs_in_workflow(tool) else as_json_object(args)


def _runs_in_workflow(tool: ToolsetTool[Any]) -> bool:
    return (tool.tool_def.metadata or {}).get("temporal") is False


def _is_over_time(retry: ModelRetry) -> bool:
    """Whether the framework's limit on the time of a tool has ended an approved call: the tool did not say that it has
    done nothing."""
    return bool(_OVER_TIME.fullmatch(retry.message)) and workflow.patched(names.SETTLE_CALLS)


def _lasting(name: str, error: ActivityError) -> Exception:
    """What a call's failure is to those who started the run."""
    if type_of(error) != names.NOT_SERIALIZABLE:
        return error
    return UserError(
        f"Tool {name!r} has run, but what it returned cannot be written as JSON, so it is lost: "
        f"{error.cause}. Return plain data, a dataclass or a pydantic model."
    )
