"""Agents as tasks: what they leave behind, whatever way they are waited for."""

import asyncio
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from interlock.testing import eventually
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.processes import send
from tests.bridge.stack import Stack
from tests.bridge.waiting import Handling

pytestmark = pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.

TOLD = ("Step ", "Waiting ", "Request ", "The run ")


async def test_every_way_to_wait_means_the_same(airflow: AirflowAPI, stack: Stack) -> None:
    prompt = script([("look", {"order": "A-1"})], [("refund", {"order": "A-1"})], answer="refunded")

    async def handled(dag_id: str) -> dict[str, Any]:
        it = await Handling.begin(airflow, stack, dag_id, prompt)
        request_id = await it.request_id()
        while_waiting = await eventually(it.links)
        await it.run.decide(request_id, "approve", by="vera")
        assert await it.until_ended() == "success"

        found = {key: await it.task.xcom(key) for key in ("return_value", "run", "usage", "decisions")}
        assert (found["run"].pop("workflow_id"), found["run"].pop("how")) == (it.run.id, "started")
        assert while_waiting == await it.links()
        run_id = found["run"].pop("run_id")
        assert run_id in (while_waiting["Journal"] or "")
        assert [one.pop("decision_id") for one in found["decisions"]] == [f"{it.run.id}#{request_id}"]
        if dag_id == "agents_with_outlet":
            (event,) = await airflow.asset_events(it.task.run)
            about = {"workflow_id": it.run.id, "run_id": run_id, "decisions": [f"{it.run.id}#{request_id}"]}
            assert event["extra"] == about
        told = [line.split(" since ")[0] for line in await it.log() if line.startswith(TOLD)]
        return {**found, "effects": it.effects(), "told": told, "executions": await it.executions()}

    defer, *others = await asyncio.gather(
        *map(handled, ("agents", "agents_with_outlet", "agents_poll", "agents_reschedule"))
    )

    assert defer["return_value"] == "refunded"
    about_run = {"reused_steps": 0, "temporal_conn_id": "temporal_default", "on_kill": "cancel"}
    assert defer["run"] == {**about_run, "status": "completed"}
    assert defer["usage"]["total"]["requests"] == defer["usage"]["this_try"]["requests"] == 3
    assert [(one["tool"], one["outcome"], one["by"]) for one in defer["decisions"]] == [("refund", "approved", "vera")]
    assert [line["what"] for line in defer["effects"]] == ["model", "look", "model", "refund", "model"]
    assert (len(set(defer["told"])), defer["told"][-1]) == (len(defer["told"]), "The run completed.")
    assert defer["executions"] == 1
    for other in others:
        assert other == defer


async def test_the_function_that_makes_a_prompt_runs_once(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    calls, gate = tmp_path / "calls", tmp_path.name
    # What it returns is no template any more: who has written the text could read Airflow's secrets by one.
    prompt = script([("wait", {"gate": gate})], answer="ORDER {{ is }} done")
    once = await Handling.begin(airflow, stack, "decorated_poll", prompt, calls=str(calls))
    each = await airflow.trigger("mapped", {"prompt": prompt})
    mapped = [each.task("handle", number) for number in range(3)]
    await once.until_waiting()
    send(await stack.task_processes(once.task), SIGKILL)

    await asyncio.gather(*(one.until("deferred", within_seconds=150) for one in mapped))
    await once.task.until("running", try_number=2, within_seconds=150)
    stack.open_gate(gate)

    assert (await once.until_ended(), await each.until_ended(within_seconds=150)) == ("success", "success")
    assert await once.task.xcom() == "ORDER {{ is }} done"
    assert calls.read_text() == "called\n"
    assert [await one.xcom() for one in mapped] == [f"{order} {{{{ is }}}} done" for order in ("A-1", "B-2", "C-3")]


async def test_the_function_runs_again_for_a_run_that_ended_before_it_did_anything(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    calls, queue = tmp_path / "calls", f"nobody-{tmp_path.name}"
    it = await Handling.begin(
        airflow, stack, "decorated_slowly", "help", calls=str(calls), gate=str(tmp_path), queue=queue
    )
    await it.until("deferred")
    await it.run.cancel()  # No worker is told of it: it does not end by that.
    await it.client.temporal.get_workflow_handle(it.run.id).terminate()

    await it.until("deferred", try_number=2)
    assert await it.executions() == 2
    assert calls.read_text() == "called\n" * 2
