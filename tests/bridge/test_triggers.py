"""What the trigger says and does while it waits, without Airflow around it."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType

from interlock import Client
from interlock.bridge.outcome import Waited
from interlock.bridge.triggers import RunTrigger
from interlock.server import EmbeddedServer


async def test_a_run_that_no_worker_begins_is_told_of_and_ends_with_the_tasks_time(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = server.address.split(":")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "temporal", "host": host, "port": int(port)}))
    client = await Client.connect(server.address, task_queue="nobody-serves")
    run = await client.start("support", "help")
    now = datetime.now(UTC)
    waited = Waited(
        temporal_conn_id="here",
        task_queue="nobody-serves",
        workflow_id=run.id,
        run_id=run.started_run_id,
        began_at=now - timedelta(minutes=2),
        deadline=now + timedelta(seconds=3),
    )
    place, arguments = RunTrigger(waited.model_dump(mode="json")).serialize()
    assert place == f"{RunTrigger.__module__}.{RunTrigger.__qualname__}"

    with capture_logs() as logs:
        events = [event async for event in RunTrigger(**json.loads(json.dumps(arguments))).run()]

    assert [event.payload["kind"] for event in events] == ["timeout"]
    assert [Waited.model_validate(event.payload["waited"]) for event in events] == [waited]
    warnings = [line["event"] for line in logs if "No worker" in line["event"]]
    assert [line.partition(" since ")[0] for line in warnings] == [
        f"No worker has begun run {run.id} on task queue 'nobody-serves'"
    ]
    history = await client.temporal.get_workflow_handle(run.id).fetch_history()
    kind = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED
    (cancelled,) = [event for event in history.events if event.event_type == kind]
    assert cancelled.workflow_execution_cancel_requested_event_attributes.cause == "The task's time is over."
