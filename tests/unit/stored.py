"""Stored histories, changed as a test needs them. Needs no server."""

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from interlock.journal import Journal, read_journal
from tests.replay.export import HISTORIES

STORED = sorted(HISTORIES.glob("AgentWorkflow.*.json"))
NAMES = {path.name.split(".")[1]: path for path in STORED}
Change = Callable[[dict[str, Any]], None]


def history(name: str, *changes: Change) -> dict[str, Any]:
    """A stored history as its document, changed."""
    document: dict[str, Any] = json.loads(NAMES[name].read_text(encoding="utf-8"))
    for change in changes:
        change(document)
    return document


async def journal_of(
    document: str | dict[str, Any], *changes: Change, converter: DataConverter = pydantic_data_converter
) -> Journal:
    """The journal of a history: of a document, or a stored one by its name."""
    found = history(document, *changes) if isinstance(document, str) else document
    return await read_journal(WorkflowHistory.from_json("stored", json.dumps(found)).events, converter)


def event(document: dict[str, Any], event_id: int) -> dict[str, Any]:
    """One event of a document."""
    (found,) = (one for one in document["events"] if one["eventId"] == str(event_id))
    return dict(found)


def scheduled(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that schedule activities."""
    return [one for one in document["events"] if one["eventType"] == "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"]


def payloads(part: Any) -> list[dict[str, Any]]:
    """Every payload below a part of a document."""
    if isinstance(part, dict):
        own = [part] if isinstance(part.get("metadata"), dict) and "encoding" in part["metadata"] else []
        return own + [one for value in part.values() for one in payloads(value)]
    return [one for value in part for one in payloads(value)] if isinstance(part, list) else []


def value_of(payload: dict[str, Any]) -> Any:
    return json.loads(base64.b64decode(payload["data"])) if "data" in payload else None


def set_value(payload: dict[str, Any], value: Any) -> None:
    payload["data"] = base64.b64encode(json.dumps(value).encode()).decode()


def payload_of(value: Any) -> dict[str, Any]:
    made = {"metadata": {"encoding": base64.b64encode(b"json/plain").decode()}, "data": ""}
    set_value(made, value)
    return made


def rewritten(change: Callable[[str], str]) -> Change:
    """Changes the text of every payload, and of every message of a failure."""

    def apply(document: dict[str, Any]) -> None:
        for payload in payloads(document):
            if payload.get("data"):
                text = base64.b64decode(payload["data"]).decode()
                payload["data"] = base64.b64encode(change(text).encode()).decode()
        for message in messages(document):
            message["message"] = change(message["message"])

    return apply


def messages(part: Any) -> list[dict[str, Any]]:
    """Every failure below a part of a document."""
    if isinstance(part, dict):
        own = [part] if isinstance(part.get("message"), str) else []
        return own + [one for value in part.values() for one in messages(value)]
    return [one for value in part for one in messages(value)] if isinstance(part, list) else []


def after(event_id: int, *added: dict[str, Any]) -> Change:
    """Puts events behind the one with this id."""

    def apply(document: dict[str, Any]) -> None:
        at = 1 + [one["eventId"] for one in document["events"]].index(str(event_id))
        time = document["events"][at - 1]["eventTime"]
        numbered = [{"eventId": str(9_000 + at + n), "eventTime": time, **one} for n, one in enumerate(added)]
        document["events"][at:at] = copy.deepcopy(numbered)

    return apply


def signal(name: str, message: Any) -> dict[str, Any]:
    attributes = {"signalName": name, "input": {"payloads": [payload_of(message)]}, "identity": "client"}
    return {
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED",
        "workflowExecutionSignaledEventAttributes": attributes,
    }


def workflow_task() -> dict[str, Any]:
    return {"eventType": "EVENT_TYPE_WORKFLOW_TASK_COMPLETED", "workflowTaskCompletedEventAttributes": {}}


def decision(request_id: str, verdict: str, by: str, **more: Any) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "verdict": verdict,
        "decided_by": by,
        "decided_at": "2026-11-29T22:20:52.000000Z",
        **more,
    }


def asked_in_full(**arguments: Any) -> Change:
    """What runs write now: the question about a tool holds the request, its call and what was proposed."""

    def apply(document: dict[str, Any]) -> None:
        questions = [one for one in scheduled(document) if activity_type(one) == "describe_tool"]
        for number, one in enumerate(questions, 1):
            (payload,) = payloads(one["activityTaskScheduledEventAttributes"]["input"])
            question = value_of(payload)
            path = [question["agent"]]
            more = {"request_id": str(number), "kind": "approval", "agent_path": path, "call_id": f"r{number}"}
            set_value(payload, {**question, **more, "arguments": arguments})

    return apply


def activity_type(scheduled_event: dict[str, Any]) -> str:
    return str(scheduled_event["activityTaskScheduledEventAttributes"]["activityType"]["name"])
