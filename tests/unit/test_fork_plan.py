"""What a fork takes over is read from the history of the run that it comes from."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter

from interlock.fork import Change, plan_fork
from tests.unit.stored import history, scheduled


def retried_in_its_time(document: dict[str, Any]) -> None:
    """As it is stored."""


def retried_as_its_time_was_over(document: dict[str, Any]) -> None:
    """In the very task in which it was: its timer had fired already."""
    for event in document["events"]:
        if attributes := event.pop("timerCanceledEventAttributes", None):
            event["eventType"] = "EVENT_TYPE_TIMER_FIRED"
            event["timerFiredEventAttributes"] = {"startedEventId": attributes["startedEventId"]}


def never_retried(document: dict[str, Any]) -> None:
    """Such a timer ends with its run."""
    document["events"] = [event for event in document["events"] if "Update" not in json.dumps(list(event))]


@pytest.mark.parametrize(
    ("change", "limits", "retried"),
    [
        (retried_in_its_time, 9, (1,)),
        (retried_as_its_time_was_over, 9, (1,)),
        (never_retried, 1, ()),
    ],
)
async def test_a_retry_is_taken_over_with_its_limits(change: Any, limits: int, retried: tuple[int, ...]) -> None:
    document = history("completed-new-limits", change)
    events = WorkflowHistory.from_json("stored", json.dumps(document)).events

    async def read(run_id: str) -> AsyncIterator[HistoryEvent]:
        for event in events:
            yield event

    plan = await plan_fork(read, pydantic_data_converter, run_id="", at=len(scheduled(document)) + 1, change=Change())

    assert plan.run.usage_limits == {"request_limit": limits}
    assert plan.run.fork is not None
    assert plan.run.fork.retried == retried
