"""Sessions: the turns of one conversation, one at a time, each added once."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from pydantic_ai import Agent, Tool
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from interlock import Client, Interlock, MisconfiguredError, RefusedError, Retries, Run, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts import names
from interlock.contracts.payloads import RunOutput, SessionPlace
from interlock.contracts.sessions import LARGEST_SESSION_BYTES, TurnClaim, TurnEnd, TurnEnded
from interlock.server import EmbeddedServer
from interlock.sessions import StoredSessions
from interlock.testing import RunningApp, eventually, running
from interlock.workflows.session import SessionWorkflow
from tests.conftest import Running, uncached
from tests.seeds import for_examples
from tests.workflows.odd_messages import SENT_SECRET, SIGNALS, as_sent, handlers, messages
from tests.workflows.raw_messages import Message, send_all
from tests.workflows.test_fuzz import failures, rest


def texts(messages: list[ModelMessage]) -> list[str]:
    return [str(getattr(part, "content", "")) for message in messages for part in message.parts]


class Talk:
    """A model that answers what it is told, and does by the prompt: pays, works, fails, writes much."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.paid: list[str] = []
        self.works = asyncio.Event()
        self.mended = False

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = texts(messages)
        prompt = next(text for text in reversed(said) if text.startswith("say "))
        answers = sum(isinstance(one, ModelResponse) for one in messages[_last(messages) :])
        if not answers:
            self.asked.append(said)
        if "pay" in prompt and not answers:
            return ModelResponse(parts=[ToolCallPart("pay", {"order": prompt})])
        if "note" in prompt and answers < 25:
            return ModelResponse(parts=[ToolCallPart("note", {"number": answers})])
        if "work" in prompt:
            await self.works.wait()
        if "fail" in prompt and not self.mended:
            raise ValueError("no answer")
        text = "x" * 1_100_000 if "much" in prompt else f"heard {prompt}"
        return ModelResponse(parts=[TextPart(text)])

    def pay(self, order: str) -> str:
        self.paid.append(order)
        return "paid"

    def note(self, number: int) -> str:
        return f"noted {number}"

    def agent(self, name: str = "support", **options: Any) -> Agent[Any, Any]:
        capabilities = [*options.pop("capabilities", []), Durable()]
        tools: list[Any] = [Tool(self.pay, requires_approval=True), self.note]
        return Agent(FunctionModel(self), name=name, tools=tools, capabilities=capabilities, **options)


def _last(messages: list[ModelMessage]) -> int:
    return max(place for place, one in enumerate(messages) if any(text.startswith("say ") for text in texts([one])))


def app_of(*agents: Agent[Any, Any]) -> Interlock:
    # One attempt, so that what fails for good does so at once.
    return Interlock(list(agents), retries=Retries(model=RetryPolicy(maximum_attempts=1)))


@pytest.fixture
def talk() -> Talk:
    return Talk()


@pytest.fixture
def session() -> str:
    return f"customer {uuid.uuid4().hex[:8]}"


async def stands(app: RunningApp, run: Run, state: str) -> SessionPlace:
    found = await app.state(run, lambda one: one.session is not None and one.session.state == state)
    assert found.session is not None
    return found.session


async def failed(run: Run) -> RunFailedError:
    with pytest.raises(RunFailedError) as error:
        await run.result()
    return error.value


def said(messages: list[Any]) -> list[str]:
    return [part["content"] for message in messages for part in message["parts"] if part["part_kind"] == "user-prompt"]


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key != "timestamp"}
    return [timeless(one) for one in value] if isinstance(value, list) else value


def claim(session: str, **fields: Any) -> TurnClaim:
    given = {"workflow_id": "elsewhere", "run_id": str(uuid.uuid4()), "agent": "a", "framework": "pydantic-ai"}
    return TurnClaim.model_validate({"session_id": session, "started_at": datetime.now(UTC), **given, **fields})


def stored(app: RunningApp) -> StoredSessions:
    return StoredSessions(app.client.temporal, app.client.task_queue)


