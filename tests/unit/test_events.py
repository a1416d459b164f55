"""The events of stored histories: what a reader has counted once is counted so for ever."""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter

from interlock.journal import EventReader, RunEvent

REPLAY = Path(__file__).parents[1] / "replay"
HISTORIES = sorted(
    path for folder in (REPLAY, REPLAY / "openai_agents") for path in folder.glob("histories/AgentWorkflow.*.json")
)
GOLDEN = Path(__file__).parent / "golden" / "events.completed-streamed.json"


def stored(path: Path) -> WorkflowHistory:
    return WorkflowHistory.from_json(path.stem, path.read_text(encoding="utf-8"))


async def events_of(path: Path) -> list[RunEvent]:
    reader = EventReader(pydantic_data_converter)
    return [found for event in stored(path).events for found in await reader.read(event)]


async def test_the_events_of_a_stored_history_keep_their_offsets() -> None:
    """They may get further fields. Another order or another count would send readers that come back astray."""
    (streamed,) = (path for path in HISTORIES if ".completed-streamed." in path.name)
    found = [event.model_dump(mode="json", exclude_defaults=True) for event in await events_of(streamed)]

    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_every_stored_history_has_events_from_its_start_to_its_end(path: Path) -> None:
    events, ending = await events_of(path), path.name.split(".")[1].partition("-")[0]

    assert [event.offset for event in events] == list(range(len(events)))
    assert events[0].kind == "run_started"
    goes_on = ending in ("open", "continued")
    assert [event.kind for event in events].count("run_ended") == (not goes_on)
    assert goes_on or (events[-1].kind, events[-1].status) == ("run_ended", ending)
    started = [event.step for event in events if event.kind == "step_started"]
    finished = [event.step for event in events if event.kind == "step_finished"]
    assert len(set(started)) == len(started)
    assert set(finished) <= set(started)
    asked = [event.request_id for event in events if event.kind == "approval_asked"]
    settled = [event.request_id for event in events if event.kind in ("approval_decided", "approval_withdrawn")]
    assert sorted(settled) == sorted(asked) or (ending == "open" and set(settled) <= set(asked))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_no_secret_of_a_stored_history_is_in_its_events(path: Path) -> None:
    told = "".join(event.model_dump_json() for event in await events_of(path))

    assert "invented-" not in told
