"""How often the trigger of a Required Action looks, without Airflow around it."""

import json
from collections import Counter
from typing import Any

import pytest

from interlock import Client
from interlock.bridge import awaiting
from interlock.bridge.asked import Asked
from interlock.bridge.awaiting import RequestTrigger
from interlock.bridge.form import Answer
from interlock.server import EmbeddedServer

ANSWER = Answer(options=("Approve",), by="airflow:ada")


async def test_where_answers_wake_nobody_they_are_looked_for_often_and_the_run_is_not(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = server.address.split(":")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "temporal", "host": host, "port": int(port)}))
    monkeypatch.setattr(awaiting, "ANSWERS_WAKE", False)
    monkeypatch.setattr(awaiting, "_ANSWERS_EVERY_SECONDS", 0.01)
    looked, history = Counter[str](), RequestTrigger._history

    async def answered(self: RequestTrigger) -> Answer | None:
        looked["answers"] += 1
        return ANSWER if looked["answers"] == 200 else None

    async def counted(self: RequestTrigger, client: Client) -> Any:
        looked["run"] += 1
        return await history(self, client)

    monkeypatch.setattr(RequestTrigger, "_answered", answered)
    monkeypatch.setattr(RequestTrigger, "_history", counted)
    client = await Client.connect(server.address, task_queue="nobody-serves")
    run = await client.start("support", "help")
    asked = Asked(
        temporal_conn_id="here", workflow_id=run.id, run_id=run.started_run_id, request_id="1", digest="0" * 64
    )

    (event,) = [one async for one in RequestTrigger(asked.model_dump(mode="json"), "0" * 32).run()]

    assert Answer.model_validate(event.payload["answer"]) == ANSWER
    assert looked["answers"] == 200
    assert 1 <= looked["run"] <= 5
    await run.cancel()
