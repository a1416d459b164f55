"""The deterministic half: runs an agent of the OpenAI Agents SDK in a workflow."""

import asyncio
import copy
import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from agents import (
    Agent,
    AgentsException,
    ItemHelpers,
    MaxTurnsExceeded,
    Model,
    ModelBehaviorError,
    ModelRefusalError,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
)
from agents.run import DEFAULT_MAX_TURNS
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall
from openai.types.responses.response_output_item import McpApprovalRequest
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from temporalio.exceptions import ApplicationError

from interlock._failures import ended_by, failure_of
from interlock.adapters._calls import LARGEST_INPUT_BYTES, HistoryIsLongError, keys_of, never, written
from interlock.adapters._review import Review
from interlock.adapters.openai_agents._agents import durable
from interlock.adapters.openai_agents._callbacks import recorded_config, recorded_run_hooks
from interlock.adapters.openai_agents._context import Context, ContextType
from interlock.adapters.openai_agents._graph import Running
from interlock.adapters.openai_agents._model import OF_ALL
from interlock.adapters.openai_agents._results import fitting_output
from interlock.adapters.openai_agents._runner import in_loop
from interlock.adapters.openai_agents._scope import Answered, Scope, entered, sdk_usage, usage_of
from interlock.adapters.openai_agents._settings import check_settings
from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import Carried, Json, RunInput, RunOutput
from interlock.contracts.ports import Continuation, FailedStep, Gate, Recovery
from interlock.retries import Retries

T = TypeVar("T")

INTERRUPTED = "The tool call was interrupted before a result was produced."
WITHHELD = "The tool call was made, but a guardrail keeps back what it returned."

_SETTINGS: TypeAdapter[ModelSettings] = TypeAdapter(ModelSettings)
_HELPED_BY_ASKING_AGAIN = (
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)


