"""A streamed run can be read as it happens, and afterwards: the same events under the same offsets."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import RunContext, Tool
from pydantic_ai.messages import TextPart
from temporalio.client import WorkflowHistoryEventAsyncIterator
from temporalio.common import RetryPolicy

from interlock import Interlock, MisconfiguredError, RefusedError, Run, RunEvent, RunFailedError, Settings
from interlock.adapters.pydantic_ai import progress
from interlock.contracts import names
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running
from tests.workflows import scripts, streamed
from tests.workflows.streamed import Reader, agent, call, kinds, more_of_call, records, said, thought, turn


async def begun(app: RunningApp, reader: Reader, **options: Any) -> tuple[Run, "asyncio.Task[list[RunEvent]]"]:
    run = await app.client.start("support", "go", stream=True, **options)
    return run, asyncio.create_task(reader.read(run))


async def read(run: Run, from_offset: int = 0) -> list[RunEvent]:
    return [event async for event in run.events(from_offset=from_offset)]


def of_kind(events: list[RunEvent], kind: str) -> list[RunEvent]:
    return [event for event in events if event.kind == kind]


async def test_a_run_is_read_as_it_happens_and_from_every_offset_afterwards(run_app: Running) -> None:
    reader = Reader()

    async def writes_a_call() -> AsyncIterator[Any]:
        yield thought("I look at the order first. ")
        await reader.seen(lambda event: event.kind == "thinking")
        yield call("refund", "c1", '{"order": "A-1", "api_key": "a')
        await reader.seen(lambda event: event.kind == "call_delta" and event.arguments == {"order": "A-1"})
        yield more_of_call('bc"}')

    async def answers() -> AsyncIterator[Any]:
        yield "The password: hunter2 opens "
        await reader.said("The password: [masked]")
        yield "the door."

    def refund(order: str, api_key: str) -> str:
        assert api_key == "abc"
        return f"refunded {order}"

    support = agent(writes_a_call, answers, tools=[Tool(refund, requires_approval=True)])
    async with run_app(Interlock([support])) as app:
        run, reading = await begun(app, reader)
        second = asyncio.create_task(read(run))
        await reader.seen(lambda event: event.kind == "approval_asked")
        await app.requests(run, 1)
        await run.decide("1", "approve", by="ann", reason="it is broken")
        output, events = await run.result(), await reading

        assert kinds(events) == [
            *("run_started", "step_started", "thinking", "call_delta", "thinking", "call", "step_finished"),
            *("approval_asked", "approval_decided", "step_started", "step_finished"),
            *("step_started", "text", "step_finished", "run_ended"),
        ]
        assert output.output == "The password: hunter2 opens the door."
        assert said(events) == "The password: [masked] opens the door."
        assert said(events, "thinking") == "I look at the order first. "
        (asked,), (decided,) = of_kind(events, "approval_asked"), of_kind(events, "approval_decided")
        assert (asked.name, asked.arguments) == ("refund", {"order": "A-1", "api_key": "[masked]"})
        assert (decided.request_id, decided.status, decided.by, decided.text) == (
            *(asked.request_id, "approved"),
            *("ann", "it is broken"),
        )
        assert events[-1].status == "completed"
        assert [event.offset for event in events] == list(range(len(events)))
        assert await second == events
        for offset in range(len(events) + 2):
            assert await read(run, offset) == events[offset:]


async def test_what_a_failed_attempt_said_is_taken_back(run_app: Running) -> None:
    reader, attempts = Reader(), 0

    async def answers() -> AsyncIterator[Any]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            yield "Half of an answer "
            await reader.said("Half of an")
            raise ConnectionError("token=abc123456")
        yield "The whole answer "
        await reader.said("The whole")
        yield "of it."

    quickly = {"model_activity_config": {"retry_policy": RetryPolicy(initial_interval=streamed.SOON)}}
    async with run_app(Interlock([agent(answers, durable=quickly)])) as app:
        run, reading = await begun(app, reader)
        output, events = await run.result(), await reading

        assert output.output == said(events) == "The whole answer of it."
        (failed,) = of_kind(events, "attempt_failed")
        assert (failed.attempt, failed.step) == (1, 1)
        assert failed.error.startswith("ConnectionError: token=[masked]")
        assert {event.attempt for event in of_kind(events, "text")} == {1, 2}
        assert [event.attempt for event in of_kind(events, "step_finished")] == [2]
        assert await read(run) == events


async def test_a_model_that_fails_for_good_leaves_nothing_said(run_app: Running) -> None:
    reader = Reader()

    async def breaks() -> AsyncIterator[Any]:
        yield "Half of an answer "
        await reader.said("Half of an")
        raise ConnectionError("gone")

    once = {"model_activity_config": {"retry_policy": RetryPolicy(maximum_attempts=1)}}
    async with run_app(Interlock([agent(breaks, durable=once)])) as app:
        run, reading = await begun(app, reader)
        with pytest.raises(RunFailedError):
            await run.result()
        events = await reading

        assert kinds(events)[-3:] == ["attempt_failed", "step_finished", "run_ended"]
        assert said(events) == ""
        assert events[-1].status == "failed"
        assert "gone" in events[-1].error


async def test_tools_say_how_far_they_are_from_coroutines_and_threads(run_app: Running) -> None:
    reader = Reader()
    loop = asyncio.get_running_loop()

    async def export(ctx: RunContext[None], pages: int) -> str:
        progress(ctx, 1, pages, "pages, token=abc123456")
        await reader.seen(lambda event: (event.done, event.total) == (1, 3))
        return "exported"

    def count(ctx: RunContext[None]) -> str:
        progress(ctx, float("inf"), None, "counting")
        seen = asyncio.run_coroutine_threadsafe(reader.seen(lambda event: event.text == "counting"), loop)
        seen.result(20)
        progress(ctx, 7)
        return "counted"

    support = agent(turn(call("export", "c1", '{"pages": 3}'), call("count", "c2", "{}", at=2)), turn("Done."))
    for tool in (export, count):
        support.tool(tool)
    async with run_app(Interlock([support])) as app:
        _, reading = await begun(app, reader)
        events = await reading

        told = of_kind(events, "progress")
        assert {(event.step, event.done, event.total, event.text) for event in told} >= {
            (2, 1.0, 3.0, "pages, token=[masked]"),
            (3, None, None, "counting"),
        }
        assert events[-1].status == "completed"


async def test_a_run_that_is_not_streamed_records_nothing_and_can_be_read_all_the_same(run_app: Running) -> None:
    def slow(ctx: RunContext[None]) -> str:
        progress(ctx, 1, 2)
        return "slow"

    script = scripts.Script([TextPart("I call. "), scripts.call("slow")], "The answer.")
    support = scripts.agent(script)
    support.tool(slow)
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")
        events = await read(run)

        assert await records(app, run) == 0
        assert said(events) == "I call. The answer."
        assert kinds(events)[-1] == "run_ended"
        assert not of_kind(events, "progress")


async def test_a_short_answer_costs_no_record(run_app: Running) -> None:
    async with run_app(Interlock([agent(turn("The ", "answer."))])) as app:
        run = await app.client.start("support", "go", stream=True)
        events = await read(run)

        assert await records(app, run) == 0
        assert said(events) == "The answer."


@pytest.mark.parametrize("streams", [True, False])
async def test_a_model_that_cannot_stream_is_asked_for_its_whole_answer(run_app: Running, streams: bool) -> None:
    script = scripts.Script("The answer.")
    async with run_app(Interlock([scripts.agent(script)])) as app:
        run = await app.client.start("support", "go", stream=streams)

        assert said(await read(run)) == "The answer."
        assert script.calls == 1


async def test_the_user_s_own_stream_handler_gets_what_the_readers_get(run_app: Running) -> None:
    reader, handled = Reader(), []

    async def answers() -> AsyncIterator[Any]:
        yield "The answer "
        await reader.said("The")
        yield "is yes."

    async def handle(ctx: RunContext[Any], events: AsyncIterator[Any]) -> None:
        async for event in events:
            handled.append(event)

    async with run_app(Interlock([agent(answers, durable={"event_stream_handler": handle})])) as app:
        run, reading = await begun(app, reader)
        output, events = await run.result(), await reading

        assert output.output == said(events) == "The answer is yes."
        assert handled


async def test_an_agent_in_a_tool_streams_in_a_run_of_its_own(run_app: Running) -> None:
    reader, below = Reader(), Reader()

    async def researches() -> AsyncIterator[Any]:
        yield "Found it "
        await below.said("Found")
        yield "at last."

    researcher = agent(researches, name="researcher")

    async def research() -> str:
        return str((await researcher.run("Find it.")).output)

    support = agent(turn(call("research", "c1", "{}")), turn("Done."), tools=[research])
    async with run_app(Interlock([support, researcher])) as app:
        _, reading = await begun(app, reader)
        started = await reader.seen(lambda event: event.kind == "sub_run_started")
        nested = await below.read(app.client.attach(started.workflow_id))
        events = await reading

        assert (started.name, started.step) == ("researcher", 2)
        assert said(nested) == "Found it at last."
        assert nested[0].agent_path == ("support", "researcher")
        assert [event.workflow_id for event in of_kind(events, "sub_run_ended")] == [started.workflow_id]


async def test_a_reader_that_does_not_read_on_holds_nothing(run_app: Running) -> None:
    async def answers() -> AsyncIterator[Any]:
        for number in range(400):
            yield f"{number} and so on, "
            await asyncio.sleep(0)

    async with run_app(Interlock([agent(answers)])) as app:
        run = await app.client.start("support", "go", stream=True)
        idle = [run.events() for _ in range(20)]
        first = [await anext(one) for one in idle]

        assert (await run.result()).output.startswith("0 and so on")
        assert len(set(first)) == 1
        for one in idle:
            await one.aclose()


async def test_a_cancelled_run_says_what_was_withdrawn_and_ends(run_app: Running) -> None:
    reader = Reader()

    def refund() -> str:
        raise AssertionError

    support = agent(turn(call("refund", "c1", "{}")), tools=[Tool(refund, requires_approval=True)])
    async with run_app(Interlock([support])) as app:
        run, reading = await begun(app, reader)
        await app.requests(run, 1)
        await run.cancel()

        assert kinds(await reading)[-3:] == ["approval_asked", "approval_withdrawn", "run_ended"]
        assert reader.events[-1].status == "cancelled"


async def test_a_stuck_step_is_told_and_so_is_its_retry(run_app: Running) -> None:
    reader, broken = Reader(), [True]

    def wobble() -> str:
        if broken:
            raise OSError("no connection")
        return "it stands"

    once = {"activity_config": {"retry_policy": RetryPolicy(maximum_attempts=1)}}
    support = agent(turn(call("wobble", "c1", "{}")), turn("Done."), tools=[wobble], durable=once)
    async with run_app(Interlock([support], settings=Settings(stuck_seconds=60))) as app:
        run, reading = await begun(app, reader)
        stuck = await reader.seen(lambda event: event.kind == "stuck")
        broken.clear()
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        events = await reading

        assert stuck.text == "wobble"
        assert [event.text for event in of_kind(events, "retried")] == ["wobble"]
        assert events[-1].status == "completed"
        assert await read(run) == events


def batch(**fields: Any) -> dict[str, Any]:
    return {"activity_id": "1", "attempt": 1, "number": 1, **fields}


def text(said: str) -> list[dict[str, str]]:
    return [{"kind": "text", "text": said}]


NONSENSE: list[list[Any]] = [
    [],
    [None],
    ["text"],
    [1, 2],
    [batch(activity_id="99", said=text("stranger"))],
    [batch(activity_id=7)],
    [batch(number=0)],
    [batch(attempt=-1)],
    [batch(said=[{"kind": "text", "text": "x" * 100_001}])],
    [batch(said=[{"kind": "progress", "done": "NaN"}])],
    [batch(said="text")],
]


async def test_nonsense_in_place_of_events_changes_nothing(run_app: Running) -> None:
    def refund() -> str:
        return "refunded"

    support = agent(turn(call("refund", "c1", "{}")), turn("Done."), tools=[Tool(refund, requires_approval=True)])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go", stream=True)
        await app.requests(run, 1)
        before = await run.state()
        for args in NONSENSE:
            await app.client.temporal.get_workflow_handle(run.id).signal(names.RECORD_EVENTS, args=args)
            assert await app.state(run, lambda state: True) == before
        await run.decide("1", "approve", by="ann")

        events = await read(run)
        assert said(events) == "Done."
        assert events[-1].status == "completed"
        history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
        assert failed_tasks(history) == []


async def test_batches_count_once_in_order_and_only_of_the_attempt_under_way(run_app: Running) -> None:
    go = asyncio.Event()

    async def answers() -> AsyncIterator[Any]:
        await go.wait()
        yield "The answer."

    async with run_app(Interlock([agent(answers)])) as app:
        run = await app.client.start("support", "go", stream=True)
        handle = app.client.temporal.get_workflow_handle(run.id)

        async def scheduled() -> bool:
            return any(
                [
                    event.HasField("activity_task_scheduled_event_attributes")
                    async for event in handle.fetch_history_events()
                ]
            )

        await eventually(scheduled)
        for sent in (
            batch(said=text("one ")),
            batch(said=text("one ")),
            batch(number=2, said=text("two ")),
            batch(attempt=2, said=text("three ")),
            batch(number=3, said=text("of a worker that was given up ")),
            batch(attempt=2, number=2, failed="OSError: gone"),
            batch(attempt=2, number=3, said=text("after its end ")),
            batch(attempt=4, said=text("The answer does not say this. ")),
        ):
            await handle.signal(names.RECORD_EVENTS, sent)
        go.set()
        events = await read(run)

        pieces = [(event.kind, event.attempt, event.text) for event in events if event.attempt][:-1]
        assert pieces == [
            *(("text", 1, "one "), ("text", 1, "two "), ("attempt_failed", 1, ""), ("text", 2, "three ")),
            *(("attempt_failed", 2, ""), ("attempt_failed", 3, ""), ("text", 4, "The answer does not say this. ")),
            *(("attempt_failed", 4, ""), ("text", 1, "The answer.")),
        ]
        assert said(events) == "The answer."


async def test_offsets_that_there_are_not_and_runs_that_there_are_not_are_refused(run_app: Running) -> None:
    async with run_app(Interlock([agent(turn("Done."))])) as app:
        with pytest.raises(MisconfiguredError, match="Offsets begin at 0"):
            await read(app.client.attach("nowhere"), -1)
        with pytest.raises(RefusedError, match="There is no run 'nowhere'"):
            await read(app.client.attach("nowhere"))


def test_a_tool_outside_of_a_run_may_say_how_far_it_is() -> None:
    def look(ctx: RunContext[None]) -> str:
        progress(ctx, 1, 2)
        return "looked"

    plain = scripts.agent(scripts.Script([scripts.call("look")], "Done."))
    plain.tool(look)

    assert plain.run_sync("go").output == "Done."


async def test_a_reader_with_a_pace_gets_the_same_and_asks_no_more_often(
    run_app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(order: str) -> str:
        return order

    script = scripts.Script(*[[scripts.call("look", f"c{n}", order="A")] for n in range(10)], "done")
    async with run_app(Interlock([scripts.agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go")
        fetch, asked = WorkflowHistoryEventAsyncIterator.fetch_next_page, 0

        async def counted(self: WorkflowHistoryEventAsyncIterator, **options: Any) -> None:
            nonlocal asked
            asked += self._input.wait_new_event  # The worker may read the history for itself.
            await fetch(self, **options)

        monkeypatch.setattr(WorkflowHistoryEventAsyncIterator, "fetch_next_page", counted)
        began = time.monotonic()
        events = [event async for event in run.events(pace_seconds=0.2)]
        seconds, requests = time.monotonic() - began, asked

        assert requests <= 2 + seconds / 0.2
        assert events == await read(run)
        assert len(of_kind(events, "step_finished")) == 21
