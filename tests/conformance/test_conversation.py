"""Each message of a conversation is in the history of its run once, and the model is told all of them all the same."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHistory
from temporalio.common import RetryPolicy

from interlock import Retries, Run
from interlock.activities import conversation as kept
from interlock.contracts.places import MODEL_SUFFIXES
from interlock.histories import StoredHistories
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp
from interlock.workflows import conversation as written
from tests.conformance.conftest import RunApp, app_runner
from tests.conformance.frameworks import Framework, Inner, Made, Said, Script, Tool, app_of, ask, call

TURNS = 6


def text(order: str, length: int = 2_000) -> str:
    return f"{order} {order[-1] * length}"


def look(made: Made) -> str:
    return text(made.order)


def looking(turns: int = TURNS) -> Script:
    return Script(*[[call("look", f"l{n}", f"L-{n}")] for n in range(turns)], "done")


def told(script: Script) -> list[list[Said]]:
    """The conversations of a script's model, each without what the one before it had."""
    new = [script.asked[0]]
    for before, after in zip(script.asked, script.asked[1:], strict=False):
        assert after[: len(before)] == before
        new.append(after[len(before) :])
    return new


async def inputs(app: RunningApp, run: Run) -> list[str]:
    """What the history has of what each model call was given."""
    history: WorkflowHistory = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    asked = [event.activity_task_scheduled_event_attributes for event in history.events]
    return [one.input.payloads[0].data.decode() for one in asked if one.activity_type.name.endswith(MODEL_SUFFIXES)]


@pytest.fixture
def every_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are referred to, however few there are."""
    monkeypatch.setattr(written, "_WORTHWHILE_BYTES", 0)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Workers that remember nothing: how often one has read the history instead."""
    found: list[str] = []
    read = StoredHistories.model_calls

    async def counted(self: StoredHistories, workflow_id: str, run_id: str) -> Mapping[str, Payload]:
        found.append(run_id)
        return await read(self, workflow_id, run_id)

    monkeypatch.setattr(kept, "_KEPT_BYTES", 0)
    monkeypatch.setattr(StoredHistories, "model_calls", counted)
    return found


async def test_the_history_has_each_message_once(framework: Framework, server: EmbeddedServer) -> None:
    script = looking()
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=look)]))
    async with app_runner(server, 1_000)(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        given = await inputs(app, run)

    assert [sum(text(f"L-{n}") in one for one in given) for n in range(TURNS)] == [1] * TURNS
    assert [part.text for part in script.asked[-1] if part.kind == "result"] == [text(f"L-{n}") for n in range(TURNS)]
    assert [[part.kind for part in new] for new in told(script)] == [["user"], *[["call", "result"]] * TURNS]


async def test_a_worker_that_does_not_remember_reads_them_in_the_history(
    framework: Framework, server: EmbeddedServer, reads: list[str], every_reference: None
) -> None:
    script = looking()
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=look)]))
    async with app_runner(server, 1_000)(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        given = await inputs(app, run)

    assert [sum(text(f"L-{n}") in one for one in given) for n in range(TURNS)] == [1] * TURNS
    assert script.results() == {f"l{n}": text(f"L-{n}") for n in range(TURNS)}
    assert len(reads) >= TURNS - 1
    assert len(told(script)) == TURNS + 1


async def test_after_a_replay_one_call_is_written_whole_and_the_next_ones_go_on_from_it(
    framework: Framework, server: EmbeddedServer
) -> None:
    turns = [[call("look", f"l{n}", f"L-{n}")] for n in range(4)]
    script = Script(*turns[:2], [call("refund", "r", "R-1", 1.0)], *turns[2:], "done")
    tools = [Tool(name="look", body=look), Tool(body=look, gated=True)]
    build = app_of(framework.agent(script, tools=tools))
    run_app = app_runner(server, 1_000)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
    async with run_app(build, queue=app.client.task_queue) as app:
        run = app.client.attach(run.id)
        await run.decide("1", "approve")
        await run.result()
        given = await inputs(app, run)

    assert [sum(text(order) in one for one in given) for order in ("L-0", "L-1", "R-1", "L-2", "L-3")] == [
        2,
        2,
        1,
        1,
        1,
    ]
    assert list(script.results()) == ["l0", "l1", "r", "l2", "l3"]
    assert len(told(script)) == 6


async def test_a_call_that_is_tried_again_is_told_the_same(
    framework: Framework, run_app: RunApp, every_reference: None
) -> None:
    failures: list[Exception] = [framework.http_error(503)]

    def answer(conversation: list[Said]) -> str:
        if failures:
            raise failures.pop()
        return "done"

    script = Script(*[[call("look", f"l{n}", f"L-{n}")] for n in range(3)], answer)
    twice = Retries(model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2))
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=look)]), retries=twice)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        assert (await run.result()).output == "done"

    assert script.asked[-1] == script.asked[-2]
    assert script.results() == {f"l{n}": text(f"L-{n}") for n in range(3)}


@pytest.mark.parametrize("in_body", [False, True])
async def test_agents_that_work_side_by_side_have_conversations_of_their_own(
    framework: Framework, run_app: RunApp, every_reference: None, *, in_body: bool
) -> None:
    inner = Script([call("look", "i0", "I-0")], [call("look", "i1", "I-1")], "inner done")
    outer = Script([ask("inner", "a"), ask("inner", "b")], [call("look", "o0", "O-0")], [ask("inner", "c")], "done")
    looks = Tool(name="look", body=look)
    agent = framework.agent(inner, name="inner", tools=[looks])
    build = app_of(framework.agent(outer, tools=[Inner("inner", agent, in_body=in_body), looks]), agent)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        assert (await run.result()).output == "done"

    assert list(outer.results()) == ["a", "b", "o0", "c"]
    assert len(inner.asked) == 9
    assert all(conversation[0] == Said("user", "go") for conversation in inner.asked)
    said: list[list[Any]] = [[part.text for part in one if part.kind == "result"] for one in inner.asked]
    assert sorted(said) == sorted([[], [text("I-0")], [text("I-0"), text("I-1")]] * 3)


async def test_a_conversation_of_more_than_a_payload_survives_replays(
    framework: Framework, server: EmbeddedServer
) -> None:
    large = 400_000
    script = looking()
    tool = Tool(name="look", body=lambda made: text(made.order, large))
    async with app_runner(server, 0)(app_of(framework.agent(script, tools=[tool]))) as app:
        run = await app.client.start("support", "go")
        assert (await run.result()).output == "done"

    assert script.results() == {f"l{n}": text(f"L-{n}", large) for n in range(TURNS)}


async def test_a_conversation_of_more_than_a_payload_is_taken_over_by_another_worker(
    framework: Framework, server: EmbeddedServer
) -> None:
    large = 400_000
    turns = [[call("look", f"l{n}", f"L-{n}")] for n in range(TURNS)]
    script = Script(*turns[:4], [call("refund", "r", "R-1", 1.0)], *turns[4:], "done")
    tools = [Tool(name="look", body=lambda made: text(made.order, large)), Tool(body=look, gated=True)]
    build = app_of(framework.agent(script, tools=tools))
    run_app = app_runner(server, 1_000)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
    async with run_app(build, queue=app.client.task_queue) as app:
        run = app.client.attach(run.id)
        await run.decide("1", "approve")
        assert (await run.result()).output == "done"

    looked = {f"l{n}": text(f"L-{n}", large) for n in range(TURNS)}
    assert script.results() == {**looked, "r": text("R-1")}
