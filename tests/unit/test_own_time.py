"""An attempt's own time is limited, waiting for others is not, and what holds the event loop is named."""

import asyncio
import dataclasses
import logging
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client as TemporalClient
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    UnsandboxedWorkflowRunner,
    Worker,
)

from interlock.activities.own_time import LoopWatch, OwnTimeInterceptor, waiting_for_others
from interlock.server import EmbeddedServer

OPEN_END = timedelta(days=365)
LIMIT = timedelta(seconds=0.2)
Body = Callable[[], Awaitable[Any]]


class Tool(ActivityInboundInterceptor):
    """What the interceptor finds inside: the activity itself."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        return await self._body()


async def attempt(body: Body, *, start_to_close: timedelta = OPEN_END, limit: timedelta = LIMIT, args: Any = ()) -> Any:
    """One attempt of an activity, as a worker runs it."""
    interceptor = OwnTimeInterceptor(limit=limit, unlimited=OPEN_END)
    environment = ActivityEnvironment()
    environment.info = dataclasses.replace(environment.info, start_to_close_timeout=start_to_close)
    inside = interceptor.intercept_activity(Tool(body))
    try:
        return await environment.run(inside.execute_activity, ExecuteActivityInput(body, args, None, {}))
    finally:
        assert interceptor.running == {}


async def test_an_attempt_that_works_too_long_fails_and_is_retried() -> None:
    cleaned: list[bool] = []

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    with pytest.raises(
        ApplicationError, match=r"'slow_tool' worked for longer than 0\.2 s .*start_to_close_timeout"
    ) as e:
        await attempt(slow, args=[SimpleNamespace(name="slow_tool")])
    assert (e.value.type, e.value.non_retryable) == ("OwnTimeExceededError", False)
    assert cleaned == [True]


async def test_an_activity_without_a_name_for_people_is_called_by_its_type() -> None:
    with pytest.raises(ApplicationError, match="'unknown' worked for longer"):
        await attempt(asyncio.Event().wait, args=["no name"])


async def test_an_attempt_in_time_gives_its_result() -> None:
    async def quick() -> str:
        await asyncio.sleep(0.01)
        return "done"

    assert await attempt(quick, limit=timedelta(seconds=10)) == "done"


async def test_a_timeout_of_the_tools_own_stays_its_own() -> None:
    async def raises() -> None:
        raise TimeoutError("the shop did not answer")

    with pytest.raises(TimeoutError, match="the shop did not answer"):
        await attempt(raises)


async def test_time_spent_waiting_for_others_does_not_count() -> None:
    async def waits() -> str:
        for _ in range(2):
            await asyncio.sleep(0.01)
            with waiting_for_others(), waiting_for_others():
                await asyncio.sleep(0.3)
        return "done"

    assert await attempt(waits, limit=timedelta(seconds=0.4)) == "done"


async def test_waits_that_overlap_do_not_count_until_the_last_has_ended() -> None:
    async def wait(seconds: float) -> None:
        with waiting_for_others():
            await asyncio.sleep(seconds)

    async def waits() -> str:
        await asyncio.gather(wait(0.05), wait(0.3))
        return "done"

    assert await attempt(waits) == "done"


async def test_own_time_between_waits_adds_up() -> None:
    rounds: list[int] = []

    async def works() -> None:
        for n in range(200):
            rounds.append(n)
            await asyncio.sleep(0.02)
            with waiting_for_others():
                await asyncio.sleep(0.01)

    with pytest.raises(ApplicationError, match="worked for longer"):
        await attempt(works)
    assert 1 < len(rounds) < 200


async def test_a_wait_that_fails_lets_the_clock_go_on() -> None:
    async def works() -> None:
        with pytest.raises(LookupError, match="gone"), waiting_for_others():
            raise LookupError("gone")
        await asyncio.sleep(10)

    with pytest.raises(ApplicationError, match="worked for longer"):
        await attempt(works)


async def test_an_activity_with_a_limit_of_its_own_is_left_alone() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.3)
        return "done"

    assert await attempt(slow, start_to_close=timedelta(seconds=60)) == "done"


class Wire(ActivityOutboundInterceptor):
    """Where signs of life go out."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def heartbeat(self, *details: Any) -> None:
        self.sent.append(details)


