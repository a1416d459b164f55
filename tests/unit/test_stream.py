"""What a step says is sent in batches: rarely, in order, again while the server is away, and never in its way."""

import asyncio

import pytest
from temporalio.service import RPCError, RPCStatusCode

from interlock.activities import stream
from interlock.activities.stream import EventWriter, interval_seconds
from interlock.contracts.payloads import EventBatch
from interlock.testing import eventually


class Server:
    """Takes batches, after refusing as many as it is told to. held: it does not answer."""

    def __init__(self, *refusals: RPCStatusCode, held: bool = False) -> None:
        self.taken: list[EventBatch] = []
        self.asked = 0
        self._refusals = list(refusals)
        self._held = held

    async def send(self, batch: EventBatch) -> None:
        self.asked += 1
        if self._held:
            await asyncio.Event().wait()
        if self._refusals:
            raise RPCError("refused", self._refusals.pop(0), b"")
        self.taken.append(batch)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_FIRST_SECONDS", 0.01), ("_RETRY_SECONDS", 0.01), ("_LAST_WORD_SECONDS", 0.1)):
        monkeypatch.setattr(stream, name, value)


def writer(server: Server, attempt: int = 1) -> EventWriter:
    return EventWriter(server.send, activity_id="3", attempt=attempt)


async def until(server: Server, count: int) -> list[EventBatch]:
    async def has() -> bool:
        return len(server.taken) >= count

    await eventually(has)
    return server.taken


def test_batches_come_the_rarer_the_longer_a_step_takes() -> None:
    def batches(seconds: float) -> int:
        elapsed, count = 0.0, 0
        while elapsed < seconds:
            elapsed, count = elapsed + max(0.2, interval_seconds(elapsed)), count + 1
        return count

    limits = {5: 30, 60: 60, 3_600: 900, 86_400: 1_900}
    assert {seconds: batches(seconds) < most for seconds, most in limits.items()} == dict.fromkeys(limits, True)


async def test_what_comes_fast_is_one_piece_and_only_the_latest_progress_counts() -> None:
    server = Server()
    told = writer(server)
    for word in ("one", "two", "three"):
        told.text(f"{word} ")
        told.progress(1, 3, f"at {word}")
    (batch,) = await until(server, 1)
    told.stop()

    assert [(said.kind, said.text) for said in batch.said] == [("text", "one two three"), ("progress", "at three")]
    assert (batch.activity_id, batch.attempt, batch.number) == ("3", 1, 1)


async def test_a_batch_is_sent_again_while_the_server_is_away() -> None:
    server = Server(RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED)
    told = writer(server)
    told.text("one two ")
    (batch,) = await until(server, 1)
    told.stop()

    assert (batch.number, server.asked) == (1, 3)


async def test_a_run_that_takes_no_more_is_left_alone() -> None:
    server = Server(RPCStatusCode.NOT_FOUND)
    told = writer(server)
    told.text("one two ")

    async def asked() -> bool:
        return server.asked == 1 and told._sending.done()

    await eventually(asked)
    told.text("three four ")
    await asyncio.wait_for(told.fail(OSError("gone")), 1)
    assert server.asked == 2


async def test_an_attempt_after_the_first_says_that_it_has_begun() -> None:
    server = Server()
    told = writer(server, attempt=2)
    (batch,) = await until(server, 1)
    told.stop()

    assert (batch.attempt, batch.said) == (2, ())


async def test_an_attempt_that_fails_takes_back_what_it_said_and_only_then_says_anything() -> None:
    server = Server()
    silent = writer(server)
    silent.text("never told")
    await silent.fail(OSError("gone"))
    assert server.asked == 0

    told = writer(server)
    told.text("one two ")
    await until(server, 1)
    await told.fail(OSError("password: hunter2"))
    assert server.taken[-1].failed == "OSError: password: [masked]"


async def test_a_server_that_does_not_answer_holds_nothing_and_fills_no_memory() -> None:
    server = Server(held=True)
    told = writer(server)
    told.text("one two ")

    async def asked() -> bool:
        return server.asked == 1

    await eventually(asked)
    for _ in range(1_000):
        told.text("x" * 1_000)
    await asyncio.wait_for(told.fail(OSError("gone")), 1)

    assert len(told._texts["text"]._held) <= stream._MOST_WAITING + 1


async def test_arguments_too_large_for_a_preview_are_left_for_the_recorded_call() -> None:
    server = Server()
    told = writer(server)
    told.call("c1", "write", '{"content": "' + "x" * 50_000 + '"}')
    (batch,) = await until(server, 1)
    told.stop()

    assert [(said.text, said.arguments, said.size) for said in batch.said] == [("write", {}, 50_015)]


async def test_text_that_is_no_unicode_ends_the_telling_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async def send(batch: EventBatch) -> None:
        batch.model_dump_json()

    told = EventWriter(send, activity_id="3", attempt=1)
    told.text("half a pair \ud800 and more ")

    async def ended() -> bool:
        return told._sending.done()

    await eventually(ended)
    assert told._sending.exception() is None
    assert [record.message for record in caplog.records] == ["events.dropped"]


async def test_steps_beside_many_others_tell_less_often() -> None:
    server = Server()
    loop = asyncio.get_running_loop()
    began = loop.time()
    told = EventWriter(server.send, activity_id="3", attempt=1, slower=lambda: 20.0)
    told.text("one two ")
    await until(server, 1)
    told.stop()

    assert loop.time() - began >= 0.2
