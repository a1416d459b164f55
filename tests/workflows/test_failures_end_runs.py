"""No run is left alone with a workflow task that fails again and again: it ends, with a type and where that arose."""

import asyncio
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator
from pydantic_ai import Tool
from pydantic_ai.capabilities import AbstractCapability

from interlock import Interlock, Run, RunFailedError, UnavailableError
from interlock.server import EmbeddedServer
from interlock.settings import Settings
from interlock.testing import RunningApp, eventually, running
from interlock.worker import make_replayer
from tests.conformance.conftest import failed_tasks as whys
from tests.conftest import Running
from tests.workflows.failing import CALL, KINDS, PLACES, look
from tests.workflows.scripts import Script, agent, call

CACHED, CHILD = 1_000, "tool in a child workflow"
ENDING = ["base", "exit", "closing", "cancelled"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. tells: whether the message names the function. failed_tasks: workflow tasks that failed."""

    status: str
    error_type: str
    tells: bool
    failed_tasks: int


def rows(*, all_kinds: bool) -> list[tuple[str, str]]:
    """Every place with one kind of error; every kind, or those that mean an end, in each sort of place."""
    kinds = [kind for kind in KINDS if kind != "new"] if all_kinds else ENDING
    sorts = ["before_model_request", "a task of a hook", "dependencies", "async tool"]
    tools = ["tool in the workflow", CHILD]
    return [
        *((place, "new") for place in PLACES),
        *((place, kind) for place in sorts for kind in kinds),
        *((place, kind) for place in tools for kind in ENDING),
    ]


async def failed_tasks(app: RunningApp, run: Run) -> int:
    """How often a workflow task of the run has failed."""
    return len(whys(await app.client.temporal.get_workflow_handle(run.id).fetch_history()))


async def failure(run: Run) -> RunFailedError:
    """What ended the run, which takes seconds; a busy machine gets a minute."""
    async with asyncio.timeout(60):
        with pytest.raises(RunFailedError) as failed:
            await run.result()
    return failed.value


async def replays(app: RunningApp, run: Run, build: Interlock) -> None:
    """Check that the build comes to the same end from the run's history."""
    history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    await make_replayer(build).replay_workflow(history)


async def outcome(app: RunningApp, slots: asyncio.Semaphore, agent: str, kind: str) -> Outcome:
    async with slots:
        run = await app.client.start(agent, kind, deps=kind)
        try:
            error = await failure(run)
        except (TimeoutError, pytest.fail.Exception):
            return Outcome((await run.report()).status, "", False, await failed_tasks(app, run))
    tells = " fail of tests.workflows.failing, line " in str(error)
    return Outcome(error.status, error.error_type, tells, await failed_tasks(app, run))


def expected(place: str, kind: str) -> Outcome:
    error_type = "InvalidInputError" if place == "dependencies" else KINDS[kind][1]
    if kind == "no more" and place in ("before_model_request", "a task of a hook"):
        error_type = "RuntimeError"  # The framework's loop would take it for its own.
    # What a child workflow fails with is of the framework's making, without a place.
    return Outcome("failed", error_type, tells=(place, kind) != (CHILD, "new"), failed_tasks=0)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
async def test_whatever_the_users_code_raises_ends_the_run_with_its_type_and_place(
    server: EmbeddedServer, cached: bool
) -> None:
    agents = {place: make(place.replace(" ", "_")) for place, make in PLACES.items()}
    table = rows(all_kinds=cached)
    slots = asyncio.Semaphore(8)
    async with running(Interlock(list(agents.values())), server, max_cached_workflows=CACHED if cached else 0) as app:
        ended = await asyncio.gather(*(outcome(app, slots, str(agents[place].name), kind) for place, kind in table))

    assert dict(zip(table, ended, strict=True)) == {row: expected(*row) for row in table}


def before_request(do: Callable[[], Any]) -> AbstractCapability[Any]:
    """A hook that does something in the workflow before each model request."""

    class Hook(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            if asyncio.iscoroutine(awaitable := do()):
                await awaitable
            return request_context

    return Hook()


def hooked(do: Callable[[], Any]) -> Interlock:
    return Interlock([agent(Script("done"), capabilities=[before_request(do)])])


def exits() -> None:
    raise SystemExit(3)


async def test_a_callback_that_exits_ends_its_run_and_not_the_worker(run_app: Running) -> None:
    exiting = hooked(lambda: asyncio.get_running_loop().call_soon(exits))
    async with run_app(exiting) as app:
        run = await app.client.start("support", "go")
        error = await failure(run)

        assert error.error_type == "SystemExit"
        assert "in exits of tests.workflows.test_failures_end_runs, line " in str(error)
        assert await failed_tasks(app, run) == 0
        await replays(app, run, exiting)


async def test_a_task_that_a_hook_leaves_behind_does_not_keep_its_run(server: EmbeddedServer) -> None:
    left: list[asyncio.Task[None]] = []

    async def stays() -> None:
        while True:
            try:
                await asyncio.sleep(0.01)
            except BaseException:
                continue

    async with running(hooked(lambda: left.append(asyncio.create_task(stays()))), server) as app:
        run = await app.client.start("support", "go")

        assert (await run.result()).output == "done"
    # The worker has stopped: the run could be taken out of its cache.


async def waits_for_nothing() -> None:
    await asyncio.Event().wait()


async def waiting_tool(order: str) -> str:
    await waits_for_nothing()
    return order


@pytest.mark.parametrize("place", ["hook", "tool in the workflow", "tool in a child workflow"])
async def test_a_run_that_nothing_will_ever_wake_ends(run_app: Running, place: str) -> None:
    metadata: dict[str, Any] = {"temporal": {"child_workflow": {}} if "child" in place else False}
    in_hook = place == "hook"
    waiting = agent(
        Script(CALL, "done"),
        tools=[look if in_hook else Tool(waiting_tool, name="look", metadata=metadata)],
        capabilities=[before_request(waits_for_nothing)] if in_hook else [],
    )
    async with run_app(Interlock([waiting])) as app:
        run = await app.client.start("support", "go")
        error = await failure(run)

        assert error.error_type == "StalledRunError"
        assert "in waits_for_nothing of tests.workflows.test_failures_end_runs, line " in str(error)
        assert await failed_tasks(app, run) == 0
        await replays(app, run, Interlock([waiting]))


def sleeps() -> None:
    time.sleep(2.5)


def computes() -> None:
    while True:
        pass


# The thread is interrupted wherever it is, and that may be where it reads a file for a traceback.
@pytest.mark.filterwarnings("ignore:(?s).*FileIO:pytest.PytestUnraisableExceptionWarning")
async def test_a_run_that_holds_its_thread_ends_when_it_does_so_again(server: EmbeddedServer) -> None:
    blocking = [agent(Script("done"), name=do.__name__, capabilities=[before_request(do)]) for do in (sleeps, computes)]
    async with running(Interlock(blocking), server) as app:
        runs = [await app.client.start(str(one.name), "go") for one in blocking]
        errors = await asyncio.gather(*(failure(run) for run in runs))

    assert [error.error_type for error in errors] == ["BlockedRunError", "BlockedRunError"]
    for error, do in zip(errors, (sleeps, computes), strict=True):
        assert f"in {do.__name__} of tests.workflows.test_failures_end_runs, line " in str(error)


async def test_a_run_that_holds_its_thread_once_goes_on(server: EmbeddedServer) -> None:
    times: list[int] = []

    def once() -> None:
        times.append(1)
        if len(times) == 1:
            sleeps()

    async with running(hooked(once), server) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"


async def test_a_worker_that_is_too_busy_to_be_asked_may_be_asked_again(server: EmbeddedServer) -> None:
    slow = threading.Event()

    def while_busy() -> None:
        if slow.is_set():
            sleeps()

    async with running(hooked(while_busy), server, max_cached_workflows=0) as app:
        run = await app.client.start("support", "go")
        await run.result()
        slow.set()  # For an answer the worker goes through the history.
        with pytest.raises(UnavailableError, match=r"had no answer within Temporal's limit of 2 s.*Ask again"):
            await run.state()
        slow.clear()
        state = await run.state()

    assert state.requests == []


def filler(size: int) -> Tool[Any]:
    return Tool(lambda order: "x" * size, name="look")


async def test_a_request_that_outgrows_the_server_ends_the_run_with_the_steps_size(run_app: Running) -> None:
    script = Script([call("look", f"c{n}", order="A") for n in range(3)], "done")
    async with run_app(Interlock([agent(script, tools=[filler(800_000)])])) as app:
        run = await app.client.start("support", "go")
        error = await failure(run)

        assert error.error_type == "StepInputTooLargeError"
        assert re.search(r"step 'model scripted, turn \d' has 2,4\d\d,\d\d\d bytes; at most 2,097,152", str(error))
        assert await failed_tasks(app, run) == 0


async def test_steps_that_are_too_large_only_together_end_the_run(run_app: Running) -> None:
    script = Script([call("look", f"c{n}", order="A") for n in range(6)], "done")
    async with run_app(Interlock([agent(script, tools=[look], deps_type=str)])) as app:
        run = await app.client.start("support", "go", deps="d" * 900_000)
        error = await failure(run)

        assert error.error_type == "StepInputTooLargeError"
        assert "begin together with 'look: order A' have 4,5" in str(error)
        assert await failed_tasks(app, run) == 0


async def test_a_step_whose_input_can_just_travel_runs(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script(CALL, "done"), tools=[filler(1_900_000)])])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"


