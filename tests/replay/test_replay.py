"""Runs that older code began go on with this code: every stored history replays. Needs no server."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.workflow import NondeterminismError

from interlock.worker import make_replayer
from tests.replay import agents, export
from tests.replay.export import path_of, readable
from tests.replay.openai_agents import agents as openai_agents
from tests.replay.openai_agents import export as openai_export

APPS = {export.HISTORIES: agents.make_app, openai_export.HISTORIES: openai_agents.make_app}
STORED = sorted(path for folder in APPS for path in folder.glob("*.json"))
LAST_EVENTS = {
    "continued": "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
    "completed": "EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED",
    "failed": "EVENT_TYPE_WORKFLOW_EXECUTION_FAILED",
    "cancelled": "EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED",
}
MACHINE = re.compile(
    r"""(?<![\w/:.])/(?:home|root|Users|private|work|workspace|tmp|usr|opt|var|etc|mnt|builds?|app|srv)/
    |\b[A-Za-z]:\\ |site-packages |\.py\b |\w@[\w-]+ |\b(?:\d{1,3}\.){3}\d{1,3}\b""",
    re.VERBOSE,
)


def id_of(path: Path) -> str:
    return f"{path.parent.parent.name}-{path.stem}"


def name_of(path: Path) -> str:
    return path.name.split(".")[1]


def history(path: Path, change: Callable[[str], str] = str) -> WorkflowHistory:
    found = WorkflowHistory.from_json(name_of(path), change(path.read_text(encoding="utf-8")))
    workflow_id = found.events[0].workflow_execution_started_event_attributes.workflow_id
    return WorkflowHistory(workflow_id or found.workflow_id, found.events)


@pytest.mark.parametrize("path", STORED, ids=id_of)
async def test_a_stored_history_still_replays(path: Path) -> None:
    await make_replayer(APPS[path.parent]()).replay_workflow(history(path))


@pytest.mark.parametrize(
    ("folder", "endings"),
    [
        (export.HISTORIES, export.ENDINGS),
        (openai_export.HISTORIES, {**openai_export.ENDINGS, **openai_export.LONG}),
    ],
    ids=["pydantic-ai", "openai-agents"],
)
def test_every_ending_has_a_history(folder: Path, endings: dict[str, Any]) -> None:
    """Without one: `python -m tests.replay.export`, or `python -m tests.replay.openai_agents.export`, adds it."""
    assert set(endings) - {name_of(path) for path in STORED if path.parent == folder} == set()
    assert {name.partition("-")[0] for name in endings} == {*LAST_EVENTS, "open"} - {"continued"}


async def test_an_export_leaves_the_histories_that_are_there_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in STORED}
    await export.export(force=False)
    await openai_export.export_all(force=False)

    assert {path: path.read_bytes() for path in STORED} == before
    counts = [len(endings) for endings in (export.ENDINGS, openai_export.ENDINGS, openai_export.LONG)]
    assert capsys.readouterr().out.splitlines() == [f"0 of {count} endings exported." for count in counts]


@pytest.mark.parametrize("path", STORED, ids=id_of)
def test_a_history_ends_as_its_name_says(path: Path) -> None:
    ending = name_of(path).partition("-")[0]
    last = json.loads(path.read_text(encoding="utf-8"))["events"][-1]["eventType"]

    if ending == "open":
        assert last not in LAST_EVENTS.values()
    else:
        assert last == LAST_EVENTS[ending]


@pytest.mark.parametrize("path", STORED, ids=id_of)
def test_a_history_says_nothing_of_the_machine_that_made_it(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    found = MACHINE.search(readable(document))

    assert found is None, found
    assert identities(document) <= {"client", "worker", "history-service"}
    assert "stackTrace" not in path.read_text(encoding="utf-8")


def identities(document: Any) -> set[str]:
    if isinstance(document, dict):
        here = {str(value) for key, value in document.items() if key == "identity"}
        return here.union(*(identities(value) for value in document.values()))
    return set().union(*map(identities, document)) if isinstance(document, list) else set()


def tool_activity_renamed(text: str) -> str:
    return text.replace("__call_tool", "__use_tool")


def asked_for_nothing(text: str) -> str:
    return text.replace('"describe_tool"', '"describe_tools"')


def decided_otherwise(text: str) -> str:
    """Every decision is a rejection, so that nothing leads to the tool's activities that follow."""
    document = json.loads(text)
    for event in document["events"]:
        accepted = event.get("workflowExecutionUpdateAcceptedEventAttributes")
        if accepted:
            payload = accepted["acceptedRequest"]["input"]["args"]["payloads"][0]
            decision = json.loads(base64.b64decode(payload["data"]))
            decision |= {"verdict": "reject", "arguments": None}
            payload["data"] = base64.b64encode(json.dumps(decision).encode()).decode()
    return json.dumps(document)


@pytest.mark.parametrize("folder", APPS, ids=["pydantic-ai", "openai-agents"])
@pytest.mark.parametrize("change", [tool_activity_renamed, asked_for_nothing, decided_otherwise])
async def test_a_history_of_other_events_does_not_replay(folder: Path, change: Callable[[str], str]) -> None:
    """Shows that the check above can fail."""
    with pytest.raises(NondeterminismError):
        await make_replayer(APPS[folder]()).replay_workflow(
            history(path_of("completed-decisions", folder=folder), change)
        )


@pytest.mark.parametrize("folder", APPS, ids=["pydantic-ai", "openai-agents"])
@pytest.mark.parametrize("change", [{"look_up_name": "find"}, {"gated": False}], ids=str)
async def test_agents_that_changed_under_a_waiting_run_do_not_replay_it(folder: Path, change: dict[str, Any]) -> None:
    """Shows that the check above can fail: a tool was renamed, or no longer needs an approval."""
    with pytest.raises(NondeterminismError):
        await make_replayer(APPS[folder](**change)).replay_workflow(
            history(path_of("open-awaiting-approval", folder=folder))
        )
