"""Tasks that cannot do what they are asked to: each says why, and is tried again only where that can help."""

import uuid
from signal import SIGKILL

import pytest
from airflow.sdk import __version__ as sdk_version

from interlock import Client
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.processes import send
from tests.bridge.stack import Stack
from tests.bridge.waiting import Handling

pytestmark = pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.

# What the log of the last try says, and how many tries there were.
SAID = {
    "no_connection": ("AirflowNotFoundException: Airflow has no connection 'nowhere'. Make one", 2),
    "other_type": ("BadTaskError: The connection 'warehouse-", 1),
    "nobody_answers": ("TemporalUnavailableError: No Temporal server answers at 127.0.0.1:1 (connection", 2),
    "no_such_agent": ("RunFailedError", 2),
    "no_json": ("BadTaskError: agent_deps is not JSON", 1),
    "no_prompt": ("BadTaskError: The prompt of task 'no_prompt' is empty", 1),
    "large_prompt": ("BadTaskError", 1),
    "taken": ("ForeignRunError: Workflow id", 1),
}


async def test_bad_input_is_named(airflow: AirflowAPI, stack: Stack) -> None:
    client = await Client.connect(stack.temporal_address)
    taken = await client.start("support", "help", id=f"taken-{uuid.uuid4().hex}")
    connection = {"connection_id": f"down-{uuid.uuid4().hex}", "conn_type": "temporal", "host": "127.0.0.1", "port": 1}
    await airflow.ask("POST", "/connections", connection)
    database = {"connection_id": f"warehouse-{uuid.uuid4().hex}", "conn_type": "postgres", "host": "127.0.0.1"}
    await airflow.ask("POST", "/connections", database)
    params = {"down": connection["connection_id"], "database": database["connection_id"], "taken": taken.id}
    dag_run = await airflow.trigger("bad", params)
    assert await dag_run.until_ended(within_seconds=300) == "failed"

    for task_id, (words, tries) in SAID.items():
        task = dag_run.task(task_id)
        log = "\n".join(await task.log((await task.info())["try_number"]))
        assert words in log, f"{task_id}: {log}"
        assert "no running event loop" not in log, task_id
        assert len(await task.tries()) == tries, task_id
    assert (await taken.result()).output == "You said: help"


async def test_a_changed_input_is_never_taken_in_silence(airflow: AirflowAPI, stack: Stack) -> None:
    prompt = script([("wait", {"gate": "never"})], answer="try TRY")
    it = await Handling.begin(airflow, stack, "agents_poll", prompt)
    await it.until_waiting()
    send(await stack.task_processes(it.task), SIGKILL)

    assert await it.until_ended() == "failed"
    log = "\n".join(await it.task.log(2))
    assert "InputChangedError: Run" in log
    assert "another input: prompt changed" in log
    assert it.whats() == ["model", "wait"]
    assert await it.status() == "running"
    await it.run.cancel()


@pytest.mark.skipif(
    sdk_version.startswith(("1.1.", "1.2.")), reason="Before Airflow 3.3 a task keeps nothing from one try to the next"
)
async def test_a_run_is_not_left_for_another_one_when_its_id_changes(airflow: AirflowAPI, stack: Stack) -> None:
    it = await Handling.begin(airflow, stack, "agents_moving", script([("wait", {"gate": "never"})]))
    await it.until("deferred")
    await it.task.clear()

    assert await it.until_ended() == "failed"
    assert "InputChangedError: An earlier try of this task has run" in "\n".join(await it.task.log(2))
    runs = [f"{it.task.run.id}/{number}" for number in (1, 2)]
    assert [(await it.client.temporal.count_workflows(f"WorkflowId = '{run}'")).count for run in runs] == [1, 0]
    await it.client.attach(runs[0]).cancel()