async def test_each_turn_begins_with_what_the_turns_before_it_have_added(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent(), talk.agent("billing"))) as app:
        outputs: list[RunOutput] = []
        for number, agent in enumerate(["support", "billing", "support"], 1):
            run = await app.client.start(agent, f"say {number}", session=session)
            outputs.append(await run.result())
            place = (await run.state()).session
            assert place == SessionPlace(session_id=session, state="added", turn=number)
        state, messages = await app.client.session(session), await app.client.conversation(session)

    assert [output.turn for output in outputs] == [1, 2, 3]
    assert talk.asked == [
        ["say 1"],
        ["say 1", "heard say 1", "say 2"],
        ["say 1", "heard say 1", "say 2", "heard say 2", "say 3"],
    ]
    # The framework's timestamps are of each replay.
    assert timeless(messages) == timeless(outputs[-1].messages)
    own = [one for output in outputs for one in (output.messages or [])[output.new_from :]]
    assert timeless(messages) == timeless(own)
    assert (state.framework, state.turns, state.messages, state.open) == ("pydantic-ai", 3, 6, ())
    assert [(turn.agent, turn.number, turn.messages) for turn in state.closed] == [
        ("support", 1, 2),
        ("billing", 2, 2),
        ("support", 3, 2),
    ]


@pytest.mark.parametrize(("cached", "turns"), [(1_000, 10), (0, 5)])
async def test_turns_at_once_are_had_one_after_another_in_the_order_of_their_starts(
    server: EmbeddedServer, talk: Talk, session: str, cached: int, turns: int
) -> None:
    async with running(app_of(talk.agent()), server, max_cached_workflows=cached) as app:
        first = await app.client.start("support", "say work 0", session=session)
        await stands(app, first, "under_way")
        runs = [first, *[await app.client.start("support", f"say {n}", session=session) for n in range(1, turns)]]

        async def all_wait() -> bool:
            return len((await app.client.session(session)).open) == turns

        await eventually(all_wait, within_seconds=40)
        talk.works.set()
        outputs = await asyncio.gather(*(run.result() for run in runs))
        messages = await app.client.conversation(session)

    assert [output.turn for output in outputs] == list(range(1, turns + 1))
    assert said(messages) == ["say work 0", *(f"say {n}" for n in range(1, turns))]
    assert [len(asked) for asked in talk.asked] == list(range(1, 2 * turns, 2))


