"""Messages of any name, form and size, from anybody: none harms a run, and each sender learns why it had no effect."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from temporalio.client import WorkflowHandle

from interlock import Client, Run, RunFailedError
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import RunState
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually, running
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running, uncached
from tests.seeds import for_examples
from tests.workflows.odd_messages import (
    MASKED,
    NOW,
    QUERIES,
    SENT_SECRET,
    SIGNALS,
    UPDATES,
    aimed,
    as_sent,
    messages,
    texts,
    values,
    written,
)
from tests.workflows.offices import OFFICES, OWN_SECRET, Office
from tests.workflows.raw_messages import Answer, Body, Message, send, send_all

MEGABYTES = 4  # For one run at most, since its history keeps each signal.

batches = st.lists(st.one_of(messages("signal", SIGNALS), messages("update", UPDATES)), min_size=20, max_size=30)
questions = st.lists(messages("query", QUERIES), max_size=4)


@pytest.fixture(params=OFFICES, ids=lambda office: office.name)
def office(request: pytest.FixtureRequest) -> Office:
    made: Office = request.param
    return made


@dataclass
class Target:
    """A run to throw messages at. state: how it has to stay. large: the bytes of large messages so far."""

    app: RunningApp
    run: Run
    state: RunState
    large: int = 0

    @classmethod
    async def made(cls, app: RunningApp, office: Office) -> "Target":
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.requests(run, 4)
        for request_id in office.approved:
            await run.decide(request_id, "approve")

        def waits(state: RunState) -> bool:
            return {one.request_id: one.kind for one in state.requests} == office.waits and len(state.stuck) == 1

        return cls(app, run, await app.state(run, waits))

    @property
    def digests(self) -> dict[str, str]:
        return {request.request_id: request.digest for request in self.state.requests}

    async def throw(self, batch: Sequence[Message], asked: Sequence[Message]) -> None:
        """Send all at once, then ask; nothing has changed, and every sender was told why."""
        thrown = [message for message in self.aimed(batch) if self.has_room_for(message)]
        answers = await send_all(self.app.client.temporal, self.run.id, thrown)
        await rest(self.app, self.run)
        for question in self.aimed(asked):
            # One at a time, since the SDK can drop the task of a run that is asked while at work.
            thrown.append(question)
            answers.append(await send(self.app.client.temporal, self.run.id, question))
        for message, answer in zip(thrown, answers, strict=True):
            check(message, answer)
        assert await self.run.state() == self.state
        assert await self.run.approvals() == self.state.requests
        assert await failures(self.app, self.run) == []

    def aimed(self, given: Sequence[Message]) -> list[Message]:
        return [aimed(message, self.run.id, self.digests) for message in given]

    def has_room_for(self, message: Message) -> bool:
        if message.size > 1_000_000:
            self.large += message.size
        return message.size <= 1_000_000 or self.large <= MEGABYTES * 1_000_000


async def rest(app: RunningApp, run: Run) -> None:
    """Wait until no workflow task of the run is under way."""
    handle: WorkflowHandle[Any, Any] = app.client.temporal.get_workflow_handle(run.id)

    async def resting() -> bool:
        task = (await handle.describe()).raw_description.pending_workflow_task
        assert task.attempt <= 1 or await failures(app, run) == []
        return task.attempt == 0

    await eventually(resting)


async def failures(app: RunningApp, run: Run) -> list[str]:
    """Why workflow tasks of the run have failed."""
    return failed_tasks(await app.client.temporal.get_workflow_handle(run.id).fetch_history())


def check(message: Message, answer: Answer) -> None:
    assert SENT_SECRET not in answer.text
    assert OWN_SECRET not in answer.text
    if message.kind == "update":
        assert not answer.accepted
        assert answer.refused or is_clear(message, answer)


def is_clear(message: Message, answer: Answer) -> bool:
    """Whether a refusal is the run's own, and says what is allowed."""
    assert answer.failure
    if message.name not in UPDATES:
        return "known updates: [" in answer.failure.message
    assert answer.failure.application_failure_info.type == "RefusedError", answer.failure.message
    return not answer.failure.HasField("cause") and len(answer.failure.message) > 20


@uncached
async def test_no_message_harms_a_run_or_changes_it(
    office: Office, run_app: Running, caplog: pytest.LogCaptureFixture
) -> None:
    paid: list[str] = []
    mended: list[bool] = []
    async with run_app(office.build(paid, mended)) as app:
        target = await Target.made(app, office)
        await for_examples(target.throw, batches, questions, count=office.examples)

        run, digests = target.run, target.digests
        paid.clear()
        mended.append(True)
        await run.decide("3", "approve", digest=digests["3"])
        await office.settle(run, digests)
        await run.retry(step="1")
        await run.decide("2", "approve", arguments={"order": "B-2", **MASKED}, digest=digests["2"])
        assert (await run.result()).output == "done"
        assert sorted(paid) == ["A-3", "B-2"]
        assert await failures(app, run) == []
    assert not [one for one in caplog.records if SENT_SECRET in str(vars(one)) or OWN_SECRET in str(vars(one))]


