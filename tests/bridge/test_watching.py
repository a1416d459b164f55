"""Whoever waits for a run is given a hint when it changes, by a watcher for all of them where many wait."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.messages import ModelResponsePart
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries
from interlock.bridge.hook import TemporalHook
from interlock.bridge.mirror import open_requests
from interlock.bridge.outcome import Waited
from interlock.bridge.triggers import RunTrigger, what_waits
from interlock.bridge.watching import FOLLOWED, Waiter, Watch, watch_of
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.bridge.keeper import lasting_port
from tests.workflows.scripts import Script, agent, call, prompt_of

ONCE = Retries(tool=RetryPolicy(maximum_attempts=1))
SOON = 30.0  # Half of what the slowest look takes, which finds whatever the others have missed.


class Following:
    """Follows nothing, and counts."""

    def __init__(self) -> None:
        self.now = 0

    async def __call__(self, hint: Callable[[], None]) -> None:
        self.now += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.now -= 1


@asynccontextmanager
async def crowd(watch: Watch, number: int = FOLLOWED + 1) -> AsyncIterator[Following]:
    """So many wait for runs that nobody has started."""
    following = Following()
    async with AsyncExitStack() as stack:
        for place in range(number):
            await stack.enter_async_context(watch.waiting(f"nobody-{place}", following))
        await asyncio.sleep(0)
        yield following


def refund() -> str:
    return "refunded"


def fail() -> str:
    raise ValueError("closed")


CHANGES = {"end": ("completed", 0), "ask": ("awaiting_approval", 1), "fail": ("stuck", 0)}


async def test_in_a_crowd_each_change_of_a_run_gives_its_waiter_one_hint(server: EmbeddedServer) -> None:
    turns: dict[str, Sequence[ModelResponsePart] | str] = {
        "end": "done",
        "ask": [call("refund")],
        "fail": [call("fail")],
    }
    script = Script(lambda messages: turns[prompt_of(messages)])
    app = Interlock([agent(script, tools=[Tool(refund, requires_approval=True), fail])], retries=ONCE)
    async with running(app, server) as running_app:
        client = running_app.client
        watch = watch_of(client.temporal)

        async def hinted(prompt: str) -> None:
            run_id = f"watched-{prompt}"
            async with watch.waiting(run_id, Following()) as waiter:
                await client.start("support", prompt, id=run_id, stuck_seconds=3_600)

                assert await waiter.wait(SOON)
                assert await what_waits(client, run_id) == CHANGES[prompt]
                assert not await waiter.wait(4)

        async with crowd(watch):
            await asyncio.gather(*map(hinted, CHANGES))


async def test_a_request_in_the_place_of_another_gives_a_hint(server: EmbeddedServer) -> None:
    """However soon it comes: the watcher sees one open request before, and one after."""
    script = Script([call("refund")], [call("refund")], "done")
    app = Interlock([agent(script, tools=[Tool(refund, requires_approval=True)])])
    async with running(app, server) as running_app:
        client, run_id = running_app.client, "replaced"
        watch = watch_of(client.temporal)
        async with crowd(watch), watch.waiting(run_id, Following()) as waiter:
            run = await client.start("support", "go", id=run_id)
            assert await waiter.wait(SOON)
            await run.decide("1", "approve", by="ann@example.com")
            await running_app.requests(run, 1)

            assert [one.request_id for one in await run.approvals()] == ["2"]
            assert await waiter.wait(SOON)


async def test_what_an_agent_below_asks_gives_a_hint_to_whoever_wants_to_know(server: EmbeddedServer) -> None:
    inner = agent(Script([call("refund")], "refunded"), name="inner", tools=[Tool(refund, requires_approval=True)])

    async def delegate() -> str:
        return str((await inner.run("refund it")).output)

    outer = agent(Script([call("delegate")], "done"), tools=[delegate])
    async with running(Interlock([outer, inner]), server) as running_app:
        client, run_id = running_app.client, "above"
        watch = watch_of(client.temporal)
        async with (
            watch.waiting(run_id, Following(), asks=True) as waiter,
            watch.waiting(run_id, Following()) as other,
        ):
            run = await client.start("support", "go", id=run_id)
            assert await waiter.wait(SOON)
            ((key, request),) = (await open_requests(client, run_id)).items()
            assert key == f"{request.workflow_id.removeprefix(run_id)}#{request.run_id}#1"
            await client.attach(request.workflow_id).decide("1", "approve", by="ann@example.com")

            assert await waiter.wait(SOON)
            assert (await run.result()).output == "done"
            assert await open_requests(client, run_id) == {}
            assert not await other.wait(0)


async def test_what_changed_while_the_server_was_away_gives_a_hint(tmp_path: Path) -> None:
    port = lasting_port()
    server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)
    temporal = await TemporalClient.connect(server.address)
    run = await temporal.start_workflow("Nobody", id="away", task_queue="nobody")
    watch = watch_of(temporal)
    try:
        async with crowd(watch), watch.waiting(run.id, Following()) as waiter:
            await looked(watch)
            await run.terminate()
            server.process.kill()
            await server.process.wait()
            server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)

            assert await waiter.wait(2 * SOON)
            assert (await run.describe()).status is WorkflowExecutionStatus.TERMINATED
    finally:
        await server.stop()


async def looked(watch: Watch) -> None:
    """Wait until the watcher has asked the server."""
    before = watch.requests

    async def has() -> bool:
        return watch.requests > before

    await eventually(has)


async def test_few_are_followed_and_a_crowd_is_not(server: EmbeddedServer) -> None:
    watch = watch_of(await TemporalClient.connect(server.address))
    ninth, waiters = Following(), list[Waiter]()
    async with crowd(watch, FOLLOWED) as following:
        assert following.now == FOLLOWED
        async with watch.waiting("ninth", ninth) as waiter:
            waiters.append(waiter)
            await asyncio.sleep(0)
            assert (following.now, ninth.now) == (0, 0)
        await asyncio.sleep(0)
        assert following.now == 0  # One that comes and goes must not have all the others begin anew each time.
    async with crowd(watch, FOLLOWED // 2) as following:
        assert following.now == FOLLOWED // 2


async def test_nothing_is_left_when_the_last_one_leaves(server: EmbeddedServer) -> None:
    before = asyncio.all_tasks()
    temporal = await TemporalClient.connect(server.address)
    watch = watch_of(temporal)
    async with crowd(watch):
        assert watch_of(temporal) is watch
        await looked(watch)

    async def is_quiet() -> bool:
        return asyncio.all_tasks() <= before

    await eventually(is_quiet)
    assert len(watch) == 0
    assert watch_of(temporal) is not watch


async def test_many_that_look_at_once_take_turns_and_look_by_themselves_more_rarely(server: EmbeddedServer) -> None:
    watch = watch_of(await TemporalClient.connect(server.address))
    looking, most = 0, 0

    async def look() -> None:
        nonlocal looking, most
        async with watch.turn:
            looking += 1
            most = max(most, looking)
            await asyncio.sleep(0)
            looking -= 1

    async with crowd(watch, 1_000):
        await asyncio.gather(*(look() for _ in range(1_000)))
        assert most <= 20
        looks_a_second: Any = sum(1 / watch.pause(60) for _ in range(1_000))
        assert looks_a_second < 0.5


async def test_triggers_that_begin_while_the_server_is_away_look_once_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port, began_at = lasting_port(), datetime.now(UTC) - timedelta(hours=1)
    server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)
    connection = {"conn_type": "temporal", "host": "127.0.0.1", "port": port}
    monkeypatch.setenv("AIRFLOW_CONN_AWAY", json.dumps(connection))
    temporal = (await TemporalHook("away").client()).temporal
    server.process.kill()
    await server.process.wait()

    async def outcome(number: int) -> Any:
        waited = Waited(temporal_conn_id="away", workflow_id=f"gone-{number}", run_id="r", began_at=began_at)
        return [event.payload["kind"] async for event in RunTrigger(waited.model_dump(mode="json")).run()]

    outcomes = asyncio.gather(*map(outcome, range(2 * FOLLOWED)))
    said = ""

    async def all_have_failed() -> bool:
        nonlocal said
        said += "".join(capsys.readouterr())
        return said.count("temporal.unanswered") >= 2 * FOLLOWED

    try:
        async with crowd(watch_of(temporal)), watch_of(temporal).waiting("late", Following()) as waiter:
            await eventually(all_have_failed)
            server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)
            async with asyncio.timeout(SOON):
                assert await outcomes == [["vanished"]] * 2 * FOLLOWED
            run = await temporal.start_workflow("Nobody", id="late", task_queue="nobody")
            await run.terminate()
            assert await waiter.wait(SOON)  # The watcher has failed as well, and goes on.
    finally:
        outcomes.cancel()
        await server.stop()