class Runner:
    """Runs one agent, and those it hands over to, in a workflow.

    agents: all that it reaches, by name. running: what the SDK's own loop is given.
    """

    framework = "openai-agents"

    def __init__(
        self,
        agent: Agent[Any],
        agents: Mapping[str, Agent[Any]],
        context: ContextType,
        retries: Retries,
        running: Running,
    ) -> None:
        self._agent = agent
        self._running = running
        self._agents = agents
        self._context = context
        self._retries = retries

    async def run(
        self, run: RunInput, gate: Gate, recovery: Recovery, is_long: Callable[[], bool]
    ) -> RunOutput | Continuation:
        """See `AgentRunner`."""
        scope = Scope(
            gate=gate,
            recovery=recovery,
            retries=self._retries,
            path=(*(run.parent.agent_path if run.parent else ()), run.agent),
            fork=run.fork,
            is_long=is_long,
            **keys_of(run),
            made_before=(run.carried or Carried()).usage.tool_calls,
            used_tools=set((run.carried or Carried()).used_tools),
            context=Context(self._context, run.deps),
            agents=self._agents,
            model=run.model or _named(self._running.config.model),
        )
        task = asyncio.current_task()
        try:
            with entered(scope):
                return await self._to_its_end(run, scope)
        except BaseException as error:
            if (failure := ended_by(_without_wrapping(error), task)) is error:
                raise
            raise failure from failure.__cause__

    async def _to_its_end(self, run: RunInput, scope: Scope) -> RunOutput | Continuation:
        usage = sdk_usage((run.carried or Carried()).usage)
        wrapper = RunContextWrapper(scope.context.value, usage=usage)
        limits, turns = run.usage_limits, 0
        agent, given, previous = self._beginning(run)
        review, before = Review(run, scope), list[Json]()

        def failed(error: Exception) -> FailedStep:
            label = f"model of {scope.asked.agent if scope.asked else agent.name}, request {scope.turns}"
            return FailedStep("model", scope.path, label, error, partial(_check_limits, scope.turns))

        while True:
            left = _turns(limits)
            try:
                result = await _settled(
                    scope,
                    in_loop(
                        scope,
                        agent,
                        given,
                        context=wrapper,
                        max_turns=None if left is None else left - turns,
                        previous_response_id=previous,
                        auto_previous_response_id=run.auto_previous_response_id,
                        run_config=_run_config(run, self._running.config),
                        hooks=_noting(scope, recorded_run_hooks(self._running.hooks)),
                    ),
                )
            except HistoryIsLongError:
                continuation = self._continuation(run, scope, limits, wrapper, review.left)
                if continuation is not None:
                    return continuation
                scope.is_long = never
                agent, given, previous = self._last_request(scope)
            except _HELPED_BY_ASKING_AGAIN as error:
                retry = await scope.recovery.wait(failed(failure_of(error)))
                limits = {**(limits or {}), **(retry.usage_limits or {})}
                agent, given, previous = self._again(run, error, scope) or (agent, given, previous)
            else:
                if result.interruptions:
                    raise ApplicationError(
                        "The agent ended on calls that nobody may decide.",
                        type=names.AGENT_RUN_FAILED,
                        non_retryable=True,
                    )
                last, proposed = self._agents[result.last_agent.name], written(result.final_output)
                path, said = scope.path_to(last.name), written(result.to_input_list())
                reviewed = await review.of(proposed, path, partial(fitting_output, last, proposed), failed)
                if not reviewed.feedback:
                    break
                limits = {**(limits or {}), **reviewed.limits} or None
                # The answer is kept by its provider: only what comes after it is to be sent.
                kept = result.last_response_id if previous or run.auto_previous_response_id else None
                before = [*before, *said] if kept else []
                wanted = {"role": "user", "content": reviewed.feedback}
                agent, given, previous = last, [wanted] if kept else [*said, wanted], kept
            finally:
                scope.gate.count(usage_of(wrapper.usage, scope.tool_calls))
            turns = scope.turns
            scope.durable[agent.name] = _checked(durable(scope, agent))
        messages = [*before, *said]
        output = RunOutput(
            output=reviewed.output,
            messages=messages,
            new_from=_new_from(run, messages),
            last_response_id=result.last_response_id,
        )
        if run.parent is None:
            return output
        return output.model_copy(update={"last_agent": result.last_agent.name, "deps": scope.context.dump()})

    def _beginning(self, run: RunInput) -> tuple[Agent[Any], Any, str | None]:
        if run.carried is None:
            return self._agent, _input(run), run.previous_response_id
        return self._agents[run.carried.agent], run.message_history, run.carried.previous_response_id

    def _last_request(self, scope: Scope) -> tuple[Agent[Any], Any, str | None]:
        assert scope.asked
        return self._agents[scope.asked.agent], scope.asked.input, scope.asked.previous_response_id

    def _again(self, run: RunInput, error: Exception, scope: Scope) -> tuple[Agent[Any], Any, str | None] | None:
        """Where the run goes on: with the whole conversation when only its turns were used up, or when calls of the
        answer that failed the run were made; otherwise with the last request to the model, without that answer."""
        if scope.asked is None:
            return None
        data = getattr(error, "run_data", None)
        agent, asked, previous = self._last_request(scope)
        answered = scope.answered
        # The answer is kept by its provider: only what came after it is to be sent.
        kept = answered.response.response_id if answered and (previous or run.auto_previous_response_id) else None
        if isinstance(error, MaxTurnsExceeded) and data is not None:
            if not data.new_items:
                return None  # No turn was left: nothing has come of what was given.
            new = [one.to_input_item() for one in data.new_items]
            agent = self._agents[data.last_agent.name]
            if answered and kept:
                return agent, _after(answered, new), kept
            return agent, [*ItemHelpers.input_to_new_input_list(data.input), *new], previous
        if answered is None or not answered.made:
            scope.used_tools = set(scope.asked.used_tools)
            return agent, asked, previous
        if kept:
            return agent, _outcomes(answered), kept
        said = ItemHelpers.input_to_new_input_list(asked)
        return agent, [*said, *answered.response.to_input_items(), *_outcomes(answered)], previous

    def _continuation(
        self,
        run: RunInput,
        scope: Scope,
        limits: dict[str, Json] | None,
        wrapper: RunContextWrapper[Any],
        reviews_left: int | None,
    ) -> Continuation | None:
        """Where the agent stands; None when that is too much for the input of another execution."""
        asked = scope.asked
        assert asked
        said = written(ItemHelpers.input_to_new_input_list(asked.input))
        if len(to_json(said)) + len(run.model_dump_json(exclude={"message_history"})) > LARGEST_INPUT_BYTES:
            return None
        left, calls = _turns(limits), next(scope.calls) - 1
        return Continuation(
            messages=said,
            usage=usage_of(wrapper.usage, scope.tool_calls),
            usage_limits={**(limits or {}), "max_turns": None if left is None else left - scope.turns},
            calls=calls,
            made=scope.still_made(calls),
            new_from=_new_from(run, said),
            agent=asked.agent,
            previous_response_id=asked.previous_response_id,
            used_tools=sorted(asked.used_tools),
            deps=scope.context.dump(),
            reviews_left=reviews_left,
        )


async def _settled(scope: Scope, run: Coroutine[Any, Any, T]) -> T:
    """What the SDK's loop comes to, once the calls that it has given up have settled."""
    try:
        return await run
    except (Exception, asyncio.CancelledError) as error:
        await scope.settle()
        if scope.fatal and isinstance(error, AgentsException):
            raise scope.fatal[0] from None
        raise


