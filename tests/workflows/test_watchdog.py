"""The watchdog finds every way in which an open run can stand still, and says what to do about it."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import AbstractCapability
from temporalio.common import RetryPolicy
from temporalio.service import RPCError

from interlock import Interlock, Run, RunTrouble
from interlock.client import Client
from interlock.contracts.payloads import Parent, RunInput
from interlock.server import EmbeddedServer
from interlock.settings import Settings
from interlock.testing import eventually, running
from interlock.watchdog import Finding, Watchdog
from interlock.worker import run_worker
from tests.workflows.scripts import Script, agent, call

CALL = [call("work", "a", order="A-1")]
SECRET = "sk-abcdefghijklmnop1234567"


@asynccontextmanager
async def worker(build: Interlock, client: Client) -> AsyncIterator[None]:
    """A worker of one build, for as long as it is entered."""
    stop = asyncio.Event()
    task = asyncio.create_task(run_worker(build, client, stop))
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.fixture
async def client(own_server: EmbeddedServer) -> AsyncIterator[Client]:
    """A client for a task queue of its own, where no worker is. What it leaves open is terminated."""
    connected = await Client.connect(own_server.address, task_queue=f"watched-{uuid.uuid4().hex[:8]}")
    yield connected
    async for execution in connected.temporal.list_workflows(f"TaskQueue = '{connected.task_queue}'"):
        with suppress(RPCError):
            await connected.temporal.get_workflow_handle(execution.id).terminate()


async def trouble_of(client: Client, run: Run, **options: Any) -> RunTrouble | None:
    troubles = await client.troubled_runs(**options)
    return next((one for one in troubles if one.workflow_id == run.id), None)


async def finding(client: Client, run: Run, *, served: bool = True, **options: Any) -> Finding:
    """The only thing that is found of the run, once it is. served: by a worker; the server may not know of it yet."""

    async def found() -> RunTrouble | None:
        trouble = await trouble_of(client, run, **options)
        unseen = served and trouble is not None and trouble.findings[0].kind == "no_worker"
        return None if unseen else trouble

    trouble = await eventually(found)
    (only,) = trouble.findings
    return only  # type: ignore[no-any-return]


def gated(*hooks: AbstractCapability[Any]) -> Interlock:
    tools = [Tool(lambda order: order, name="work", requires_approval=True)]
    return Interlock([agent(Script(CALL, "done"), tools=tools, capabilities=list(hooks))])


async def approved_and_left(client: Client) -> Run:
    """A run that was approved and whose next workflow task nobody has taken yet."""
    run = await client.start("support", "go")

    async def asks() -> bool:
        return await run.resting() is not None and bool((await run.state()).requests)

    async with worker(gated(), client):
        await eventually(asks)
    await client.temporal.get_workflow_handle(run.id).signal(
        "decide_approval", {"request_id": "1", "verdict": "approve", "decided_at": "2026-11-01T00:00:00Z"}
    )
    return run


async def test_a_build_that_diverges_is_named_with_the_way_to_see_where(client: Client) -> None:
    run = await approved_and_left(client)
    ungated = Interlock([agent(Script(CALL, "done"), tools=[Tool(lambda order: order, name="work")])])
    async with worker(ungated, client):
        found = await finding(client, run)

    assert (found.kind, found.wrong) == ("task_failing", True)
    assert "Its workflow task fails, attempt 2" in found.what
    assert "interlock replay MODULE:APP --running" in found.todo
    assert f"temporal workflow terminate --workflow-id {run.id}" in found.todo
    assert found.since is not None


async def test_code_that_fails_while_it_replays_is_named_with_its_place_and_without_secrets(
    client: Client,
) -> None:
    class Breaks(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            asyncio.get_running_loop().call_soon(fails)
            return request_context

    def fails() -> None:
        raise SystemExit(f"the key was {SECRET}")

    run = await approved_and_left(client)
    async with worker(gated(Breaks()), client):
        found = await finding(client, run)

    assert found.kind == "task_failing"
    assert "SystemExit: the key was [masked] (in test_code_that" in found.what
    assert found.todo.startswith("Repair what the workers run and start them again")


async def test_a_worker_without_the_agent_is_named(client: Client) -> None:
    run = await approved_and_left(client)
    async with worker(Interlock([agent(Script("done"), name="other")]), client):
        found = await finding(client, run)

    assert "LookupError: This worker has no agent 'support'; it has: other" in found.what
    assert found.todo.startswith("Start a worker whose app has the agent.")


async def test_a_queue_without_a_worker_is_named(client: Client) -> None:
    run = await client.start("support", "go")
    found = await finding(client, run, served=False)

    assert (found.kind, found.wrong) == ("no_worker", True)
    assert found.what == f"No worker takes its tasks from task queue {client.task_queue!r}."
    assert found.todo == "Start one: interlock worker run MODULE:APP"


def failing(policy: RetryPolicy) -> Agent[Any, Any]:
    def work(order: str) -> None:
        raise OSError(f"no route, token={SECRET}")

    return agent(Script(CALL, "done"), tools=[Tool(work, name="work", metadata={"temporal": {"retry_policy": policy}})])


async def test_a_step_that_goes_on_failing_is_named_with_its_last_error(own_server: EmbeddedServer) -> None:
    policy = RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=60, maximum_attempts=9)
    async with running(Interlock([failing(policy)]), own_server) as app:
        run = await app.client.start("support", "go")
        found = await finding(app.client, run)
        await run.cancel()

    assert (found.kind, found.wrong) == ("step_failing", True)
    assert "has failed 2 times of 9: OSError: no route, token=[masked]" in found.what


async def test_a_stuck_run_is_named_with_what_it_is_stuck_at(own_server: EmbeddedServer) -> None:
    stuck = Interlock([failing(RetryPolicy(maximum_attempts=1))], settings=Settings(stuck_seconds=600))
    async with running(stuck, own_server) as app:
        run = await app.client.start("support", "go")
        found = await finding(app.client, run)
        await run.cancel()

    assert (found.kind, found.wrong) == ("stuck", True)
    assert "work: order A-1 failed for good: OSError: no route, token=[masked]" in found.what
    assert found.todo == f"interlock runs retry {run.id}"
    assert found.since is not None


async def test_a_step_that_no_worker_takes_is_named(own_server: EmbeddedServer) -> None:
    release = asyncio.Event()

    async def work(order: str) -> str:
        await release.wait()
        return order

    app_agent = agent(Script([*CALL, call("work", "b", order="B")], "done"), tools=[Tool(work, name="work")])
    async with running(Interlock([app_agent], settings=Settings(max_concurrent_activities=1)), own_server) as app:
        run = await app.client.start("support", "go")
        watchdog = Watchdog(app.client, waits_long_seconds=60, not_taken_seconds=0.2)

        async def not_taken() -> list[Finding]:
            found = [one for one in await watchdog.look(1_000) if one.workflow_id == run.id]
            return [finding for one in found for finding in one.findings if "call_tool" in finding.what]

        (found,) = await eventually(not_taken)
        release.set()
        await run.result()

    assert (found.kind, found.wrong) == ("step_not_taken", True)
    assert "INTERLOCK_MAX_CONCURRENT_ACTIVITIES" in found.todo


async def test_a_run_that_nobody_waits_for_any_more_is_named(own_server: EmbeddedServer) -> None:
    async with running(gated(), own_server) as app:
        parent = await app.client.start("support", "go")
        await app.requests(parent, 1)
        run_id = (await parent.approvals())[0].run_id
        link = Parent(workflow_id=parent.id, run_id=run_id, agent_path=("support",))
        below = await app.client.start_run(f"{parent.id}/below", RunInput(agent="support", prompt="go", parent=link))
        await app.requests(below, 1)
        assert await trouble_of(app.client, below) is None
        await app.client.temporal.get_workflow_handle(parent.id).terminate()
        found = await finding(app.client, below)
        await below.cancel()

    assert (found.kind, found.wrong) == ("orphaned", True)
    assert found.what == f"Run '{parent.id}', whose tool started it, has ended: nobody waits for it."
    assert found.todo == f"interlock runs cancel {below.id}"


async def test_a_request_that_is_open_for_long_is_told_and_is_nothing_wrong(own_server: EmbeddedServer) -> None:
    async with running(gated(), own_server) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        found = await finding(app.client, run, waits_long_seconds=0)
        assert await trouble_of(app.client, run) is None
        await run.cancel()

    assert (found.kind, found.wrong) == ("waits_for_a_person", False)
    assert found.what == "Request 1 waits for an approval: work: order A-1"


async def test_it_looks_at_no_more_runs_than_asked_and_tells_how_far_it_is(client: Client) -> None:
    for _ in range(3):
        await client.start("support", "go")
    looked: list[tuple[int, int]] = []

    def note(number: int, of: int) -> None:
        looked.append((number, of))

    await eventually(lambda: _all_listed(client, looked, note))
    assert looked == [(1, 2), (2, 2)]


async def _all_listed(client: Client, looked: list[tuple[int, int]], note: Callable[[int, int], None]) -> bool:
    looked.clear()
    return len(await client.troubled_runs(limit=2, looked=note)) == 2
