"""Parts of Airflow, Temporal and workers die while tasks wait: each task resumes once, each effect is there once."""

import asyncio
import random
from datetime import datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from interlock.bridge.progress import line_of
from interlock.testing import eventually
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.keeper import API_SERVER, SCHEDULER, TEMPORAL, TRIGGERER, WORKER
from tests.bridge.processes import send
from tests.bridge.stack import Stack
from tests.bridge.waiting import Handling, until_at_rest

pytestmark = pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.

ALL_ONCE = ["model", "look", "model", "wait", "model", "look", "model"]


def long_script(gate: str) -> str:
    return script([("look", {"order": "A-1"})], [("wait", {"gate": gate})], [("look", {"order": "B-2"})])


@pytest.mark.alone
async def test_a_triggerer_that_dies_is_not_noticed(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path.name

    async def begun(dag_id: str) -> Handling:
        it = await Handling.begin(airflow, stack, dag_id, long_script(gate))
        await it.until_waiting()
        await until_at_rest(stack, it.task)
        return it

    in_time, *others = await asyncio.gather(*map(begun, ("agents_in_30s", "agents", "agents_with_outlet")))
    await stack.kill(TRIGGERER)

    await in_time.task.until("failed")
    info = await in_time.task.info()
    took = datetime.fromisoformat(info["end_date"]) - datetime.fromisoformat(info["start_date"])
    assert 30 <= took.total_seconds() < 90
    assert await in_time.until_closed() == "cancelled"
    stack.open_gate(gate)
    for it, processes in zip(others, (1, 2), strict=True):  # The trigger itself ends a task without outlets.
        assert await it.until_ended() == "success"
        assert it.whats() == ALL_ONCE
        log = await it.log()
        assert log.count("DAG bundles loaded: dags-folder") == processes
        lines = [line_of(event) async for event in it.run.events(follow=False)]
        assert [line for line in log if line in lines] == list(filter(None, lines))


@pytest.mark.alone
async def test_a_triggerer_that_stood_still_wakes_no_task_a_second_time(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    """Another has taken its triggers over, and then both have the event."""
    it = await Handling.begin(airflow, stack, "agents_with_outlet", long_script(tmp_path.name))
    await it.until_waiting()
    await until_at_rest(stack, it.task)

    async def is_taken_over() -> bool:
        return it.triggerers() == 2

    async with stack.another(TRIGGERER):
        async with stack.stopped(TRIGGERER):
            await eventually(is_taken_over, within_seconds=150, every_seconds=0.2)
        stack.open_gate(tmp_path.name)

        assert await it.until_ended() == "success"
    assert it.whats() == ALL_ONCE
    assert (await it.log()).count("DAG bundles loaded: dags-folder") == 2
    assert len(await airflow.asset_events(it.task.run)) == 1
    assert len(await it.task.tries()) == 1


@pytest.mark.alone
async def test_all_else_may_die(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path.name

    async def begun(dag_id: str) -> Handling:
        it = await Handling.begin(airflow, stack, dag_id, long_script(gate))
        await it.until_waiting()
        return it

    them = [await begun("agents"), await begun("agents")]
    await asyncio.gather(*map(stack.kill, (TEMPORAL, WORKER, SCHEDULER, API_SERVER)))
    stack.open_gate(gate)

    for it in them:
        assert await it.until_ended() == "success"
        # The tool's call was at work when its worker was killed.
        assert [what for what in it.whats() if what != "wait"] == [what for what in ALL_ONCE if what != "wait"]
        assert await it.executions() == 1


async def test_a_task_process_that_dies_has_started_one_run(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path.name

    async def killed(moment: float) -> Handling:
        it = await Handling.begin(airflow, stack, "agents", long_script(gate))

        async def process() -> list[int]:
            return await stack.task_processes(it.task)

        pids = await eventually(process)
        await asyncio.sleep(moment)
        send(pids, SIGKILL)
        return it

    them = await asyncio.gather(*(killed(random.uniform(0, 2)) for _ in range(4)))
    stack.open_gate(gate)

    for it in them:
        assert await it.until_ended() == "success"
        assert it.whats() == ALL_ONCE
        assert await it.executions() == 1
