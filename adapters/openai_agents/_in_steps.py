"""Agents that the code of a step runs by `Runner.run`: those of the app become runs of their own.

Others may be run by what is no tool, such as a guardrail with a judge of its own. They run right there, and their model
calls count as the run's.
"""

import asyncio
import copy
from collections.abc import Awaitable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from agents import Agent, ModelResponse, RunConfig, RunHooks, RunResult, RunResultStreaming
from agents import Usage as SDKUsage
from agents.models import get_default_model
from agents.run import DEFAULT_MAX_TURNS
from agents.run_internal.run_steps import QueueCompleteSentinel
from agents.run_internal.streaming import stream_step_items_to_queue
from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from interlock.adapters._delegation import Delegation, begin
from interlock.adapters.openai_agents._callbacks import RUN_HOOKS, CallbackResult
from interlock.adapters.openai_agents._context import ContextType, change, changes_of
from interlock.adapters.openai_agents._delegation import current_step
from interlock.adapters.openai_agents._requests import cost_of
from interlock.adapters.openai_agents._scope import usage_of
from interlock.adapters.openai_agents._sub_runs import misconfigured, sub_run_input, sub_run_result, wrapped
from interlock.contracts import names
from interlock.contracts.failures import told
from interlock.contracts.payloads import Json, StepCalls, Usage
from interlock.contracts.ports import Prices


class AgentsInSteps:
    """What the steps of a worker make of the agents that their code runs.

    roots: of the app, by name. agents: all that these reach.
    """

    def __init__(
        self,
        roots: Mapping[str, Agent[Any]],
        agents: Mapping[str, Agent[Any]],
        context: ContextType,
        delegation: Delegation,
        prices: Prices | None,
    ) -> None:
        self.roots = roots
        self.agents = agents
        self.context = context
        self.delegation = delegation
        self.prices = prices

    @contextmanager
    def step(self, run: Mapping[str, Json], *, tool: bool) -> "Iterator[StepAgents]":
        """Mark what runs inside as the code of a step. run: what the step was told of its run. tool: whether it is a
        tool's."""
        begin(run)
        step = StepAgents(self, str(run.get("interlock_step", "")), tool=tool)
        token = current_step.set(step)
        try:
            yield step
        finally:
            current_step.reset(token)
            step.close()


