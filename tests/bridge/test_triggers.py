"""What the trigger says and does while it waits, without Airflow around it."""

import asyncio
import contextlib
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from interlock import Client, Interlock
from interlock.bridge import triggers
from interlock.bridge._airflow import whole
from interlock.bridge.outcome import Waited
from interlock.bridge.triggers import RunTrigger
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.bridge.orders import Deliver
from tests.workflows.scripts import Script, agent


def know(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    host, port = server.address.split(":")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "temporal", "host": host, "port": int(port)}))


async def test_a_run_that_no_worker_begins_is_told_of_and_ends_with_the_tasks_time(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(server, monkeypatch)
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


@pytest.mark.parametrize(
    ("seconds", "events"), [(0.05, {"success": 24}), (60, {"ended": 24})], ids=["slow", "not at all"]
)
async def test_many_that_end_together_push_their_xcoms_in_turn_while_that_works(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, seconds: float, events: dict[str, int]
) -> None:
    """Each has its time for itself. Where Airflow takes none in time, only the first ones try."""
    know(server, monkeypatch)
    monkeypatch.setattr(triggers, "_PUSH_SECONDS", 1.5)
    pushed, airflow = Counter[int](), asyncio.Lock()

    async def push(key: str, value: Any, *, map_index: int, **place: Any) -> None:
        pushed[map_index] += 1
        async with airflow:  # It does one after another.
            await asyncio.sleep(seconds)

    monkeypatch.setattr(triggers, "push_xcom", push)
    monkeypatch.setattr(triggers, "task_state", lambda ti: "deferred")
    async with running(Interlock([agent(Script("done"))]), server) as app:
        run = await app.client.start("support", "go")
        await run.result()
        waited = Waited(
            temporal_conn_id="here",
            workflow_id=run.id,
            run_id=run.started_run_id,
            began_at=datetime.now(UTC),
            ends_task=True,
        )

        async def outcome(number: int) -> str:
            trigger = RunTrigger(waited.model_dump(mode="json"))
            trigger.task_instance = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=number)  # type: ignore[assignment]
            (event,) = [event async for event in trigger.run()]
            return event.payload["kind"] if isinstance(event.payload, dict) else "success"

        assert Counter(await asyncio.gather(*map(outcome, range(24)))) == events
    assert len(pushed) == (24 if seconds < 1 else 4)


async def test_a_run_that_no_worker_can_begin_is_told_of(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    know(server, monkeypatch)
    temporal = (await Client.connect(server.address)).temporal
    async with Worker(temporal, task_queue="orders", workflows=[Deliver], workflow_runner=UnsandboxedWorkflowRunner()):
        handle: WorkflowHandle[Any, Any] = await temporal.start_workflow("Delivre", id="typo", task_queue="orders")

        async def has_failed() -> bool:
            described = await handle.describe()
            return described.raw_description.pending_workflow_task.attempt > 1

        await eventually(has_failed)
        now = datetime.now(UTC)
        waited = Waited(
            temporal_conn_id="here",
            task_queue="orders",
            workflow_id=handle.id,
            run_id=handle.first_execution_run_id or "",
            began_at=now - timedelta(minutes=2),
            deadline=now + timedelta(seconds=1),
        )
        with capture_logs() as logs:
            async for _ in RunTrigger(waited.model_dump(mode="json")).run():
                pass

    warnings = [line["event"] for line in logs if "cannot begin run" in line["event"]]
    assert len(warnings) == 1
    assert "Perhaps none has the workflow 'Delivre'" in warnings[0]


async def test_a_question_to_airflow_is_asked_to_its_end() -> None:
    asked, may_answer, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def exchange() -> None:  # As Airflow's triggerer speaks with its supervisor for a call that blocks.
        asked.set()
        await may_answer.wait()
        answered.set()

    asking = asyncio.create_task(whole(sync_to_async(async_to_sync(exchange))()))
    await asked.wait()
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    may_answer.set()

    async with asyncio.timeout(60):
        await answered.wait()
