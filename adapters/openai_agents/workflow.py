"""The deterministic half: runs an agent of the OpenAI Agents SDK in a workflow."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from agents import (
    Agent,
    ItemHelpers,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.run import DEFAULT_MAX_TURNS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError

from interlock._failures import ended_by, failure_of
from interlock.adapters._calls import HistoryIsLongError, never
from interlock.adapters.openai_agents._context import Context, ContextType
from interlock.adapters.openai_agents._runner import in_loop
from interlock.adapters.openai_agents._scope import Scope, entered, usage_of
from interlock.contracts import names
from interlock.contracts.failures import problems
from interlock.contracts.payloads import Carried, Json, RunInput, RunOutput
from interlock.contracts.ports import Continuation, FailedStep, Gate, Recovery
from interlock.retries import Retries

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
    """Runs one agent, and those it hands over to, in a workflow. agents: all that it reaches, by name."""

    def __init__(
        self, agent: Agent[Any], agents: Mapping[str, Agent[Any]], context: ContextType, retries: Retries
    ) -> None:
        self._agent = agent
        self._agents = agents
        self._context = context
        self._retries = retries

    async def run(
        self, run: RunInput, gate: Gate, recovery: Recovery, is_long: Callable[[], bool]
    ) -> RunOutput | Continuation:
        """See `AgentRunner`."""
        carried = run.carried or Carried()
        scope = Scope(
            gate=gate,
            recovery=recovery,
            retries=self._retries,
            path=(*(run.parent.agent_path if run.parent else ()), run.agent),
            fork=run.fork,
            key_root=carried.key_root or (run.fork.key_root if run.fork else ""),
            is_long=is_long,
            calls=count(carried.calls + 1),
            context=Context(self._context, run.deps),
            agents=self._agents,
            model=run.model,
        )
        task = asyncio.current_task()
        try:
            with entered(scope):
                return await self._to_its_end(run, scope)
        except BaseException as error:
            if (failure := ended_by(error, task)) is error:
                raise
            raise failure from None

    async def _to_its_end(self, run: RunInput, scope: Scope) -> RunOutput | Continuation:
        wrapper = RunContextWrapper(scope.context.value)
        agent, given, options = self._agent, _input(run), {"run_config": _run_config(run)}
        limits = run.usage_limits
        before = 0
        while True:
            try:
                left = _turns(limits)
                result = await in_loop(
                    scope,
                    agent,
                    given,
                    context=wrapper,
                    max_turns=None if left is None else left - before,
                    **options,
                )
                break
            except _HELPED_BY_ASKING_AGAIN as error:
                label = f"model of {scope.asked.agent if scope.asked else agent.name}, request {scope.turns}"
                step = FailedStep("model", scope.path, label, failure_of(error), lambda new: _turns(new))
                retry = await scope.recovery.wait(step)
                limits = {**(limits or {}), **(retry.usage_limits or {})}
                agent, given = self._again(error, scope, agent, given)
                before = scope.turns
            finally:
                gate_usage = usage_of(wrapper.usage, 0)
                scope.gate.count(gate_usage)
        if result.interruptions:
            raise ApplicationError(
                "The agent ended on calls that nobody may decide.", type=names.AGENT_RUN_FAILED, non_retryable=True
            )
        return RunOutput(output=_as_json(result.final_output), messages=_as_json(result.to_input_list()))

    def _again(self, error: Exception, scope: Scope, agent: Agent[Any], given: Any) -> tuple[Agent[Any], Any]:
        """Where the run goes on: with the whole conversation when only its turns were used up, otherwise with the last
        request to the model, without the answer that failed the run."""
        asked = scope.asked
        if asked is None:
            return agent, given
        found = self._agents[asked.agent]
        data = getattr(error, "run_data", None)
        if isinstance(error, MaxTurnsExceeded) and data is not None:
            found = self._agents[data.last_agent.name]
            given = [*ItemHelpers.input_to_new_input_list(data.input), *(one.to_input_item() for one in data.new_items)]
        else:
            given = asked.input
        # The input was checked when the run began.
        return dataclasses.replace(found, input_guardrails=[]), given


def _input(run: RunInput) -> Any:
    if run.message_history is None:
        return run.prompt
    said = [{"role": "user", "content": run.prompt}] if isinstance(run.prompt, str) else run.prompt
    return [*run.message_history, *said]


def _run_config(run: RunInput) -> RunConfig:
    try:
        settings = _SETTINGS.validate_python(run.model_settings) if run.model_settings else None
    except ValidationError as error:
        # Not `from error`: the cause goes into the history too, and it quotes the input.
        raise _invalid_input(f"The run's model settings do not fit: {problems(error)}") from None
    return RunConfig(model_settings=settings)


def _turns(limits: dict[str, Json] | None) -> int | None:
    """How many turns a run may take. Raises ApplicationError for limits that there are not."""
    if unknown := sorted(set(limits or ()) - {"max_turns"}):
        raise _invalid_input(f"There are no usage limits {', '.join(unknown)}; there is: max_turns.")
    turns = (limits or {}).get("max_turns", DEFAULT_MAX_TURNS)
    if turns is not None and (not isinstance(turns, int) or isinstance(turns, bool) or turns < 1):
        raise _invalid_input("The usage limit max_turns has to be a whole number from 1 on, or null for none.")
    return turns


def _as_json(value: Any) -> Any:
    try:
        return from_json(to_json(value))
    except ValueError as error:
        raise ApplicationError(
            f"A value of type {type(value).__name__} cannot be written as JSON: {error}",
            type=names.AGENT_RUN_FAILED,
            non_retryable=True,
        ) from error


def _invalid_input(message: str) -> ApplicationError:
    """The failure of a run whose input its agent cannot take."""
    return ApplicationError(message, type=names.INVALID_INPUT, non_retryable=True)


__all__ = ["HistoryIsLongError", "Runner", "never"]