def _noting(scope: Scope, hooks: RunHooks[Any] | None) -> RunHooks[Any]:
    """The hooks of a run, which first note what its models are told of their calls."""
    hooks = hooks or RunHooks()
    then = hooks.on_tool_end

    async def on_tool_end(context: Any, agent: Any, tool: Any, result: Any) -> None:
        if scope.answered and isinstance(context, ToolContext):
            scope.answered.told[context.tool_call_id] = result
        await then(context, agent, tool, result)

    hooks.on_tool_end = on_tool_end  # type: ignore[method-assign]
    return hooks


def _after(answered: Answered, items: list[Any]) -> list[Any]:
    """Of a conversation, what calls of its last answer came to."""
    asked = {getattr(item, "call_id", None) or getattr(item, "id", None) for item in answered.response.output}
    return [
        item
        for item in items
        if str(item.get("type")).endswith(("_output", "_response"))
        and (item.get("call_id") or item.get("approval_request_id")) in asked
    ]


def _outcomes(answered: Answered) -> list[Any]:
    """What the model is told of the calls of an answer that failed the run."""
    said: list[Any] = []
    for item in answered.response.output:
        if isinstance(item, ResponseFunctionToolCall):
            of_guardrail = WITHHELD if item.call_id in answered.made else INTERRUPTED
            output = answered.told.get(item.call_id, of_guardrail)
            said.append(ItemHelpers.tool_call_output_item(item, output))
        elif isinstance(item, McpApprovalRequest):
            said.append(
                {
                    "type": "mcp_approval_response",
                    "approval_request_id": item.id,
                    "approve": False,
                    "reason": INTERRUPTED,
                }
            )
    return said


def _checked(agent: Agent[Any]) -> Agent[Any]:
    """The agent without its input guardrails: what it was given was checked when the run began."""
    made = copy.copy(agent)
    made.input_guardrails = []
    return made


def _new_from(run: RunInput, messages: list[Json]) -> int:
    """Where the run's own messages begin. A filter of a handoff may have changed what was before them: then all do."""
    before = run.message_history or []
    known = run.carried.new_from if run.carried else len(before)
    return known if messages[:known] == before[:known] else 0


def _input(run: RunInput) -> Any:
    if run.message_history is None:
        return run.prompt
    said = [{"role": "user", "content": run.prompt}] if isinstance(run.prompt, str) else run.prompt
    return [*run.message_history, *said]


def _named(model: str | Model | None) -> str | None:
    return model if model is None or isinstance(model, str) else OF_ALL


def _run_config(run: RunInput, config: RunConfig) -> RunConfig:
    try:
        settings = _SETTINGS.validate_python(run.model_settings) if run.model_settings else None
    except ValidationError as error:
        # Not `from error`: the cause goes into the history too, and it quotes the input.
        raise _invalid_input(f"The run's model settings do not fit: {problems(error)}") from None
    try:
        check_settings(settings, "The run")
    except MisconfiguredError as error:
        raise _invalid_input(str(error)) from None
    both = settings if config.model_settings is None else config.model_settings.resolve(settings)
    return dataclasses.replace(recorded_config(config), model=None, model_settings=both)


def _turns(limits: dict[str, Json] | None) -> int | None:
    """How many turns a run may take. Raises ApplicationError for limits that there are not."""
    if unknown := sorted(set(limits or ()) - {"max_turns"}):
        raise _invalid_input(f"There are no usage limits {', '.join(unknown)}; there is: max_turns.")
    turns = (limits or {}).get("max_turns", DEFAULT_MAX_TURNS)
    if turns is not None and (not isinstance(turns, int) or isinstance(turns, bool) or turns < 1):
        raise _invalid_input("The usage limit max_turns has to be a whole number from 1 on, or null for none.")
    return turns


def _check_limits(taken: int, new: dict[str, Json], strict: bool) -> None:
    """Raise ValueError for new limits that there are not. strict: also for some that are used up already."""
    try:
        turns = _turns(new)
    except ApplicationError as error:
        raise ValueError(error.message) from error
    if strict and turns is not None and turns <= taken:
        raise ValueError(f"max_turns: {taken} turns were taken already; give more")


def _without_wrapping(error: BaseException) -> BaseException:
    """What a tool's call failed with, without what the SDK says about it."""
    while isinstance(error, UserError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _invalid_input(message: str) -> ApplicationError:
    """The failure of a run whose input its agent cannot take."""
    return ApplicationError(message, type=names.INVALID_INPUT, non_retryable=True)