async def result_from_elsewhere(app: RunningApp, run: Run, activity: str, result: Any) -> None:
    """End an activity that is under way with a result that is not its own."""
    handle = app.client.temporal.get_workflow_handle(run.id)

    async def under_way() -> Any:
        pending = (await handle.describe()).raw_description.pending_activities
        return [one.activity_id for one in pending if activity in one.activity_type.name and one.state == 2]

    (activity_id,) = await eventually(under_way)
    await app.client.temporal.get_async_activity_handle(
        workflow_id=run.id, run_id=None, activity_id=activity_id
    ).complete(result)


async def test_a_result_that_cannot_be_read_keeps_the_run_when_it_may_be_stuck(server: EmbeddedServer) -> None:
    over = asyncio.Event()

    async def slow(order: str) -> str:
        await over.wait()
        return order

    app_agent = agent(Script(CALL, "done"), tools=[Tool(slow, name="look")])
    async with running(Interlock([app_agent], settings=Settings(stuck_seconds=60)), server) as app:
        run = await app.client.start("support", "go")
        await result_from_elsewhere(app, run, "call_tool", "no JSON of that kind")
        state = await app.state(run, lambda state: bool(state.stuck))
        over.set()
        await run.retry()

        assert [stuck.error_type for stuck in state.stuck] == ["UnreadableResultError"]
        assert (await run.result()).output == "done"


