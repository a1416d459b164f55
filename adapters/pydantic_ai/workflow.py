"""The deterministic half: runs a pydantic-ai agent in a workflow."""

import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.exceptions import AgentRunError, RunCancelled
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.run import AgentRunResult
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_core import to_json
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

from interlock._failures import ended_by, failure_of
from interlock.adapters._calls import LARGEST_INPUT_BYTES, HistoryIsLongError, keys_of, never
from interlock.adapters._review import Review
from interlock.adapters.pydantic_ai._json import MESSAGES, PROMPT, as_json, output_adapter, type_name
from interlock.adapters.pydantic_ai._scope import Scope, current_scope, run_usage, usage_of
from interlock.contracts import names
from interlock.contracts.failures import place, problems
from interlock.contracts.payloads import Json, RunInput, RunOutput
from interlock.contracts.ports import Continuation, FailedStep, Gate, Recovery
from interlock.retries import Retries

_LIMITS: TypeAdapter[UsageLimits] = TypeAdapter(UsageLimits)
_LEAST: dict[str, Callable[[RunUsage], int]] = {
    "request_limit": lambda used: used.requests + 1,
    "tool_calls_limit": lambda used: used.tool_calls,
    "input_tokens_limit": lambda used: used.input_tokens + 1,
    "output_tokens_limit": lambda used: used.output_tokens + 1,
    "total_tokens_limit": lambda used: used.total_tokens + 1,
    "per_request_input_tokens_limit": lambda used: 1,
}
"""From which limit on the model can be asked once more."""


class Runner:
    """Runs one agent in a workflow.

    judged: whether the agent has handlers that are asked before a person. hooked: whether it has hooks that take the
    errors of its tools.
    """

    framework = "pydantic-ai"

    def __init__(self, agent: Agent[Any, Any], retries: Retries, *, judged: bool, hooked: bool) -> None:
        self._agent = agent
        self._retries = retries
        self._judged = judged
        self._hooked = hooked
        self._deps: TypeAdapter[Any] = TypeAdapter(agent.deps_type)
        self._outputs = output_adapter(agent.output_type)

    async def run(
        self, run: RunInput, gate: Gate, recovery: Recovery, is_long: Callable[[], bool]
    ) -> RunOutput | Continuation:
        """See `AgentRunner`."""
        arguments = self._arguments(run)
        scope = Scope(
            gate=gate,
            recovery=recovery,
            retries=self._retries,
            path=(*(run.parent.agent_path if run.parent else ()), run.agent),
            judged=self._judged,
            hooked=self._hooked,
            fork=run.fork,
            is_long=is_long,
            **keys_of(run),
            spent=[arguments["usage"]],
        )
        token = current_scope.set(scope)
        task = asyncio.current_task()
        try:
            return await self._to_its_end(run, arguments, scope)
        except BaseException as error:
            if (failure := ended_by(error, task)) is error:
                raise
            raise failure from None
        finally:
            scope.count()
            current_scope.reset(token)

    async def _to_its_end(self, run: RunInput, arguments: dict[str, Any], scope: Scope) -> RunOutput | Continuation:
        limits = run.usage_limits or {}
        review = Review(run, scope)

        def failed(failure: Exception) -> FailedStep:
            label = f"model of {run.agent}, request {arguments['usage'].requests + 1}"
            return FailedStep("model", scope.path, label, failure, partial(_check_limits, limits, arguments["usage"]))

        while True:
            failure: FailureError | None = None
            result: AgentRunResult[Any] | None = None
            with capture_run_messages() as messages:
                try:
                    result = await self._agent.run(**arguments)
                except HistoryIsLongError:
                    continuation = _continuation(run, messages, scope, limits, review.left)
                    if continuation is not None:
                        return continuation
                    scope.is_long = never
                except (AgentRunError, ActivityError) as error:
                    if not _helped_by_asking_again(error, scope):
                        raise
                    failure = error if isinstance(error, ActivityError) else failure_of(error)
            if result is not None:
                reviewed = await review.of(as_json(result.output), scope.path, self._fitting, failed)
                if not reviewed.feedback:
                    return _output(run, reviewed.output, result.all_messages())
                limits = {**limits, **reviewed.limits}
                arguments["usage_limits"] = _limits(limits)
                arguments["message_history"] = result.all_messages()
                arguments["user_prompt"] = reviewed.feedback
                continue
            if failure is not None:
                retry = await scope.recovery.wait(failed(failure))
                limits = {**limits, **(retry.usage_limits or {})}
                arguments["usage_limits"] = _limits(limits)
            if messages:
                arguments["message_history"] = _up_to_last_request(messages)
                arguments["user_prompt"] = None

    def _arguments(self, run: RunInput) -> dict[str, Any]:
        if run.previous_response_id is not None or run.auto_previous_response_id:
            raise _invalid_input(
                "Agents of pydantic-ai take no previous_response_id: it is a setting of their model, such as "
                "`openai_previous_response_id`."
            )
        usage = run_usage(run.carried.usage) if run.carried else RunUsage()
        try:
            return {
                "user_prompt": None if run.carried else _prompt(run),
                "deps": self._validated_deps(run.deps),
                "message_history": MESSAGES.validate_python(run.message_history) if run.message_history else None,
                "model": run.model,
                "model_settings": run.model_settings,
                "usage_limits": _limits(run.usage_limits),
                "usage": usage,
            }
        except ValidationError as error:
            # Not `from error`: the cause goes into the history too, and it quotes the input.
            raise _invalid_input(f"The run's input does not fit agent {run.agent!r}: {problems(error)}") from None

    def _fitting(self, output: Json) -> Json:
        """An output that somebody else gives, as the agent would have given it. Raises ValueError when it is none."""
        try:
            return as_json(self._outputs.validate_json(to_json(output)))
        except BaseException as error:  # A validator of the user's own may raise anything.
            raise ValueError(_unfit(error)) from None

    def _validated_deps(self, deps: Json) -> Any:
        if self._agent.deps_type in (object, type(None)):
            if deps is not None:
                raise _invalid_input(f"Agent {self._agent.name!r} takes no dependencies (deps), but some were given.")
            return None
        try:
            return self._deps.validate_json(to_json(deps))
        except BaseException as error:  # A validator of the user's own may raise anything.
            raise _invalid_input(
                f"The dependencies (deps) do not fit {type_name(self._agent.deps_type)} "
                f"of agent {self._agent.name!r}: {_unfit(error)}"
            ) from None