class Innermost(ActivityInboundInterceptor):
    """What the interceptor finds inside, when it is told of the way out."""

    def __init__(self) -> None:
        self.outbound: ActivityOutboundInterceptor | None = None

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        self.outbound = outbound


async def test_what_an_attempt_leaves_to_the_next_one_goes_out_with_every_sign_of_life() -> None:
    wire, innermost = Wire(), Innermost()
    OwnTimeInterceptor(limit=LIMIT, unlimited=OPEN_END).intercept_activity(innermost).init(wire)

    def beat() -> None:
        assert innermost.outbound
        for details in ((), ("left",), (), ("more",), ()):
            innermost.outbound.heartbeat(*details)

    ActivityEnvironment().run(beat)

    assert wire.sent == [(), ("left",), ("left",), ("more",), ("more",)]


async def test_waiting_outside_of_an_attempt_is_just_waiting() -> None:
    with waiting_for_others():
        await asyncio.sleep(0)


async def test_two_attempts_at_once_have_clocks_of_their_own() -> None:
    async def slow() -> None:
        await asyncio.sleep(10)

    async def patient() -> str:
        with waiting_for_others():
            await asyncio.sleep(0.4)
        return "done"

    stopped, finished = (asyncio.create_task(attempt(body)) for body in (slow, patient))

    with pytest.raises(ApplicationError, match="worked for longer"):
        await stopped
    assert await finished == "done"


tries: list[int] = []


@activity.defn
async def stalls_once() -> int:
    tries.append(activity.info().attempt)
    if len(tries) == 1:
        await asyncio.Event().wait()
    return len(tries)


@workflow.defn
class Stalling:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_activity(
            stalls_once,
            start_to_close_timeout=OPEN_END,
            heartbeat_timeout=timedelta(seconds=9),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10)),
        )


async def test_a_worker_tries_an_attempt_that_took_too_long_again(server: EmbeddedServer) -> None:
    client = await TemporalClient.connect(server.address)
    tries.clear()
    async with Worker(
        client,
        task_queue=f"own-time-{uuid.uuid4().hex[:8]}",
        workflows=[Stalling],
        activities=[stalls_once],
        interceptors=[OwnTimeInterceptor(limit=LIMIT, unlimited=OPEN_END)],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ) as worker:
        result = await client.execute_workflow(Stalling.run, id=worker.task_queue, task_queue=worker.task_queue)

    assert result == 2
    assert tries == [1, 2]


def sleeps_long() -> None:
    time.sleep(0.6)


def waits_for_a_program() -> None:
    subprocess.run(["sleep", "0.6"], check=True)


def blocked(caplog: pytest.LogCaptureFixture, by: Callable[[], None]) -> list[Any]:
    """The warnings about one function; on a busy machine there may be others."""
    warnings: list[Any] = [record for record in caplog.records if record.message == "event_loop.blocked"]
    return [warning for warning in warnings if warning.at.endswith(f" in {by.__name__}")]


@pytest.mark.parametrize("block", [sleeps_long, waits_for_a_program])
async def test_what_holds_the_loop_is_named_once_with_its_place(
    block: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    running = {b"1": "refund", b"2": "look_up"}
    with caplog.at_level(logging.WARNING), LoopWatch(running, patience=timedelta(seconds=0.1)):
        await asyncio.sleep(0.05)
        block()
        await asyncio.sleep(0.1)

    (warning,) = blocked(caplog, block)
    assert (warning.name, warning.levelname) == ("interlock.worker", "WARNING")
    assert warning.activities == ["look_up", "refund"]
    assert warning.at == f"{__file__}:{block.__code__.co_firstlineno + 1} in {block.__name__}"


async def test_each_time_the_loop_is_held_is_a_warning_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LoopWatch({}, patience=timedelta(seconds=0.1)):
        for _ in range(2):
            sleeps_long()
            await asyncio.sleep(0.2)

    assert len(blocked(caplog, sleeps_long)) == 2


async def test_a_loop_that_only_waits_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LoopWatch({b"1": "refund"}, patience=timedelta(seconds=0.5)):
        await asyncio.gather(asyncio.sleep(0.8), asyncio.to_thread(sleeps_long))

    assert [record.message for record in caplog.records if record.name == "interlock.worker"] == []
