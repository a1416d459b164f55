"""Cancelling: in whatever a run is at, it ends as cancelled, takes its requests back and leaves nothing at work."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.common import RetryPolicy

from interlock import Interlock, RefusedError, Run, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.client import Client
from interlock.server import EmbeddedServer
from interlock.settings import Settings
from interlock.testing import RunningApp, eventually
from interlock.worker import run_worker
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

CALL = [call("work", "a", order="A-1")]


class Diary:
    """What the user's code in the activities did: how often it began, and how often it was done cleaning up."""

    def __init__(self) -> None:
        self.begun = 0
        self.cleaned = 0

    async def wait(self) -> None:
        self.begun += 1
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            self.cleaned += 1

    async def has_begun(self) -> bool:
        return self.begun > 0

    async def is_over(self) -> bool:
        return self.cleaned == self.begun


def tool_that(work: Callable[..., Any], **options: Any) -> Agent[Any, Any]:
    return agent(Script(CALL, "done"), name=inspect.stack()[1].function, tools=[Tool(work, name="work", **options)])


def in_a_tool(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> None:
        await diary.wait()

    return tool_that(work)


def in_a_tool_that_swallows_it(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> str:
        try:
            await diary.wait()
        except asyncio.CancelledError:
            return "as if nothing had been"
        return order

    return tool_that(work)


def in_a_tool_that_takes_its_time(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> str:
        diary.begun += 1
        for _ in range(30):
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue
        diary.cleaned += 1
        return order

    return tool_that(work)


def in_a_tool_that_fails_then(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> None:
        try:
            await diary.wait()
        except asyncio.CancelledError:
            raise LookupError("while cleaning up") from None

    return tool_that(work)


def in_a_plain_function(diary: Diary) -> Agent[Any, Any]:
    def work(order: str) -> str:
        diary.begun += 1
        time.sleep(1.5)
        diary.cleaned += 1
        return order

    return tool_that(work)


def in_a_tool_in_the_workflow(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> None:
        diary.begun = diary.cleaned = 1
        await asyncio.sleep(60)

    return tool_that(work, metadata={"temporal": False})


def in_the_model(diary: Diary) -> Agent[Any, Any]:
    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await diary.wait()
        return ModelResponse(parts=[])

    return Agent(FunctionModel(answer, model_name="slow"), name="in_the_model", capabilities=[Durable()])


def in_a_judge(diary: Diary) -> Agent[Any, Any]:
    async def judge(ctx: RunContext[Any], requests: Any) -> None:
        await diary.wait()

    tools = [Tool(lambda order: order, name="work", requires_approval=True)]
    capabilities = [HandleDeferredToolCalls(judge)]
    return agent(Script(CALL, "done"), name="in_a_judge", tools=tools, capabilities=capabilities)


def in_a_hook_that_swallows_it(diary: Diary) -> Agent[Any, Any]:
    class Hook(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            diary.begun = diary.cleaned = 1
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return request_context

    return agent(Script("done"), name="in_a_hook_that_swallows_it", capabilities=[Hook()])


def before_another_attempt(diary: Diary) -> Agent[Any, Any]:
    def work(order: str) -> None:
        diary.begun = diary.cleaned = 1
        raise OSError("again")

    policy = RetryPolicy(initial_interval=timedelta(seconds=60))
    return tool_that(work, metadata={"temporal": {"retry_policy": policy}})


def in_parallel(diary: Diary) -> Agent[Any, Any]:
    async def work(order: str) -> None:
        await diary.wait()

    script = Script([*CALL, call("work", "b", order="B"), call("gated", "c"), call("swallows", "d")], "done")

    async def swallows() -> str:
        with suppress(asyncio.CancelledError):
            await diary.wait()
        return "fine"

    gated = Tool(lambda: "paid", name="gated", requires_approval=True)
    return agent(script, name="in_parallel", tools=[Tool(work, name="work"), gated, swallows])


AT_WORK = [
    in_a_tool,
    in_a_tool_that_swallows_it,
    in_a_tool_that_takes_its_time,
    in_a_tool_that_fails_then,
    in_a_plain_function,
    in_a_tool_in_the_workflow,
    in_the_model,
    in_a_judge,
    in_a_hook_that_swallows_it,
    before_another_attempt,
    in_parallel,
]


async def cancelled(app: RunningApp, run: Run, *, times: int = 1) -> None:
    """Cancel the run. It is over at once, on a busy machine within a minute, and in good order."""
    handle = app.client.temporal.get_workflow_handle(run.id)
    for _ in range(times):
        await handle.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(RunFailedError) as error:
            await run.result()
    assert error.value.status == "cancelled", run.id
    assert failed_tasks(await handle.fetch_history()) == [], run.id


async def has_withdrawn(run: Run, requests: int) -> None:
    state = await run.state()
    assert state.requests == []
    assert [one.outcome for one in state.settled[-requests:]] == ["withdrawn"] * requests


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
async def test_a_cancelled_run_ends_and_what_it_was_at_cleans_up(run_app: Running, times: int) -> None:
    diaries = [Diary() for _ in AT_WORK]
    agents = [place(diary) for place, diary in zip(AT_WORK, diaries, strict=True)]

    async def cancel(place: Agent[Any, Any], diary: Diary) -> None:
        run = await app.client.start(str(place.name), "go")
        await eventually(diary.has_begun)
        await cancelled(app, run, times=times)
        await eventually(diary.is_over)

    async with run_app(Interlock(agents)) as app:
        await asyncio.gather(*(cancel(place, diary) for place, diary in zip(agents, diaries, strict=True)))


def gated(name: str = "support") -> Agent[Any, Any]:
    tools = [Tool(lambda order: order, name="work", requires_approval=True)]
    return agent(Script([*CALL, call("work", "b", order="B")], "done"), name=name, tools=tools)


async def test_cancelling_withdraws_every_request(run_app: Running) -> None:
    async with run_app(Interlock([gated()])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 2)
        await cancelled(app, run)

        await has_withdrawn(run, 2)
        with pytest.raises(RefusedError, match="is cancelled: it waits for nothing"):
            await run.decide("1", "approve")


async def test_cancelling_withdraws_a_call_for_a_result(run_app: Running) -> None:
    async def elsewhere(order: str) -> str:
        raise CallDeferred

    async with run_app(Interlock([agent(Script(CALL, "done"), tools=[Tool(elsewhere, name="work")])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await cancelled(app, run)

        await has_withdrawn(run, 1)


async def test_a_run_that_is_about_to_ask_can_be_cancelled(run_app: Running) -> None:
    in_line, modelling, tooling = asyncio.Event(), Diary(), Diary()

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await in_line.wait()
        return ModelResponse(parts=CALL)

    tools = [Tool(lambda order: order, name="work", requires_approval=True)]
    asks = Agent(FunctionModel(answer, model_name="waiting"), name="asks", tools=tools, capabilities=[Durable()])
    others = [in_a_tool(tooling), in_the_model(modelling)]
    async with run_app(Interlock([asks, *others], settings=Settings(max_concurrent_activities=2))) as app:
        run = await app.client.start("asks", "go")
        busy = await app.client.start("in_a_tool", "go")
        await eventually(tooling.has_begun)
        waiting = await app.client.start("in_the_model", "go")
        await eventually(lambda: pending(app, waiting, ["agent__in_the_model__model_request"]))
        in_line.set()  # The other model call is the next in line, so the step that describes the tool finds no slot.
        await eventually(lambda: pending(app, run, ["describe_tool"]))
        await cancelled(app, run)
        await cancelled(app, busy)
        await cancelled(app, waiting)

        assert (await run.state()).requests == []


async def pending(app: RunningApp, run: Run, activities: list[str]) -> bool:
    """Whether these activities of the run, and no others, are scheduled or at work."""
    description = await app.client.temporal.get_workflow_handle(run.id).describe()
    return [one.activity_type.name for one in description.raw_description.pending_activities] == activities


def with_an_agent_in_its_tool(inner: Agent[Any, Any], metadata: Any = None) -> Agent[Any, Any]:
    async def delegate(order: str) -> Any:
        return (await inner.run("go")).output

    return agent(Script(CALL, "done"), name="outer", tools=[Tool(delegate, name="work", metadata=metadata)])


async def inner_run(app: RunningApp, run: Run) -> Run:
    """The run of the agent in the tool, once it has asked."""
    state = await app.state(run, lambda state: bool(state.sub_runs))
    inner = app.client.attach(state.sub_runs[0].workflow_id)
    await app.requests(inner, 2)
    return inner


async def test_terminating_a_run_cancels_the_runs_of_the_agents_in_its_tools(run_app: Running) -> None:
    inner = gated("inner")
    async with run_app(Interlock([with_an_agent_in_its_tool(inner), inner])) as app:
        run = await app.client.start("outer", "go")
        below = await inner_run(app, run)
        await app.client.temporal.get_workflow_handle(run.id).terminate()

        async def is_over() -> bool:
            return (await below.report()).status == "cancelled"

        await eventually(is_over)


async def test_an_answer_and_a_cancel_at_once_give_one_end(run_app: Running) -> None:
    def work(order: str) -> str:
        return order

    tools = [Tool(work, name="work", requires_approval=True)]
    async with run_app(Interlock([agent(Script(CALL, "done"), tools=tools)])) as app:
        runs = [await app.client.start("support", "go") for _ in range(10)]
        for run in runs:
            await app.requests(run, 1)

        async def both(run: Run, pause_seconds: float) -> str:
            answer = asyncio.create_task(run.decide("1", "approve"))
            await asyncio.sleep(pause_seconds)
            with suppress(RefusedError):
                await run.cancel()
            with suppress(RefusedError):
                await answer
            with suppress(RunFailedError):
                await run.result()
            return (await run.report()).status

        ends = await asyncio.gather(*(both(run, n * 0.01) for n, run in enumerate(runs)))
        assert set(ends) <= {"completed", "cancelled"}


@pytest.mark.parametrize("max_cached_workflows", [1_000, 0], ids=["cached", "uncached"])
async def test_a_run_that_is_cancelled_while_its_worker_stops_ends_on_the_next(
    server: EmbeddedServer, max_cached_workflows: int
) -> None:
    diary = Diary()
    app = Interlock([in_a_tool(diary)], settings=Settings(graceful_shutdown_seconds=0.2))
    client = await Client.connect(server.address, task_queue=f"restarted-{id(diary)}")
    async with working(app, client, max_cached_workflows=max_cached_workflows) as stop:
        run = await client.start("in_a_tool", "go")
        await eventually(diary.has_begun)
        stop.set()
        await run.cancel()
    async with working(app, client, max_cached_workflows=max_cached_workflows):
        await cancelled(RunningApp(client, server), run)

    assert diary.cleaned == diary.begun


@asynccontextmanager
async def working(app: Interlock, client: Client, **options: Any) -> AsyncIterator[asyncio.Event]:
    """A worker until it is left, or until the event is set."""
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(app, client, stop, **options))
    try:
        yield stop
    finally:
        stop.set()
        await worker
