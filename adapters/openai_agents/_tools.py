"""Tool calls, as activities, each held at the gate where it needs an approval."""

import asyncio
import copy
import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

from agents import Agent, FunctionTool, ModelBehaviorError, ToolOutputText
from agents.tool import resolve_function_tool_failure_error_function
from agents.tool_context import ToolContext
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from pydantic import BaseModel
from pydantic_core import from_json, to_json
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
    planned,
    schema_problem,
    settled,
    type_of,
)
from interlock.adapters.openai_agents._callbacks import recorded_needs_approval, recorded_tool
from interlock.adapters.openai_agents._graph import agent_of_tool
from interlock.adapters.openai_agents._marks import is_idempotent, limit_of
from interlock.adapters.openai_agents._results import ToolResult, decoded
from interlock.adapters.openai_agents._scope import Scope, current_scope, ending, usage_of
from interlock.adapters.openai_agents._servers import server_of, toolset_of
from interlock.adapters.openai_agents._steps import step
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import Json, RequestKind, Ticket
from interlock.contracts.payloads import Usage as Used
from interlock.contracts.ports import GatedCall, Ruling

NOT_APPROVED = "Tool execution was not approved."


class CallInput(BaseModel):
    """What a tool's activity gets: the arguments as JSON, the context as JSON, what the run has used so far, and which
    call of the run it is."""

    name: str
    tool_args: dict[str, Json]
    context: Json = None
    usage: Used | None = None
    serialized_run_context: dict[str, Json] = {}


def durable_tool(agent: Agent[Any], tool: FunctionTool) -> FunctionTool:
    """The tool as it runs in the workflow: its calls are steps, and wait for their approval when called."""
    made = copy.copy(tool)
    made.needs_approval = False
    made.timeout_seconds = None  # It counts where the tool works, not while somebody is asked.
    made.on_invoke_tool = partial(_invoke, agent, tool)
    # The loop would take a cancelled run, or one that is taken out of the cache, for a call that failed: it would tell
    # the model of it, and go on to the hooks. What the tool's own function makes of a failure is asked for in `told`.
    made._failure_error_function = None
    made._use_default_failure_error_function = False
    recorded_tool(agent, tool, made)
    return made


async def _invoke(agent: Agent[Any], tool: FunctionTool, ctx: ToolContext[Any], arguments: str) -> Any:
    scope = current_scope.get()
    assert scope, "A durable tool is only used inside a run."
    with ending(scope), scope.calling(ctx.tool_call_id) as at, _at_work(scope, at):
        result = await _result(scope, at, agent, tool, ctx, arguments)
    if scope.answered:
        scope.answered.made.add(ctx.tool_call_id)
    return result


@contextmanager
def _at_work(scope: Scope, at: str) -> Iterator[None]:
    """Have the run know of the call until the SDK has done all that comes after it."""
    task = asyncio.current_task()
    assert task
    scope.at_work[at] = task
    task.add_done_callback(lambda done: scope.at_work.pop(at, None))
    try:
        yield
    except BaseException as error:
        if any(error is one for one in scope.over):
            scope.final.append(error)
        raise


async def _result(
    scope: Scope, at: str, agent: Agent[Any], tool: FunctionTool, ctx: ToolContext[Any], arguments: str
) -> Any:
    if scope.fork and at in scope.fork.results:
        given = scope.fork.given.get(at)
        note = edit_note(given.executed) if given and given.executed is not None else ""
        return _noted(scope.fork.results[at], note)
    call = _Call(scope, at, agent, tool, ctx)
    try:
        given_arguments = call.read(arguments)
    except ModelBehaviorError as error:
        return await call.told(error)
    return await call.to_its_end(given_arguments)


@lru_cache(maxsize=256)
def _validator(schema: bytes) -> Any:
    """Checks values against a JSON schema. Raises for one that is none; finding that out takes longer than all else
    that a call does in the workflow, so each schema is looked at once."""
    written = from_json(schema)
    kind = validator_for(written)
    kind.check_schema(written)
    return kind(written)