@pytest.mark.parametrize(("count", "sizes"), [(8, [950_000]), (1, [1_900_000, 1_900_000])], ids=["many", "one"])
async def test_large_answers_at_once_leave_the_run_alone(run_app: Running, count: int, sizes: list[int]) -> None:
    async with run_app(OFFICES[0].build([], [])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        large = Message("update", "submit_decision", tuple(Body(b'"' + b"x" * size + b'"') for size in sizes))
        answers = await send_all(app.client.temporal, run.id, [large] * count)
        await run.decide("1", "reject")

        assert not any(answer.accepted for answer in answers)
        assert await failures(app, run) == []
        await run.cancel()


@pytest.mark.parametrize("cached_runs", [1_000, 0])
async def test_signals_that_come_before_a_run_begins_change_nothing(
    office: Office, server: EmbeddedServer, cached_runs: int
) -> None:
    async def throw(batch: list[Message]) -> None:
        client = await Client.connect(server.address, task_queue=f"early-{uuid.uuid4().hex[:8]}")
        run = await client.start("support", "go")
        small = [one for one in (aimed(message, run.id, {}) for message in batch) if one.size < 1_000_000]
        await send_all(client.temporal, run.id, small)
        options = {"task_queue": client.task_queue, "max_cached_workflows": cached_runs}
        async with running(office.build([], []), server, **options) as app:
            state = await app.state(run, lambda state: bool(state.requests))
            assert [request.request_id for request in state.requests] == ["1"]
            assert (state.settled, state.sub_runs) == ([], [])
            await run.decide("1", "approve", digest=state.requests[0].digest)
            await app.requests(run, 4)
            assert await failures(app, run) == []
            await run.cancel()

    await for_examples(throw, st.lists(messages("signal", SIGNALS), min_size=10, max_size=20), count=1)


small_values = values.filter(lambda value: "@1900000 x@" not in str(value))
said = st.fixed_dictionaries({}, optional={"reason": texts, "decided_by": texts})
accepted = st.one_of(
    st.builds(lambda more: {"verdict": "approve", **more}, said),
    st.builds(lambda more: {"verdict": "reject", **more}, said),
    st.builds(lambda value, more: {"verdict": "approve", "arguments": {"value": value}, **more}, small_values, said),
    st.fixed_dictionaries({"result": small_values}, optional={"completed_by": texts}),
    st.fixed_dictionaries({"error": texts | st.just("@10001 x@")}),
)


@uncached
async def test_a_run_goes_on_with_whatever_an_answer_holds(office: Office, run_app: Running) -> None:
    ran: list[str] = []
    answers = accepted if office.renders else accepted.filter(lambda record: "verdict" in record)
    async with run_app(office.takes(ran)) as app:

        async def answer(records: list[dict[str, Any]], by_update: bool) -> None:
            run = await app.client.start(
                "support", " ".join("take" if "verdict" in one else "render" for one in records)
            )
            places = {one.request_id: one.arguments["value"] for one in await app.requests(run, len(records))}
            ran.clear()
            sent = [answer_to(request_id, records[n], by_update) for request_id, n in places.items()]
            await send_all(app.client.temporal, run.id, sent)
            await rest(app, run)
            left = [request.request_id for request in await run.approvals()]  # Their answers were refused.
            assert set(left) <= set(places)
            for request_id in left:
                await run.decide(request_id, "reject")

            assert (await run.result()).output == "done"
            assert await failures(app, run) == []
            assert ran_as_approved(ran, records, [places[request_id] for request_id in left])

        await for_examples(answer, st.lists(answers, min_size=1, max_size=6), st.booleans(), count=office.examples)


def ran_as_approved(ran: list[str], records: list[dict[str, Any]], left: list[int]) -> bool:
    """Whether each approved call ran once, with what the reviewer wrote, to the type: true is not 1."""
    approved = [
        json.loads(as_sent(written(record["arguments"]["value"]))) if "arguments" in record else n
        for n, record in enumerate(records)
        if record.get("verdict") == "approve" and n not in left
    ]
    return sorted(ran) == sorted(map(digest, approved))


def answer_to(request_id: str, record: dict[str, Any], by_update: bool) -> Message:
    times = {"decided_at": NOW, "completed_at": NOW}
    body = Body(as_sent(written({**record, "request_id": request_id, "call_id": request_id, **times})))
    decides = "verdict" in record
    if by_update:
        return Message("update", "submit_decision" if decides else "submit_tool_result", (body,))
    return Message("signal", "decide_approval" if decides else "complete_tool_call", (body,))


async def test_a_run_that_was_told_of_odd_runs_can_be_cancelled(run_app: Running) -> None:
    async with run_app(OFFICES[0].build([], [])) as app:
        for odd in ["x" * 2_000, "é" * 700, "a\x00b", " ", ""]:
            run = await app.client.start("support", "go")
            await app.requests(run, 1)
            handle: WorkflowHandle[Any, Any] = app.client.temporal.get_workflow_handle(run.id)
            await handle.signal("report_sub_run", {"workflow_id": f"{run.id}/{odd}", "agent": "support"})
            await run.cancel()
            with pytest.raises(RunFailedError, match="ancelled"):
                await run.result()

            assert await failures(app, run) == []