async def test_a_turn_waits_for_one_that_waits_for_a_person(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        first = await app.client.start("support", "say pay", session=session)
        await app.requests(first, 1)
        second = await app.client.start("support", "say next", session=session)
        assert (await stands(app, second, "waiting")).turn is None
        assert (await second.state()).status == "running"
        assert (await stands(app, first, "under_way")).turn is None

        async def is_told_why() -> Any:
            (step,) = (await second.journal()).steps
            return step.last_error

        why = await eventually(is_told_why)
        assert why == f"TurnNotYet: It is the turn of run '{first.id}' in session '{session}'."
        (trouble,) = [one for one in await app.client.troubled_runs() if one.workflow_id == second.id]
        assert [(one.kind, one.wrong) for one in trouble.findings] == [("waits_for_its_turn", False)]
        assert talk.asked == [["say pay"]]
        await first.decide("1", "approve")
        output = await second.result()

    assert talk.paid == ["say pay"]
    assert output.turn == 2
    assert talk.asked[-1] == ["say pay", "", "paid", "heard say pay", "say next"]


async def test_a_run_that_fails_or_is_cancelled_adds_nothing_and_lets_the_next_one_come(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say first", session=session)).result()
        fails = await app.client.start("support", "say fail", session=session)
        assert (await failed(fails)).error_type == "ValueError"
        cancelled = await app.client.start("support", "say pay", session=session)
        await app.requests(cancelled, 1)
        waits, last = [await app.client.start("support", f"say {n}", session=session) for n in (8, 9)]
        await stands(app, waits, "waiting")
        await waits.cancel()
        assert (await failed(waits)).status == "cancelled"
        await cancelled.cancel()
        assert (await failed(cancelled)).status == "cancelled"
        output = await last.result()
        state = await app.client.session(session)

    assert output.turn == 2
    assert talk.asked[-1] == ["say first", "heard say first", "say 9"]
    assert talk.paid == []
    assert [turn.outcome for turn in state.closed] == ["added", "released", "released", "released", "added"]


async def test_a_run_that_was_terminated_holds_up_nobody(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        first = await app.client.start("support", "say pay", session=session)
        await app.requests(first, 1)
        second, third = [await app.client.start("support", f"say {n}", session=session) for n in (2, 3)]
        for run in (second, third):
            await stands(app, run, "waiting")
        for run in (first, second):
            await app.client.temporal.get_workflow_handle(run.id).terminate()
        output = await third.result()
        assert output.turn == 1
        assert talk.asked[-1] == ["say 3"]
        # Nobody waits when this one goes: whoever comes finds it out.
        alone = await app.client.start("support", "say pay", id=f"{session}-alone", session=session)
        await app.requests(alone, 1)
        await app.client.temporal.get_workflow_handle(alone.id).terminate()
        again = await app.client.start("support", "say pay", id=f"{session}-alone", session=session, restart=True)
        await app.requests(again, 1)
        await again.decide("1", "approve")
        assert (await again.result()).turn == 2


async def test_a_stuck_run_keeps_its_turn_until_it_is_retried(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        first = await app.client.start("support", "say fail", session=session, stuck_seconds=600)
        await app.state(first, lambda state: bool(state.stuck))
        second = await app.client.start("support", "say next", session=session)
        await stands(app, second, "waiting")
        talk.mended = True
        await first.retry()
        outputs = [await run.result() for run in (first, second)]

    assert [output.turn for output in outputs] == [1, 2]
    assert talk.asked[-1] == ["say fail", "heard say fail", "say next"]


async def test_a_turn_that_is_reported_again_is_added_once(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say 1", session=session)).result()
        state = await app.client.session(session)
        (turn,) = state.closed
        sessions = stored(app)
        again = TurnEnd(session_id=session, run_id=turn.run_id, messages=[{"kind": "request"}])
        reports = await asyncio.gather(*(sessions.end_turn(again) for _ in range(5)))
        with pytest.raises(ApplicationError, match="has had its turn") as refused:
            await sessions.take_turn(claim(session, run_id=turn.run_id))

        assert refused.value.type == "TurnIsOverError"
        assert [(report.outcome, report.number) for report in reports] == [("added", 1)] * 5
        assert await app.client.session(session) == state
        assert (
            await sessions.end_turn(again.model_copy(update={"run_id": str(uuid.uuid4())}))
        ).outcome == "not_at_turn"
        assert len(await app.client.conversation(session)) == 2


async def test_only_the_turn_under_way_adds(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        sessions, first, second = stored(app), claim(session), claim(session)
        assert [(await sessions.take_turn(one)).before for one in (first, second, first, second)] == [0, 1, 0, 1]
        ends = [
            TurnEnd(session_id=session, run_id=one.run_id, messages=[{"of": one.run_id}]) for one in (second, first)
        ]
        assert [(await sessions.end_turn(one)).outcome for one in ends] == ["released", "added"]
        assert await app.client.conversation(session) == [{"of": first.run_id}]


async def test_an_agent_of_another_framework_is_refused(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        sessions, other = stored(app), claim(session, framework="another")
        await sessions.take_turn(other)
        await sessions.end_turn(TurnEnd(session_id=session, run_id=other.run_id, messages=[{"role": "user"}]))
        run = await app.client.start("support", "say 1", id=f"{session}-run", session=session)
        error = await failed(run)
        assert error.error_type == "OtherFrameworkError"
        assert "holds messages of another, which agent 'support' of pydantic-ai cannot read" in str(error)
        assert talk.asked == []
        # It has done nothing, so its id is free for a session that fits.
        again = await app.client.start("support", "say 1", id=f"{session}-run", session=f"{session} 2")
        assert (await again.result()).turn == 1


async def test_what_a_framework_is_said_to_be_counts_once_something_was_added(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        sessions, other = stored(app), claim(session, framework="another")
        await sessions.take_turn(other)
        await sessions.end_turn(TurnEnd(session_id=session, run_id=other.run_id))
        output = await (await app.client.start("support", "say 1", session=session)).result()

    assert output.turn == 1


async def test_a_turn_without_room_completes_and_the_session_takes_no_more(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say 1", session=session)).result()
        much = await app.client.start("support", "say pay much", session=session)
        await app.requests(much, 1)
        waits = await app.client.start("support", "say 3", session=session)
        await stands(app, waits, "waiting")
        await much.decide("1", "approve")
        output = await much.result()
        later = await app.client.start("support", "say 4", session=session)
        errors = [await failed(waits), await failed(later)]
        state = await app.client.session(session)
        messages = await app.client.conversation(session)

    assert (output.turn, len(output.output)) == (None, 1_100_000)
    assert [error.error_type for error in errors] == ["SessionFullError"] * 2
    for error in errors:
        assert f"at most {LARGEST_SESSION_BYTES:,} fit. Start a new session, and say in its first prompt" in str(error)
    assert state.full
    assert [turn.outcome for turn in state.closed] == ["added", "too_large", "released"]
    assert said(messages) == ["say 1"]


async def test_a_fork_goes_on_from_the_conversation_and_is_no_turn(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say 1", session=session)).result()
        run = await app.client.start("support", "say pay", session=session)
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()
        before = await app.client.session(session)
        plan = await app.client.plan_fork(run.id, at=len((await run.journal()).steps) + 1)
        fork = await app.client.fork(plan)
        output = await fork.result()
        first = await app.client.fork(await app.client.plan_fork(run.id, at=1))
        await app.requests(first, 1)

        assert await app.client.session(session) == before
        assert (output.output, output.turn, output.new_from) == ("heard say pay", None, 2)
        assert (await fork.state()).session is None
        assert talk.paid == ["say pay"]
        assert talk.asked[-1] == ["say 1", "heard say 1", "say pay"]
        await first.cancel()
        await failed(first)


async def test_a_run_that_is_cancelled_while_its_turn_is_added_completes(
    run_app: Running, talk: Talk, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work is done, and may be a part of the conversation already."""
    reported, goes_on, end_turn = asyncio.Event(), asyncio.Event(), StoredSessions.end_turn

    async def late(self: StoredSessions, end: TurnEnd) -> TurnEnded:
        ended = await end_turn(self, end)
        reported.set()
        await goes_on.wait()
        return ended

    monkeypatch.setattr(StoredSessions, "end_turn", late)
    async with run_app(app_of(talk.agent())) as app:
        run = await app.client.start("support", "say 1", session=session)
        await reported.wait()
        await run.cancel()
        goes_on.set()
        assert (await run.result()).turn == 1
        assert (await app.client.session(session)).turns == 1


async def test_a_conversation_as_large_as_can_be_is_taken_along(
    short_histories: EmbeddedServer, talk: Talk, session: str
) -> None:
    async with running(app_of(talk.agent()), short_histories) as app:
        sessions, large = stored(app), claim(session)
        await sessions.take_turn(large)
        prompt = {"part_kind": "user-prompt", "content": "x" * 990_000, "timestamp": "2026-11-02T09:30:15Z"}
        messages = [{"kind": "request", "parts": [prompt], "run_id": "r"}]
        await sessions.end_turn(TurnEnd(session_id=session, run_id=large.run_id, messages=messages))
        for number in range(2, 6):
            assert (await (await app.client.start("support", "say 1", session=session)).result()).turn == number
        assert await _executions(app, names.session_workflow(session)) > 1
        assert len((await app.client.conversation(session))[0]["parts"][0]["content"]) == 990_000


async def test_a_run_that_still_waits_for_its_turn_cannot_be_forked(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        first = await app.client.start("support", "say pay", session=session)
        await app.requests(first, 1)
        waits = await app.client.start("support", "say 2", session=session)
        await stands(app, waits, "waiting")
        with pytest.raises(RefusedError, match="has not had its turn in session"):
            await app.client.plan_fork(waits.id, at=1)
        for run in (waits, first):
            await run.cancel()
            await failed(run)


async def test_a_session_that_was_ended_takes_nothing_more_and_its_id_begins_a_new_one(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        run = await app.client.start("support", "say pay", session=session)
        await app.requests(run, 1)
        waits = await app.client.start("support", "say 2", session=session)
        await stands(app, waits, "waiting")
        await app.client.temporal.get_workflow_handle(names.session_workflow(session)).terminate()
        with pytest.raises(RefusedError, match="There is no session"):
            await app.client.session(session)
        assert (await waits.result()).turn == 1
        await run.decide("1", "approve")
        output = await run.result()
        place = (await run.state()).session

    assert (output.output, output.turn) == ("heard say pay", None)
    assert place == SessionPlace(session_id=session, state="not_added")
    assert talk.asked[-1] == ["say 2"]


async def test_a_cancelled_session_ends(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say 1", session=session)).result()
        handle = app.client.temporal.get_workflow_handle(names.session_workflow(session))
        await handle.cancel()

        async def ended() -> bool:
            return (await handle.describe()).status is WorkflowExecutionStatus.CANCELED

        await eventually(ended)
        assert (await (await app.client.start("support", "say 2", session=session)).result()).turn == 1


async def test_a_hook_that_shortens_the_conversation_takes_nothing_from_the_session(
    run_app: Running, talk: Talk, session: str
) -> None:
    def latest(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[-3:]

    async with run_app(app_of(talk.agent(capabilities=[ProcessHistory(latest)]))) as app:
        for number in range(4):
            await (await app.client.start("support", f"say {number}", session=session)).result()
        messages = await app.client.conversation(session)

    assert said(messages) == ["say 0", "say 1", "say 2", "say 3"]
    assert len(messages) == 8
    assert talk.asked[-1] == ["say 2", "heard say 2", "say 3"]


async def test_starting_a_run_twice_under_one_id_is_one_turn(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        runs = [await app.client.start("support", "say 1", id=session, session=session) for _ in range(3)]
        assert [(await run.result()).turn for run in runs] == [1, 1, 1]
        with pytest.raises(RefusedError, match="with another input: session differs"):
            await app.client.start("support", "say 1", id=session, session="another")
        with pytest.raises(RefusedError, match="with another input: session differs"):
            await app.client.start("support", "say 1", id=session)
        assert (await app.client.session(session)).turns == 1


@pytest.fixture(scope="module")
async def short_histories() -> AsyncIterator[EmbeddedServer]:
    """A server that takes a history of 40 events for a long one."""
    config = {"limit.historyCount.suggestContinueAsNew": "40"}
    embedded = await EmbeddedServer.start(port=0, ui=False, dynamic_config=config)
    yield embedded
    await embedded.stop()


@pytest.mark.parametrize("cached", [1_000, 0])
async def test_long_runs_and_long_sessions_go_on_in_other_executions(
    short_histories: EmbeddedServer, talk: Talk, session: str, cached: int
) -> None:
    async with running(app_of(talk.agent()), short_histories, max_cached_workflows=cached) as app:
        runs: list[Run] = []
        for first in range(0, 12, 3):
            runs += [
                await app.client.start("support", f"say {'note' if n == 1 else n}", session=session)
                for n in range(first, first + 3)
            ]
            outputs = await asyncio.gather(*(run.result() for run in runs))
        messages = await app.client.conversation(session)
        executions = [
            await _executions(app, workflow_id) for workflow_id in (runs[1].id, names.session_workflow(session))
        ]

    assert sorted(output.turn or 0 for output in outputs) == list(range(1, 13))
    assert sorted(said(messages)) == sorted(["say note", *(f"say {n}" for n in range(12) if n != 1)])
    assert len(messages) == 11 * 2 + 52
    assert all(number > 1 for number in executions)


async def _executions(app: RunningApp, workflow_id: str) -> int:
    return len([one async for one in app.client.temporal.list_workflows(f'WorkflowId = "{workflow_id}"')])


BAD = {
    "": "at least 1 character",
    "x" * 201: "at most 200 characters",
    "a\nb": "control characters",
    "a\x00b": "control characters",
    " ": "control characters, and spaces around it",
    " a": "control characters, and spaces around it",
    "\ud800": "unable to parse raw data",
}


@pytest.mark.parametrize("session_id", BAD, ids=ascii)
async def test_an_id_that_nobody_can_read_is_refused(server: EmbeddedServer, session_id: str) -> None:
    client = await Client.connect(server.address)
    with pytest.raises(MisconfiguredError, match=f"session: .*{BAD[session_id]}"):
        await client.start("support", "say 1", session=session_id)


async def test_a_session_and_messages_of_ones_own_exclude_each_other(server: EmbeddedServer) -> None:
    client = await Client.connect(server.address)
    with pytest.raises(MisconfiguredError, match="session and message_history exclude each other"):
        await client.start("support", "say 1", session="a", message_history=[])


async def test_no_more_than_a_hundred_turns_wait(server: EmbeddedServer, talk: Talk, session: str) -> None:
    async with running(app_of(talk.agent()), server) as app:
        sessions = stored(app)
        for _ in range(20):
            await asyncio.gather(*(sessions.take_turn(claim(session)) for _ in range(5)))
        with pytest.raises(ApplicationError, match="100 turns are open; no more are taken") as refused:
            await sessions.take_turn(claim(session))
        assert refused.value.type == "SessionBusyError"
        # They are strangers' and of no run: the first run that comes finds that out once there is room for it.
        state = await app.client.session(session)
        await sessions.end_turn(TurnEnd(session_id=session, run_id=state.open[-1].run_id))
        assert (await (await app.client.start("support", "say 1", session=session)).result()).turn == 1


SESSION_UPDATES, SESSION_QUERIES = handlers("updates", SessionWorkflow), handlers("queries", SessionWorkflow)
batches = st.lists(
    st.one_of(messages("signal", SIGNALS), messages("update", SESSION_UPDATES)), min_size=10, max_size=20
)
questions = st.lists(messages("query", SESSION_QUERIES), max_size=3)


@uncached
async def test_no_message_of_a_strangers_harms_a_session_or_changes_it(
    run_app: Running, talk: Talk, session: str
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        await (await app.client.start("support", "say 1", session=session)).result()
        run = await app.client.start("support", "say pay", session=session)
        await app.requests(run, 1)
        state, said_so_far = await app.client.session(session), await app.client.conversation(session)
        conversation = app.client.attach(names.session_workflow(session))
        words = {"#session#": session, "#turn#": state.open[0].run_id, "#foreign#": "0" * 64, "#run#": run.id}

        async def throw(batch: list[Message], asked: list[Message]) -> None:
            for sent in (batch, asked):
                small = [one for one in (_aimed(message, words) for message in sent) if one.size < 1_000_000]
                answers = await send_all(app.client.temporal, conversation.id, small)
                await rest(app, conversation)
                assert not [one for one in answers if SENT_SECRET in one.text]
            assert await app.client.session(session) == state
            assert await app.client.conversation(session) == said_so_far
            assert await failures(app, conversation) == []

        await for_examples(throw, batches, questions, count=5)
        await run.decide("1", "approve")
        assert (await run.result()).turn == 2
        assert (await (await app.client.start("support", "say 3", session=session)).result()).turn == 3


def _aimed(message: Message, words: dict[str, str]) -> Message:
    bodies = []
    for body in message.bodies:
        data = body.data
        for word, meant in words.items():
            data = data.replace(word.encode(), meant.encode())
        bodies.append(replace(body, data=as_sent(data)))
    return replace(message, bodies=tuple(bodies))


@pytest.mark.parametrize("arguments", [[], [7], [{"session_id": ""}], [{"session_id": "other"}], [{}, {}]], ids=str)
async def test_a_session_that_a_stranger_begins_with_nonsense_fails_and_leaves_the_id_free(
    run_app: Running, talk: Talk, session: str, arguments: list[Any]
) -> None:
    async with run_app(app_of(talk.agent())) as app:
        handle: WorkflowHandle[Any, Any] = await app.client.temporal.start_workflow(
            names.SESSION_WORKFLOW,
            args=arguments,
            id=names.session_workflow(session),
            task_queue=app.client.task_queue,
        )
        with pytest.raises(WorkflowFailureError) as error:
            await handle.result()
        assert isinstance(error.value.cause, ApplicationError)
        assert error.value.cause.type == "InvalidInputError"
        assert (await (await app.client.start("support", "say 1", session=session)).result()).turn == 1


async def test_a_notice_of_a_strangers_lets_no_turn_come(run_app: Running, talk: Talk, session: str) -> None:
    async with run_app(app_of(talk.agent())) as app:
        first = await app.client.start("support", "say pay", session=session)
        await app.requests(first, 1)
        second = await app.client.start("support", "say 2", session=session)
        await stands(app, second, "waiting")
        for run in (first, second):
            for notice in ({"session_id": session}, {"session_id": "another"}, {"session_id": ""}, 7):
                handle: WorkflowHandle[Any, Any] = app.client.temporal.get_workflow_handle(run.id)
                await handle.signal(names.TURN_CAME, notice)
            await rest(app, run)
            assert await failures(app, run) == []
        await stands(app, second, "waiting")
        assert talk.asked == [["say pay"]]
        await first.decide("1", "approve")
        assert [(await run.result()).turn for run in (first, second)] == [1, 2]
