"""What becomes of a run when somebody acts on its task, when its task is tried again, and when the time is over."""

import asyncio
from datetime import datetime
from pathlib import Path
from signal import SIGKILL

import pytest

from interlock.bridge._airflow import KILLS_ARE_TOLD
from interlock.testing import eventually
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.keeper import TRIGGERER
from tests.bridge.processes import send
from tests.bridge.stack import Stack
from tests.bridge.waiting import Handling

pytestmark = pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.


async def test_a_run_ends_when_its_task_is_ended(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path.name
    prompt = script([("wait", {"gate": gate})])

    async def after(dag_id: str, action: str) -> tuple[str, str]:
        it = await Handling.begin(airflow, stack, dag_id, prompt)
        await it.until_waiting()
        if action == "delete the Dag":
            airflow.triggered.remove(it.task.run)
            await airflow.ask("DELETE", f"/dags/{dag_id}")
            return await it.until_closed(), "deleted"
        if action == "fail the Dag run":
            await it.task.run.mark("failed")
        else:
            await it.task.mark(action)
        if dag_id == "agents_leave":
            return await it.status(), await it.task.state()
        return await it.until_closed(), await it.task.state()

    endings = await asyncio.gather(
        after("agents", "failed"),
        after("agents", "success"),
        after("agents", "fail the Dag run"),
        after("agents_passing", "delete the Dag"),
        after("agents_poll", "failed"),
        after("agents_terminate", "failed"),
        after("agents_leave", "failed"),
    )
    stack.open_gate(gate)

    assert list(endings) == [
        ("cancelled", "failed"),
        ("cancelled", "success"),
        ("cancelled", "failed"),
        ("cancelled", "deleted"),
        ("cancelled", "failed"),
        ("terminated", "failed"),
        ("running", "failed"),
    ]


@pytest.mark.alone
async def test_a_run_ends_with_a_task_that_is_marked_before_a_trigger_waits(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    prompt = script([("wait", {"gate": tmp_path.name})])
    async with stack.down(TRIGGERER):
        failed, succeeded, left, of_dag_run = them = [
            await Handling.begin(airflow, stack, dag_id, prompt)
            for dag_id in ("agents", "agents_terminate", "agents_leave", "agents")
        ]
        await asyncio.gather(*(it.until("deferred") for it in them))
        await asyncio.gather(
            failed.task.mark("failed"),
            succeeded.task.mark("success"),
            left.task.mark("failed"),
            of_dag_run.task.run.mark("failed"),
        )

        assert [await it.until_closed() for it in (failed, succeeded)] == ["cancelled", "terminated"]
        if KILLS_ARE_TOLD:
            assert await of_dag_run.until_closed() == "cancelled"
        else:  # Airflow tells nobody of the tasks of a Dag run that is marked.
            await of_dag_run.run.cancel()
        assert await left.status() == "running"
        # Of other tests' tasks, which it lists too, some may need a person.
        told = await stack.program("interlock.bridge.check", statuses=(0, 1))
        (line,) = [one for one in told.splitlines() if f"agents_leave.handle {left.task.run.id}" in one]
        assert "goes on without it" not in line
        assert failed.task.run.id not in told
    stack.open_gate(tmp_path.name)
    # SQLite gives the next triggers the ids of those that the triggerer has found, and whose tasks were over.
    after = [await Handling.begin(airflow, stack, "agents", script([("look", {"order": order})])) for order in "ABC"]
    for it in after:
        assert await it.until_ended() == "success"
        assert (await it.task.xcom("run"))["workflow_id"] == it.run.id
        assert len(await it.task.tries()) == 1


async def test_marked_before_it_has_started_its_run_a_task_leaves_none(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    calls, gate = tmp_path / "calls", tmp_path / "gate"
    prompt = script([("wait", {"gate": tmp_path.name})])
    it = await Handling.begin(
        airflow, stack, "decorated_slowly", prompt, calls=str(calls), gate=str(gate), queue="interlock"
    )

    async def is_called() -> bool:
        return calls.exists()

    async def is_asked_to_end() -> bool:
        return any("Terminating process" in line for line in await it.log())

    async def is_gone() -> bool:
        return not await stack.task_processes(it.task)

    await eventually(is_called, within_seconds=150)
    await it.task.mark("failed")
    await eventually(is_asked_to_end)
    gate.touch()  # From here on it has five seconds, in which it starts its run.
    await eventually(is_gone)

    query = f"WorkflowId = '{it.run.id}' AND ExecutionStatus = 'Running'"

    async def none_is_open() -> bool:
        return not (await it.client.temporal.count_workflows(query)).count

    try:
        await eventually(none_is_open)
    finally:
        stack.open_gate(tmp_path.name)
    assert await it.task.state() == "failed"


async def test_a_run_goes_on_when_its_task_runs_again(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    """Cleared while it waits; its process killed while it waits; its run terminated after a clear: each effect once."""
    gate = tmp_path.name
    prompt = script([("look", {"order": "A-1"})], [("wait", {"gate": gate})])

    async def begun(dag_id: str) -> Handling:
        it = await Handling.begin(airflow, stack, dag_id, prompt)
        await it.until_waiting()
        return it

    cleared, killed, terminated = await asyncio.gather(*map(begun, ("agents", "agents_poll", "agents")))
    await asyncio.gather(cleared.task.clear(), terminated.task.clear())
    send(await stack.task_processes(killed.task), SIGKILL)
    await asyncio.gather(*(it.until_waiting(try_number=2) for it in (cleared, killed, terminated)))
    await terminated.client.temporal.get_workflow_handle(terminated.run.id).terminate()
    await terminated.until_waiting(try_number=3)
    stack.open_gate(gate)

    them = cleared, killed
    assert [await it.until_ended() for it in (*them, terminated)] == ["success"] * 3
    assert terminated.whats() == ["model", "look", "model", "wait", "wait", "model"]
    assert (await terminated.task.xcom("run"))["how"] == "continued"
    assert [it.whats() for it in them] == [["model", "look", "model", "wait", "model"]] * 2
    assert [await it.executions() for it in them] == [1] * 2
    for it in them:
        run, usage = await it.task.xcom("run"), await it.task.xcom("usage")
        assert (run["how"], run["reused_steps"]) == ("attached", 3)
        assert (usage["this_try"]["requests"], usage["total"]["requests"]) == (1, 3)
    # A task that is cleared when it has ended starts over.
    await cleared.task.clear()
    await cleared.until("success", try_number=3)
    assert cleared.whats() == ["model", "look", "model", "wait", "model"] * 2
    assert (await cleared.task.xcom("run"))["how"] == "started"


async def test_the_next_try_runs_again_what_was_stuck(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    gate = tmp_path.name
    prompt = script([("look", {"order": "A-1"})], [("fail", {"text": "closed", "until": gate})])
    it = await Handling.begin(airflow, stack, "agents_slowly", prompt)
    await it.until("up_for_retry")
    stack.open_gate(gate)

    assert await it.until_ended() == "success"
    log = "\n".join(await it.log())
    assert "RunStuckError" in log
    assert "failed: ValueError: closed" in log
    assert it.whats() == ["model", "look", "model", "fail", "fail", "model"]
    assert await it.executions() == 1


async def test_a_task_fails_when_its_time_is_over(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    prompt = script([("wait", {"gate": tmp_path.name})])

    async def after(dag_id: str) -> tuple[float, str]:
        it = await Handling.begin(airflow, stack, dag_id, prompt)
        await it.until("failed")
        info = await it.task.info()
        took = datetime.fromisoformat(info["end_date"]) - datetime.fromisoformat(info["start_date"])
        assert "WaitTimedOutError" in "\n".join(await it.log())
        return took.total_seconds(), await it.status() if dag_id == "agents_impatient" else await it.until_closed()

    endings = await asyncio.gather(*map(after, ("agents_in_time", "agents_poll_in_time", "agents_impatient")))
    stack.open_gate(tmp_path.name)

    assert [status for _, status in endings] == ["cancelled", "cancelled", "running"]
    assert min(took for took, _ in endings) >= 8
    assert max(took for took, _ in endings) < 60