def _unfit(error: BaseException) -> str:
    return problems(error) if isinstance(error, ValidationError) else f"{type(error).__name__} {place(error)}".rstrip()


def _output(run: RunInput, output: Json, messages: list[ModelMessage]) -> RunOutput:
    written = MESSAGES.dump_python(messages, mode="json")
    return RunOutput(output=output, messages=written, new_from=_new_from(run, messages))


def _continuation(
    run: RunInput, messages: list[ModelMessage], scope: Scope, limits: dict[str, Json], reviews_left: int | None
) -> Continuation | None:
    """Where the agent stands; None when that is too much for the input of another execution."""
    written = MESSAGES.dump_python(messages, mode="json")
    if len(to_json(written)) + len(run.model_dump_json(exclude={"message_history"})) > LARGEST_INPUT_BYTES:
        return None
    calls = next(scope.calls) - 1
    return Continuation(
        messages=written,
        usage=usage_of(scope.spent),
        usage_limits=limits or None,
        calls=calls,
        made=scope.still_made(calls),
        new_from=_new_from(run, messages),
        reviews_left=reviews_left,
    )


def _new_from(run: RunInput, messages: list[ModelMessage]) -> int:
    """How many messages are from before the run. Told by the framework's ids of agent runs: a hook may have shortened
    what came before, and there may be several agent runs in one run of ours."""
    given = run.message_history or []
    earlier = given[: run.carried.new_from] if run.carried else given
    before = {one.get("run_id") for one in earlier if isinstance(one, dict)}
    own = (place for place, one in enumerate(messages) if one.run_id is not None and one.run_id not in before)
    return next(own, len(messages))


def _up_to_last_request(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The conversation without an answer that failed the run. Where calls of that answer have run it stays: the
    framework has put a request behind it, with what they returned."""
    last = messages[-1]
    answered = isinstance(last, ModelResponse) and last.state != "suspended"
    return messages[:-1] if answered else list(messages)


def _prompt(run: RunInput) -> Any:
    return run.prompt if isinstance(run.prompt, str) else PROMPT.validate_python(run.prompt)


def _helped_by_asking_again(error: AgentRunError | ActivityError, scope: Scope) -> bool:
    """Whether the model's answers failed the run, or it gave none; not a cancellation, nor what was kept already."""
    if isinstance(error, RunCancelled) or is_cancelled_exception(error):
        return False
    return not any(error is one for one in scope.over)


def _check_limits(limits: dict[str, Json], used: RunUsage, new: dict[str, Json], strict: bool) -> None:
    """Raise ValueError for new limits that the framework does not take; strict: or that would end the run at once."""
    try:
        _limits({**limits, **new})
    except ValidationError as error:
        raise ValueError(problems(error)) from error
    except ApplicationError as error:
        raise ValueError(error.message) from error
    for name, limit in {**limits, **new}.items() if strict else ():
        if limit is None or name not in _LEAST:
            continue
        least = _LEAST[name](used)
        if isinstance(limit, bool) or not isinstance(limit, int | float | str) or float(limit) < least:
            raise ValueError(f"{name} is {to_json(limit).decode()}; it has to be a number of at least {least:,}")


def _limits(given: dict[str, Json] | None) -> UsageLimits | None:
    known = [field.name for field in dataclasses.fields(UsageLimits)]
    if unknown := sorted(set(given or ()) - set(known)):
        raise _invalid_input(f"There are no usage limits {', '.join(unknown)}; there are: {', '.join(known)}.")
    return _LIMITS.validate_python(given) if given else None


def _invalid_input(message: str) -> ApplicationError:
    """The failure of a run whose input its agent cannot take."""
    return ApplicationError(message, type=names.INVALID_INPUT, non_retryable=True)