class StepAgents:
    """The agents that one attempt of a step runs.

    used: by the model calls of those that are not the app's, those of the step's attempts before included.
    """

    def __init__(self, app: AgentsInSteps, key: str, *, tool: bool) -> None:
        self._app = app
        self._key = key
        self._tool = tool
        self._loop = asyncio.get_running_loop()
        self._threads: list[Future[Any]] = []
        self._closed = False
        self._asking = asyncio.Lock()
        self.under_way = 0
        self._refused: ApplicationError | None = None
        before = activity.info().heartbeat_details
        self.used = Usage.model_validate(before[0]) if before else Usage()

    def delegates(self, agent: Agent[Any]) -> bool:
        """See `Delegating`."""
        if self._app.roots.get(agent.name) is agent:
            return True
        if not self._tool:
            return False
        known = ", ".join(sorted(self._app.roots))
        if agent.name in self._app.roots:
            raise misconfigured(
                f"Agent {agent.name!r} is run by a tool but is another object than the app's agent of that name. Run "
                "the one that was given to Interlock(agents=[...])."
            )
        raise misconfigured(
            f"Agent {agent.name!r} is run by a tool but is not one of this worker's agents ({known}). "
            "Add it to Interlock(agents=[...])."
        )

    async def delegate(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResult:
        """See `Delegating`."""
        if asyncio.get_running_loop() is not self._loop:  # A tool in a thread has a loop of its own.
            return await asyncio.wrap_future(self._from_thread(agent, input, options))
        app, context = self._app, wrapped(options).context
        deps = None if context is None else app.context.dump(context)
        given = copy.copy(input)
        output = await app.delegation.run(agent.name, sub_run_input(agent, given, options, deps))
        if output.deps is not None:
            change(app.context, context, deps, changes_of(deps, output.deps), f"Agent {agent.name!r}")
        return sub_run_result(agent, app.agents, given, options, output)

    def delegate_sync(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResult:
        """See `Delegating`."""
        return self._from_thread(agent, input, options).result()

    def _from_thread(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> "Future[RunResult]":
        waiting = asyncio.run_coroutine_threadsafe(self.delegate(agent, input, options), self._loop)
        self._threads.append(waiting)
        if self._closed:
            waiting.cancel()
        return waiting

    def delegate_streamed(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResultStreaming:
        """See `Delegating`."""
        result = RunResultStreaming(
            input=input,
            new_items=[],
            raw_responses=[],
            final_output=None,
            input_guardrail_results=[],
            output_guardrail_results=[],
            tool_input_guardrail_results=[],
            tool_output_guardrail_results=[],
            context_wrapper=wrapped(options),
            current_agent=agent,
            current_turn=0,
            max_turns=options.get("max_turns", DEFAULT_MAX_TURNS),
            _current_agent_output_schema=None,
            trace=None,
        )

        async def follow() -> None:
            try:
                done = await self.delegate(agent, input, {**options, "context": result.context_wrapper})
                result.new_items, result.final_output = done.new_items, done.final_output
                result.current_agent = done.last_agent
                stream_step_items_to_queue(done.new_items, result._event_queue)
            finally:
                result.is_complete = True
                result._event_queue.put_nowait(QueueCompleteSentinel())

        result.run_loop_task = asyncio.create_task(follow())
        return result

    def counted(self, options: Mapping[str, Any]) -> "_Counted":
        """See `Delegating`."""
        return _Counted(self, options)

    async def begin(self) -> None:
        """A model call is about to begin. Raises ApplicationError when the budget of the run does not let it."""
        async with self._asking:
            if self._key and self._refused is None:
                self._refused = await _why_refused(StepCalls(step=self._key, used=self.used, calls=self.under_way + 1))
            if self._refused is not None:
                raise self._refused
            self.under_way += 1

    def count(self, model: str, usage: SDKUsage) -> None:
        """A model has answered."""
        cost = cost_of(model, usage, self._app.prices)
        priced = {"unpriced": 1} if cost is None else {"cost_usd": cost}
        self.used += usage_of(usage, 0).model_copy(update={"requests": 1, **priced})
        activity.heartbeat(self.used.model_dump(mode="json"))  # For the next attempt, should this one fail.

    async def ended(self, making: Awaitable[CallbackResult]) -> CallbackResult:
        """The result of the step, or its failure, with what the model calls in it have used."""
        error: Exception | None = None
        try:
            result = await making
        except Exception as raised:
            error = raised
        # The user's code may have taken the refusal for an error of its judge.
        if (error := self._refused or error) is not None:
            raise _with_usage(error, self.used) from error.__cause__
        return result.model_copy(update={"usage": self.used}) if self.used.requests else result

    def close(self) -> None:
        """The attempt is over: threads of it wait no longer."""
        self._closed = True
        for waiting in self._threads:
            waiting.cancel()


class _Counted:
    """See `Counted`."""

    def __init__(self, step: StepAgents, options: Mapping[str, Any]) -> None:
        self._step = step
        self._under_way = 0
        config = options.get("run_config") or RunConfig()
        self._model = config.get("model") if isinstance(config, dict) else config.model
        self.options = {**options, "hooks": self._hooks(options.get("hooks") or RunHooks())}

    def close(self, *_: object) -> None:
        """See `Counted`."""
        self._step.under_way -= self._under_way
        self._under_way = 0

    def _hooks(self, hooks: RunHooks[Any]) -> RunHooks[Any]:
        made: Any = RunHooks()
        for name in RUN_HOOKS:
            setattr(made, name, getattr(hooks, name))

        async def on_llm_start(*given: Any) -> None:
            await self._step.begin()
            self._under_way += 1
            await hooks.on_llm_start(*given)

        async def on_llm_end(context: Any, agent: Agent[Any], response: ModelResponse) -> None:
            self._step.under_way -= 1
            self._under_way -= 1
            self._step.count(self._name(agent), response.usage)
            await hooks.on_llm_end(context, agent, response)

        made.on_llm_start, made.on_llm_end = on_llm_start, on_llm_end
        return made  # type: ignore[no-any-return]

    def _name(self, agent: Agent[Any]) -> str:
        model = self._model or agent.model or get_default_model()
        return model if isinstance(model, str) else str(getattr(model, "model", ""))


async def _why_refused(asked: StepCalls) -> ApplicationError | None:
    info = activity.info()
    run = activity.client().get_workflow_handle(str(info.workflow_id), run_id=info.workflow_run_id)
    try:
        if await run.execute_update(names.BEGIN_MODEL_CALL, asked, result_type=bool):
            return None
    except WorkflowUpdateFailedError as error:
        if not isinstance(cause := error.cause, ApplicationError):
            raise
        return ApplicationError(cause.message, type=cause.type, non_retryable=True)
    return ApplicationError(
        "The budget of the run has no room for another model call.", type=names.NO_ROOM, non_retryable=True
    )


def _with_usage(error: Exception, used: Usage) -> Exception:
    """The failure of an attempt, with what its model calls have used."""
    if used == Usage():
        return error
    spent = used.model_dump(mode="json")
    if not isinstance(error, ApplicationError):
        what = told(error)
        return ApplicationError(what.message, spent, type=what.type)
    final, later = error.non_retryable, error.next_retry_delay
    return ApplicationError(error.message, spent, type=error.type, non_retryable=final, next_retry_delay=later)