def strict_about(value: str) -> str:
    if value == "A-1":
        return value
    raise LookupError(value)


@pytest.mark.parametrize("sent", ["signal", "update"])
async def test_an_answer_that_a_validator_fails_on_changes_nothing(run_app: Running, sent: str) -> None:
    def pay(order: Annotated[str, AfterValidator(strict_about)]) -> str:
        return order

    script = Script([call("pay", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        decision = {
            "request_id": "1",
            "verdict": "approve",
            "arguments": {"order": "B"},
            "decided_at": "2026-11-01T00:00:00Z",
        }
        handle = app.client.temporal.get_workflow_handle(run.id)
        if sent == "signal":
            await handle.signal("decide_approval", decision)
        else:
            with pytest.raises(Exception, match="update failed"):
                await handle.execute_update("submit_decision", decision)
        await run.decide("1", "approve")

        assert (await run.result()).output == "done"
        assert script.results() == {"a": "A-1"}
        assert await failed_tasks(app, run) == 0


@pytest.mark.parametrize("nonsense", ["x" * 1_900_000, {"request_id": ["y" * 1_900_000]}], ids=["text", "message"])
async def test_nonsense_of_two_megabytes_changes_nothing(run_app: Running, nonsense: Any) -> None:
    script = Script([call("look", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(look, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        handle = app.client.temporal.get_workflow_handle(run.id)
        for signal in ("decide_approval", "report_sub_run", "retry_run"):
            await handle.signal(signal, nonsense)
            await eventually(run.resting)  # The server fails a task itself that so much is sent to while it is on.
        with pytest.raises(Exception, match="update failed"):
            await handle.execute_update("submit_decision", nonsense)
        await run.decide("1", "approve")

        assert (await run.result()).output == "done"
        assert await failed_tasks(app, run) == 0


def build(name: str, *hooks: AbstractCapability[Any]) -> Interlock:
    script = Script(CALL, "done")
    tools = [Tool(look, requires_approval=True)]
    settings = Settings(task_queue=name)
    return Interlock([agent(script, tools=tools, capabilities=list(hooks))], settings=settings)


async def test_a_build_that_cannot_replay_a_run_leaves_it_for_one_that_can(server: EmbeddedServer) -> None:
    from interlock.client import Client
    from interlock.worker import run_worker

    client = await Client.connect(server.address, task_queue="two-builds")

    async def work(app: Interlock, until: Callable[[], Any]) -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(run_worker(app, client, stop))
        await eventually(until)
        stop.set()
        await worker

    run = await client.start("support", "go")
    running_app = RunningApp(client, server)

    async def asked() -> bool:
        return await run.resting() is not None and bool((await run.state()).requests)

    async def failing() -> bool:
        return await failed_tasks(running_app, run) > 0

    await work(build("two-builds"), asked)
    handle = client.temporal.get_workflow_handle(run.id)
    await handle.signal(
        "decide_approval", {"request_id": "1", "verdict": "approve", "decided_at": "2026-11-01T00:00:00Z"}
    )
    await work(build("two-builds", before_request(exits)), failing)
    assert (await run.report()).ended_at is None

    async def ended() -> bool:
        return (await run.report()).status == "completed"

    await work(build("two-builds"), ended)
