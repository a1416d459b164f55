"""`Runner.run` inside a run: the agent that is run there belongs to it."""

import asyncio
import dataclasses
from contextlib import nullcontext
from typing import Any

from agents import Agent, AgentsException, RunConfig
from agents.run import AgentRunner, get_default_agent_runner, set_default_agent_runner
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from interlock.adapters._calls import placed
from interlock.adapters.openai_agents._agents import durable
from interlock.adapters.openai_agents._delegation import step_here
from interlock.adapters.openai_agents._graph import check_options
from interlock.adapters.openai_agents._scope import Scope, current_scope, ending, entered, inner
from interlock.adapters.openai_agents._settings import for_loop
from interlock.adapters.openai_agents._traces import traced
from interlock.contracts.errors import MisconfiguredError

_LOOP = AgentRunner()
"""The SDK's own loop."""


class InterlockRunner(AgentRunner):
    """Runs agents that the workflow code of a run runs, such as those behind `Agent.as_tool`, as parts of it, and those
    that the code of its steps runs as `AgentsInSteps` says.

    Everywhere else it is the runner that was there before.
    """

    def __init__(self, before: AgentRunner) -> None:
        self._before = before

    async def run(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        """See `Runner.run`."""
        if (step := step_here()) is not None:
            if step.delegates(starting_agent):
                return await step.delegate(starting_agent, input, options)
            counted = step.counted(options)
            try:
                return await self._before.run(starting_agent, input, **counted.options)
            finally:
                counted.close()
        scope = current_scope.get() if workflow.in_workflow() else None
        if scope is None:
            return await self._before.run(starting_agent, input, **options)
        here = inner(scope, starting_agent.name)
        with ending(scope), entered(here), placed(here.at) if here.by_answer else nullcontext():
            _check_session(starting_agent, options)
            try:
                return await in_loop(here, starting_agent, input, **options)
            except ActivityError as error:
                # The tool's error function tells the outer model; Temporal's own words say nothing.
                raise AgentsException(f"Agent {starting_agent.name!r} failed: {error.cause or error}") from error

    def run_sync(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        """See `Runner.run_sync`."""
        if (step := step_here()) is not None and _is_free():
            if step.delegates(starting_agent):
                return step.delegate_sync(starting_agent, input, options)
            counted = step.counted(options)
            try:
                return self._before.run_sync(starting_agent, input, **counted.options)
            finally:
                counted.close()
        return self._before.run_sync(starting_agent, input, **options)

    def run_streamed(self, starting_agent: Agent[Any], input: Any, **options: Any) -> Any:
        """See `Runner.run_streamed`. Inside a run each model answer comes as one event."""
        if (step := step_here()) is not None:
            if step.delegates(starting_agent):
                return step.delegate_streamed(starting_agent, input, options)
            counted = step.counted(options)
            result = self._before.run_streamed(starting_agent, input, **counted.options)
            if result.run_loop_task is not None:
                result.run_loop_task.add_done_callback(counted.close)
            return result
        scope = current_scope.get() if workflow.in_workflow() else None
        if scope is None:
            return self._before.run_streamed(starting_agent, input, **options)
        here = inner(scope, starting_agent.name)
        # The loop's task takes the context along.
        with ending(scope), entered(here), placed(here.at) if here.by_answer else nullcontext():
            _check_session(starting_agent, options)
            return _LOOP.run_streamed(durable(here, starting_agent), input, **_quiet(options))


async def in_loop(scope: Scope, agent: Agent[Any], input: Any, **options: Any) -> Any:
    """Run an agent in the SDK's own loop, with everything of it recorded."""
    return await _LOOP.run(durable(scope, agent), input, **_quiet(options))


def install() -> None:
    """Have this process's `Runner` know of runs. Outside of a run it does what it did."""
    before = get_default_agent_runner()
    if not isinstance(before, InterlockRunner):
        set_default_agent_runner(InterlockRunner(before))


def _is_free() -> bool:
    """Whether this thread has no event loop at work, as `run_sync` wants it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _quiet(options: dict[str, Any]) -> dict[str, Any]:
    """The options without what steps do, and without the SDK's own traces, unless a worker was told to send them."""
    config = options.get("run_config") or RunConfig()
    config = RunConfig(**config) if isinstance(config, dict) else config
    settings = for_loop(config.model_settings) if config.model_settings else None
    return {
        **options,
        "run_config": dataclasses.replace(config, tracing_disabled=not traced(), model_settings=settings),
    }


def _check_session(agent: Agent[Any], options: dict[str, Any]) -> None:
    try:
        check_options(agent.name, options)
    except MisconfiguredError as error:
        raise ApplicationError(str(error), type=MisconfiguredError.__name__, non_retryable=True) from None
