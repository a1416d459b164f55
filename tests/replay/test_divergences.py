"""What is said of a history that does not replay: the step, what the history has there, and what the build wants."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry
from temporalio.client import WorkflowHistory
from temporalio.workflow import NondeterminismError

from interlock import Interlock, MisconfiguredError
from interlock.replay import Divergence, Replayed, Stored, read_files, replaying
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.replay.agents import make_app
from tests.replay.export import path_of
from tests.workflows.scripts import Script, agent, call

WAITING = path_of("open-awaiting-approval")
Change = Callable[[dict[str, Any]], object]


async def replayed(app: Interlock, stored: Stored) -> Replayed:
    async with replaying(app) as replay:
        return await replay(stored)


async def divergence(app: Interlock, stored: Stored) -> Divergence:
    found = await replayed(app, stored)
    assert found.outcome == "diverges"
    assert found.divergence is not None
    return found.divergence


def changed(path: Path, change: Change, folder: Path) -> Stored:
    document = json.loads(path.read_text())
    change(document)
    (folder / path.name).write_text(json.dumps(document))
    return read_files([folder / path.name])[0]


async def test_a_call_that_is_no_longer_made_is_named_as_the_step_it_was() -> None:
    found = await divergence(make_app(look_up_name="find"), read_files([WAITING])[0])

    assert (found.kind, found.step) == ("missing", 5)  # After the model's turn and the questions about three refunds.
    assert found.after is not None
    assert found.after.summary == "ask about refund: order A-1003, amount 300.00"
    assert found.recorded is not None
    assert found.recorded.name == "agent__support__toolset__<agent>__call_tool"
    assert found.recorded.summary == "look_up: order A-1001"
    assert found.wanted is None
    assert found.message == "At step 5 the history has 'look_up: order A-1001'; this build does not want it there."
    assert found.hint.startswith("In this build there is no such tool")
    assert "TMPRL1100" in found.raw


async def test_an_approval_that_is_no_longer_asked_for_is_named() -> None:
    found = await divergence(make_app(gated=False), read_files([WAITING])[0])

    assert found.kind == "other"
    assert found.message == (
        "At step 2 the history has the question about 'refund: order A-1001, amount 10.00'; "
        "this build wants 'refund: order A-1001, amount 10.00'."
    )
    assert found.hint == "The call waited for an approval; in this build the tool needs none."


def swap_the_first_two(document: dict[str, Any]) -> None:
    """As if the calls of a turn had been made in another order: a question, and a call that needs none."""
    scheduled = [e for e in document["events"] if e["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"][1:5]
    first, last = (event["activityTaskScheduledEventAttributes"] for event in (scheduled[0], scheduled[-1]))
    first["activityType"], last["activityType"] = last["activityType"], first["activityType"]


async def test_the_same_calls_in_another_order_are_named(tmp_path: Path) -> None:
    found = await divergence(make_app(), changed(WAITING, swap_the_first_two, tmp_path))

    assert found.kind == "order"
    assert "first; this build wants the question about 'refund: order A-1001, amount 10.00' first" in found.message


def rename_the_marker(document: dict[str, Any]) -> None:
    (marker,) = (e["markerRecordedEventAttributes"] for e in document["events"] if "markerRecordedEventAttributes" in e)
    (payload,) = marker["details"]["patch-data"]["payloads"]
    data = json.loads(base64.b64decode(payload["data"])) | {"id": "another"}
    payload["data"] = base64.b64encode(json.dumps(data).encode()).decode()


async def test_what_only_temporal_sees_is_told_in_its_words(tmp_path: Path) -> None:
    found = await divergence(make_app(), changed(WAITING, rename_the_marker, tmp_path))

    assert found.kind == "unknown"
    assert found.message.startswith(
        "At step 1 this build does not do what the history has: Non-deprecated patch marker"
    )
    assert "Failure {" not in found.message


class Breaks(AbstractCapability[Any]):
    """A hook that fails in a way that Temporal takes for a bug in workflow code."""

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        raise NondeterminismError("the hook is broken")


async def test_code_that_fails_by_itself_is_told_apart(server: EmbeddedServer) -> None:
    async with running(Interlock([agent(Script("done"))]), server) as app:
        run = await app.client.start("support", "go")
        await run.result()
        stored = Stored(await app.client.temporal.get_workflow_handle(run.id).fetch_history())

    found = await divergence(Interlock([agent(Script("done"), capabilities=[Breaks()])]), stored)

    assert found.kind == "code"
    assert found.message.startswith("At step 1 this build's code fails: ")
    assert "the hook is broken (in Breaks.before_model_req" in found.message


class StumblesOnce(Breaks):
    """The second model request fails its workflow task, once."""

    stumbled = False

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        if ctx.run_step == 2 and not self.stumbled:
            self.stumbled = True
            await super().before_model_request(ctx, request_context)
        return request_context


async def test_steps_are_found_behind_a_failed_workflow_task(server: EmbeddedServer) -> None:
    """A failed task leaves events that lead to nothing."""
    script = Script([call("look", "a")], "done")
    tools = [Tool(lambda: "seen", name="look")]
    async with running(Interlock([agent(script, tools=tools, capabilities=[StumblesOnce()])]), server) as app:
        run = await app.client.start("support", "go")
        await run.result()
        stored = Stored(await app.client.temporal.get_workflow_handle(run.id).fetch_history())

    assert any(event.HasField("workflow_task_failed_event_attributes") for event in stored.history.events)
    assert (await replayed(Interlock([agent(script, tools=tools)]), stored)).outcome == "replays"
    found = await divergence(Interlock([agent(script, tools=tools, output_type=int)]), stored)
    assert (found.kind, found.step) == ("other", 4)
    assert found.message == (
        "At step 4 the history has the run's end (completed); this build wants 'model scripted, turn 3'."
    )


async def test_a_build_in_which_a_run_would_be_stuck_is_told_as_that(server: EmbeddedServer) -> None:
    def look(ctx: RunContext[Any]) -> str:
        if ctx.retry == 0:
            raise ModelRetry("again")
        return "seen"

    script = Script([call("look", "a")], [call("look", "b")], "done")
    async with running(Interlock([agent(script, tools=[look])]), server) as app:
        run = await app.client.start("support", "go", stuck_seconds=60)
        await run.result()
        stored = Stored(await app.client.temporal.get_workflow_handle(run.id).fetch_history())

    found = await divergence(Interlock([agent(script, tools=[look], retries=0)]), stored)

    assert found.message.startswith(
        "At step 3 the history has 'model scripted, turn 2'; this build wants a timer (stuck: "
    )
    assert found.hint == "In this build something fails there, and the run would be stuck."


async def test_an_agent_that_the_app_does_not_have_is_no_divergence() -> None:
    found = await replayed(Interlock([agent(Script("x"), name="another")]), read_files([WAITING])[0])

    assert (found.agent, found.outcome, found.divergence) == ("support", "unknown_agent", None)


async def test_one_replayer_takes_many_histories_and_goes_on_after_a_divergence() -> None:
    async with replaying(make_app(look_up_name="find")) as replay:
        names = ["open-awaiting-approval", "completed-without-a-tool", "completed-judge", "completed-plain"]
        found = [await replay(stored) for stored in read_files([path_of(name) for name in names])]

    assert [one.outcome for one in found] == ["diverges", "replays", "replays", "diverges"]


async def test_a_run_that_no_worker_has_taken_on_replays(server: EmbeddedServer) -> None:
    app = Interlock([agent(Script("done"))])
    async with running(app, server) as there:
        lonely = type(there.client)(there.client.temporal, task_queue="nobody-here")
        run = await lonely.start("support", "go")
        history = await there.client.temporal.get_workflow_handle(run.id).fetch_history()

    assert (await replayed(app, Stored(history))).outcome == "replays"


def other_type(document: dict[str, Any]) -> None:
    document["events"][0]["workflowExecutionStartedEventAttributes"]["workflowType"]["name"] = "OrderWorkflow"


def without_the_start(document: dict[str, Any]) -> None:
    del document["events"][0]


def empty(document: dict[str, Any]) -> None:
    document["events"] = []


def no_events(document: dict[str, Any]) -> None:
    del document["events"]


def decoded(document: dict[str, Any]) -> None:
    document["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"] = [{"agent": "support"}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_type, "is the history of a workflow of type 'OrderWorkflow', not of a run of an agent"),
        (without_the_start, "is no history from its beginning"),
        (empty, "is no history from its beginning"),
        (no_events, "is no history in JSON"),
        (decoded, "has decoded payloads"),
    ],
)
def test_a_file_that_is_no_history_of_a_run_is_named(change: Change, message: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=f"{WAITING.name} {message}"):
        changed(WAITING, change, tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '"x"', '{"events": [1]}', '{"events": [{"eventType": []}]}', "[" * 100_000]
)
def test_any_other_text_is_no_history(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)

    with pytest.raises(MisconfiguredError, match=r"x\.json is no history"):
        read_files([tmp_path])


def test_an_empty_folder_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=r"has no \*\.json file, so there is nothing to replay"):
        read_files([tmp_path])


def test_a_history_keeps_the_id_of_its_run_whatever_its_file_is_called(tmp_path: Path) -> None:
    """Runs of agents in tools are known by ids that begin with it."""
    (tmp_path / "x.json").write_text(path_of("completed-sub-run").read_text())
    (stored,) = read_files([tmp_path])

    assert stored.history.workflow_id == "completed-sub-run"
    assert WorkflowHistory.from_json("x", (tmp_path / "x.json").read_text()).run_id == stored.history.run_id
