"""That a trigger wakes up its own task, or ends it, and that a run ends with its task, whatever is away meanwhile."""

import asyncio
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time import task_runner
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from pydantic_ai import Tool
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client as TemporalClient

from interlock import Interlock
from interlock.bridge import AgentWorkflowOperator
from interlock.bridge.hook import TemporalHook
from interlock.bridge.identity import Note, TaskIdentity
from interlock.bridge.outcome import Waited
from interlock.bridge.triggers import RunTrigger
from interlock.bridge.watching import watch_of
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.bridge.comms import Airflow
from tests.bridge.keeper import lasting_port
from tests.workflows.scripts import Script, agent, call

TASK = TaskIdentity("tickets", "manual__triggers", "handle", -1, try_number=1, clears=0)


def connected(monkeypatch: pytest.MonkeyPatch, name: str, address: str, **extra: str) -> None:
    """Have Airflow know a connection."""
    host, port = address.split(":")
    connection = {"conn_type": "temporal", "host": host, "port": int(port), "extra": extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))


async def until_waiting(temporal: TemporalClient, number: int = 1) -> None:
    """Wait until so many triggers wait by this client."""

    async def are_waiting() -> bool:
        return len(watch_of(temporal)) == number

    await eventually(are_waiting)


async def first_event(trigger: RunTrigger) -> TriggerEvent:
    async with asyncio.timeout(60):
        return await anext(aiter(trigger.run()))


async def test_who_waits_goes_on_with_what_its_connection_says_now(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is exchanged would otherwise leave it with the old one, for as long as it waits."""
    connected(monkeypatch, "edited", server.address, namespace="nowhere")
    waited = Waited(temporal_conn_id="edited", workflow_id="edited", run_id="", began_at=datetime.now(UTC))
    waiting = asyncio.create_task(first_event(RunTrigger(waited.model_dump(mode="json"))))
    await TemporalHook("edited").client()
    await asyncio.sleep(0)
    connected(monkeypatch, "edited", server.address)

    assert (await waiting).payload["kind"] == "moved"


async def test_a_connection_that_is_not_found_for_a_moment_is_looked_up_again(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = asyncio.create_task(TemporalHook("late").client())
    await asyncio.sleep(0.2)
    assert not looking.done()
    connected(monkeypatch, "late", server.address)

    assert (await looking).temporal.namespace == "default"


async def test_a_deadline_that_passes_while_temporal_is_away_wakes_the_task_up(monkeypatch: pytest.MonkeyPatch) -> None:
    connected(monkeypatch, "away", f"127.0.0.1:{lasting_port()}")
    now = datetime.now(UTC)
    waited = Waited(
        temporal_conn_id="away", workflow_id="away", run_id="", began_at=now, deadline=now + timedelta(seconds=1)
    )
    events = [event async for event in RunTrigger(waited.model_dump(mode="json")).run()]
    assert [event.payload["kind"] for event in events] == ["timeout"]


@pytest.mark.parametrize(
    ("state", "has_client"), [("failed", True), (None, False)], ids=["marked", "deleted before it had a client"]
)
async def test_a_run_ends_with_its_task_also_when_temporal_was_away(
    state: str | None, has_client: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = lasting_port()
    server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)
    connected(monkeypatch, "there", server.address)
    temporal = await TemporalClient.connect(server.address)
    handle = await temporal.start_workflow(
        "Nobody", id="marked", task_queue="nobody", memo=Note.by(TASK, {}).memo(), task_timeout=timedelta(seconds=60)
    )
    waited = Waited(temporal_conn_id="there", workflow_id="marked", run_id="", began_at=datetime.now(UTC))
    trigger: Any = RunTrigger(waited.model_dump(mode="json"))
    trigger.task_instance = TASK
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Airflow(state), raising=False)
    try:
        if has_client:
            waiting = asyncio.create_task(first_event(trigger))
            await until_waiting((await TemporalHook("there").client()).temporal)
            waiting.cancel()
            monkeypatch.delenv("AIRFLOW_CONN_THERE")  # The client that it has is as good.
        server.process.kill()
        await server.process.wait()
        killing = asyncio.create_task(trigger.on_kill())
        await asyncio.sleep(0.5)
        killing.cancel()  # As Airflow does, a second later.
        server = await EmbeddedServer.start(port=port, ui=False, data=tmp_path)

        async def is_asked_to_end() -> bool:
            history = await handle.fetch_history()
            return EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED in {
                one.event_type for one in history.events
            }

        assert await eventually(is_asked_to_end, every_seconds=0.2)
    finally:
        await server.stop()


@pytest.mark.parametrize("is_replaced", [False, True], ids=["waits", "waits again"])
async def test_a_trigger_ends_its_task_while_that_waits_for_it(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    connected(monkeypatch, "ending", server.address)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow := Airflow("deferred"), raising=False)
    temporal = (await TemporalHook("ending").client()).temporal
    released = asyncio.Event()

    async def wait() -> str:
        await released.wait()
        return "waited"

    async with running(Interlock([agent(Script([call("wait")], "done"), tools=[wait])]), server) as app:
        run = await app.client.start("support", "help")
        waited = Waited(
            temporal_conn_id="ending", workflow_id=run.id, run_id="", began_at=datetime.now(UTC), ends_task=True
        )
        events = []
        for number in range(1 + is_replaced):
            trigger: Any = RunTrigger(waited.model_dump(mode="json"))
            trigger.task_instance = replace(TASK, run_id=run.id)
            events.append(asyncio.create_task(first_event(trigger)))
            await until_waiting(temporal, number + 1)
        released.set()
        event = await events[0]
        assert isinstance(event, TaskSuccessEvent) is not is_replaced
        if is_replaced:
            assert isinstance(await events[1], TaskSuccessEvent)
        assert airflow.pushed.count("return_value") == 1


async def test_a_task_that_waits_in_its_process_does_so_any_number_of_times(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may ask hundreds of times. Each wait inside of the one before would be too deep for Python in the end."""
    connected(monkeypatch, "often", server.address)
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow := Airflow("running"), raising=False)
    script = Script([call("refund")], [call("refund")], [call("refund")], "done")
    support = agent(script, tools=[Tool(lambda: "refunded", name="refund", requires_approval=True)])
    async with running(Interlock([support]), server) as app:
        with DAG("tickets"):
            task: Any = AgentWorkflowOperator(
                task_id="often",
                agent="support",
                prompt="go",
                wait_mode="poll",
                approvals="required_actions",
                temporal_conn_id="often",
                task_queue=app.client.task_queue,
            )
        identity = replace(TASK, task_id="often")
        ti = SimpleNamespace(**asdict(identity), task=task, id="", xcom_push=lambda **_: None)
        waiting = asyncio.create_task(asyncio.to_thread(task.execute, {"ti": ti}))
        try:
            for number in range(1, 4):

                async def is_shown(shown: int = number) -> bool:
                    return len(airflow.depths) == shown

                await eventually(is_shown)
                await app.client.attach(identity.workflow_id).decide(str(number), "approve", by="ann@example.com")

            assert await waiting == "done"
        except BaseException:  # Else its thread waits for ever, and with it the process of the tests.
            await app.client.temporal.get_workflow_handle(identity.workflow_id).terminate()
            raise
    assert airflow.depths[1] == airflow.depths[2]