class _Call:
    """One call of a tool, from the model's arguments to what the model is told."""

    def __init__(self, scope: Scope, at: str, agent: Agent[Any], tool: FunctionTool, ctx: ToolContext[Any]) -> None:
        self._scope = scope
        self._at = at
        self._agent = agent
        self._tool = tool
        self._ctx = ctx
        self._path = scope.path_to(agent.name)
        self._keys: dict[str, None] = {}
        self._key = ""
        self._ended = 0

    def read(self, arguments: str) -> dict[str, Json]:
        """The model's arguments. Raises ModelBehaviorError when the tool would not take them."""
        try:
            given = json.loads(arguments or "{}")
        except ValueError:
            given = None
        if not isinstance(given, dict):
            raise ModelBehaviorError(f"Invalid JSON input for tool {self._tool.name}: a JSON object is expected")
        try:
            self._check(given)
        except ValueError as error:
            raise ModelBehaviorError(f"Invalid JSON input for tool {self._tool.name}: {error}") from None
        return given

    def check(self, given: Mapping[str, Json]) -> dict[str, Json]:
        """A reviewer's arguments, if the tool takes them. Raises ValueError, saying what is wrong, if not."""
        if (error := self._check(given)) is not None:
            raise ValueError(f"they could not be checked ({type(error).__name__})") from error
        return dict(given)

    def _check(self, given: Mapping[str, Json]) -> Exception | None:
        """Raise ValueError, saying what is wrong, for arguments that the tool does not take. Returns why its schema
        says nothing of them: it may have another language's patterns."""
        if has_infinite(dict(given)):
            raise ValueError("numbers have to be finite")
        try:
            problem = best_match(_validator(to_json(self._tool.params_json_schema)).iter_errors(given))
        except Exception as error:
            return error
        if problem is not None:
            raise ValueError(schema_problem(problem)) from problem
        return None

    async def to_its_end(self, arguments: dict[str, Json]) -> Any:
        """Run the call, and end what it has left at work: nobody waits for the agents that it has started."""
        try:
            result = await self.run(arguments)
        except Exception:  # Not the run's own cancellation: its end sees to the agents.
            await self._end_agents()
            raise
        await self._end_agents()
        return result

    async def _end_agents(self) -> None:
        for key in self._keys:
            await self._scope.recovery.end_agents(key)

    async def run(self, arguments: dict[str, Json]) -> Any:
        """Run the call, at once or after its ruling."""
        asked, ticket, note = await self._needs_approval(arguments), None, ""
        while True:
            if asked:
                ruling = await self._scope.gate.ask(self._gated("approval", arguments))
                if ruling.outcome in ("rejected", "timed_out"):
                    return ruling.reason or NOT_APPROVED
                arguments, ticket = ruling.arguments, ruling.ticket
                note = edit_note(arguments) if ruling.edited else note
            try:
                return _noted(await self._made(arguments, ticket), note)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                settled = await self._failed(error, arguments, ticket)
                if not isinstance(settled, Ruling | None):
                    return settled
                asked = settled is None and type_of(error) == names.TOOL_CHANGED
                if settled is not None:
                    if settled.outcome == "happened":
                        return _noted(settled.result, note)
                    ticket = settled.ticket

    async def told(self, error: Exception) -> str:
        """What the model is told of an error in place of a result. Raises it when the tool wants its run to end."""
        function = resolve_function_tool_failure_error_function(self._tool, self._ctx)
        if function is None:
            raise error
        text = function(self._ctx, error)
        return text if isinstance(text, str) else await text

    async def _needs_approval(self, arguments: dict[str, Json]) -> bool:
        needs = self._tool.needs_approval
        if isinstance(needs, bool):
            return needs
        return await recorded_needs_approval(self._agent, self._tool, self._ctx, arguments)

    async def _made(self, arguments: dict[str, Json], ticket: Ticket | None) -> Any:
        if agent_of_tool(self._tool) is not None:
            return await self._run_of_agent(arguments)
        context = self._scope.context.dump()
        label, call = call_label(self._tool.name, arguments), digest([self._tool.qualified_name, arguments])
        self._key = key = self._scope.key_of(self._at, call)
        self._keys[key] = None
        self._ended = self._scope.recovery.agents_of(key)[1]
        body = CallAtWork(self._waits_in_vain)
        with planned(label, ticket, call=call, key=key, body=body):
            given = CallInput(
                name=self._tool.qualified_name,
                tool_args=arguments,
                context=context,
                usage=usage_of(self._ctx.usage, 0),
                serialized_run_context=self._scope.told(self._path, self._ctx.tool_call_id),
            )
            make = partial(step, names.tool_activity(self._agent.name), given, ToolResult, self._retries(ticket))
            result: ToolResult = await body.settled(make)
        self._scope.made.append(self._tool.name)
        self._scope.context.change(context, result.changes, f"Tool {self._tool.name!r}")
        return decoded(result, self._tool)

    async def _run_of_agent(self, arguments: dict[str, Json]) -> Any:
        """The output of the agent that the tool is made of; of what it has done nothing is to be done again."""
        scope = self._scope
        make = partial(self._tool.on_invoke_tool, self._ctx, json.dumps(arguments))
        try:
            output = await settled(make, scope.is_in_vain)
        finally:
            await scope.settle(f"{self._at}/")
        if scope.fatal:
            raise scope.fatal[0]
        scope.made.append(self._tool.name)
        return output

    def _retries(self, ticket: Ticket | None) -> RetryPolicy:
        policy = self._scope.retries.of_tool(self._tool.name)
        once = ticket is not None and not is_idempotent(self._tool)  # One approval, one execution.
        return dataclasses.replace(policy, maximum_attempts=1) if once else policy

    def _waits_in_vain(self) -> bool:
        """Whether the run ends while the call waits for an agent, which may wait for a person."""
        return self._has_agent() and self._scope.is_in_vain()

    def _has_agent(self) -> bool:
        """Whether the call has started an agent."""
        return self._scope.recovery.agents_of(self._key)[0] > self._ended

    async def _failed(self, error: ActivityError, arguments: dict[str, Json], ticket: Ticket | None) -> Any:
        """What becomes of a call that failed: a ruling, text for the model, or None to run it again."""
        if type_of(error) == names.BUDGET_USED_UP and error.cause is not None:
            raise error.cause from None  # Of the run of an agent in the tool, and so of this run too.
        if type_of(error) == names.TOOL_CHANGED:
            return None  # What was approved is not what would run: the person is asked again.
        if ticket is not None and may_have_happened(error, idempotent=is_idempotent(self._tool)):
            return await ask_about_outcome(self._scope, self._gated("outcome", arguments, ticket), ticket, error)
        if is_lost(error) and self._has_agent():
            return None  # It waited for an agent; another attempt finds that one again.
        if (text := _told_by_tool(error)) is not None and not is_silent(error):
            return text
        if self._scope.is_ending:
            raise error  # The run would be kept for a retry that does not help it.
        await kept(self._scope, call_label(self._tool.name, arguments), error)
        return None

    def _gated(self, kind: RequestKind, arguments: dict[str, Json], ticket: Ticket | None = None) -> GatedCall:
        toolset = toolset_of(self._tool)
        server = server_of(self._agent, toolset) if toolset else None
        return GatedCall(
            kind=kind,
            agent_path=self._path,
            toolset=toolset,
            tool=self._tool.qualified_name,
            description=self._tool.description,
            call_id=self._ctx.tool_call_id,
            arguments=arguments,
            metadata=None,
            check=self.check,
            time_limit=limit_of(self._tool) or limit_of(server),
        )


def _told_by_tool(error: ActivityError) -> str | None:
    """What the tool's own error function makes of its failure, as the worker says it."""
    cause = error.cause
    if not isinstance(cause, ApplicationError) or not cause.details or not isinstance(cause.details[0], dict):
        return None
    text = cause.details[0].get("told")
    return text if isinstance(text, str) else None


def _noted(output: Any, note: str) -> Any:
    """The tool's output with a word to the model on what ran instead of what it asked for."""
    if not note:
        return output
    if isinstance(output, list) and output and all(hasattr(block, "type") for block in output):
        return [*output, ToolOutputText(text=note)]
    return f"{output}\n\n{note}"
