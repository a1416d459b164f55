"""Workflows that are no agents, as tasks: each way that one can end, and the sensor and the signal."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client as Temporal
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from interlock.bridge.identity import Note
from interlock.bridge.starting import WorkflowJob
from interlock.testing import eventually
from tests.bridge.airflow_api import AirflowAPI, Task
from tests.bridge.orders import Deliver, Price, pack
from tests.bridge.stack import Stack
from tests.bridge.waiting import log_of, until_at_rest, workflow_id

pytestmark = pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.

QUEUE = "orders"
# What ends it, the error of the task, what it says, and whether a later try can help.
ENDINGS = [
    ("complete", "", "", True),
    ("fail", "RunFailedError", "failed: activity pack, attempt 2 <- OutOfBoxesError: out of boxes", True),
    ("fail for good", "RunFailedForGoodError", "failed: activity pack, attempt 1 <- OutOfBoxesError: out of b", False),
    ("cancel", "RunCancelledError", "cancelled: ", True),
    ("terminate", "RunTerminatedError", "terminated: enough", True),
    ("time out", "RunTimedOutError", "timed out: ", True),
]


@pytest.fixture
async def temporal(stack: Stack) -> AsyncIterator[Temporal]:
    """A client of the stack's server, where a worker of the test's own serves the queue `orders`."""
    client = await Temporal.connect(stack.temporal_address, data_converter=pydantic_data_converter)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Deliver, Price],
        activities=[pack],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        yield client


async def end(handle: WorkflowHandle[Any, Any], how: str) -> None:
    if how == "cancel":
        await handle.cancel()
    elif how == "terminate":
        await handle.terminate(reason="enough")
    elif how != "time out":
        await handle.signal(Deliver.end, how)


async def test_each_way_a_workflow_ends_while_its_task_waits(
    airflow: AirflowAPI, stack: Stack, temporal: Temporal
) -> None:
    async def ended(how: str) -> tuple[Task, str]:
        dag_id = "workflows_in_time" if how == "time out" else "workflows"
        dag_run = await airflow.trigger(dag_id, {"queue": QUEUE})
        task = dag_run.task("run")
        await until_at_rest(stack, task)
        await end(temporal.get_workflow_handle(workflow_id(task)), how)
        return task, await dag_run.until_ended(within_seconds=120)

    results = await asyncio.gather(*(ended(how) for how, *_ in ENDINGS))

    for (how, error, words, can_be_helped), (task, state) in zip(ENDINGS, results, strict=True):
        assert state == ("success" if can_be_helped else "failed"), how
        if can_be_helped:
            assert await task.xcom() == ("delivered at last" if error else "delivered")
        if error:
            log = "\n".join(await log_of(task))
            assert error in log, how
            assert f"{words}" in log, how
        assert len(await task.tries()) == (2 if error and can_be_helped else 1), how


async def test_other_ways_to_wait_end_the_same(airflow: AirflowAPI, stack: Stack, temporal: Temporal) -> None:
    async def ended(dag_id: str, how: str) -> tuple[str, str]:
        dag_run = await airflow.trigger(dag_id, {"queue": QUEUE})
        task = dag_run.task("run")
        await task.until("running" if dag_id == "workflows_poll" else "up_for_reschedule", within_seconds=150)

        async def has_begun() -> Any:
            return (await task.links())["Approvals"]

        await eventually(has_begun)
        await end(temporal.get_workflow_handle(workflow_id(task)), how)
        return await dag_run.until_ended(within_seconds=150), "\n".join(await log_of(task))

    kinds = [(dag_id, *ending) for dag_id in ("workflows_reschedule", "workflows_poll") for ending in ENDINGS[1:-1]]
    results = await asyncio.gather(*(ended(dag_id, how) for dag_id, how, *_ in kinds))

    for (dag_id, how, error, words, _), (state, log) in zip(kinds, results, strict=True):
        assert state == "failed", (dag_id, how)
        assert error in log, (dag_id, how)
        assert words in log, (dag_id, how)


async def test_each_way_a_workflow_has_ended_before_its_task_waits(
    airflow: AirflowAPI, stack: Stack, temporal: Temporal
) -> None:
    """A task process that was lost after it had started the workflow: the next one finds it."""

    async def ended(how: str) -> tuple[Task, str]:
        run_id = f"test__{uuid.uuid4().hex}"
        job = WorkflowJob("Deliver", ("",))
        note = Note("workflows_once", run_id, "run", -1, try_number=1, clears=0, digests=job.digests)
        handle = await temporal.start_workflow(
            Deliver.run,
            "",
            id=f"airflow/workflows_once/{run_id}/run",
            task_queue=QUEUE,
            memo=note.memo(),
            execution_timeout=timedelta(seconds=1) if how == "time out" else None,
        )
        await end(handle, how)
        with suppress(WorkflowFailureError):
            await handle.result()
        dag_run = await airflow.trigger("workflows_once", {"queue": QUEUE}, run_id=run_id)
        return dag_run.task("run"), await dag_run.until_ended(within_seconds=120)

    results = await asyncio.gather(*(ended(how) for how, *_ in ENDINGS))

    for (how, error, words, _), (task, state) in zip(ENDINGS, results, strict=True):
        assert state == ("failed" if error else "success"), how
        log = "\n".join(await log_of(task))
        assert error in log, how
        assert words in log, how
        assert (await task.xcom("run"))["status"] == {
            "complete": "completed",
            "fail": "failed",
            "fail for good": "failed",
            "cancel": "cancelled",
            "terminate": "terminated",
            "time out": "timed_out",
        }[how]


async def test_an_argument_may_be_a_model(airflow: AirflowAPI, temporal: Temporal) -> None:
    dag_run = await airflow.trigger("priced", {"queue": QUEUE})

    assert await dag_run.until_ended() == "success"
    assert await dag_run.task("run").xcom() == {"A-1": 20, "B-2": 30}


async def test_a_sensor_waits_for_a_workflow_that_others_start_and_signal(
    airflow: AirflowAPI, stack: Stack, temporal: Temporal
) -> None:
    handle = await temporal.start_workflow(Deliver.run, "", id=f"order-{uuid.uuid4().hex}", task_queue=QUEUE)
    sensed = await airflow.trigger("sensed", {"workflow_id": handle.id})
    await asyncio.gather(
        sensed.task("sense").until("deferred"),
        sensed.task("poke").until("up_for_reschedule"),
        sensed.task("nothing").until("failed"),
    )
    signalled = await airflow.trigger("signalled", {"workflow_id": handle.id, "end": "complete"})

    await signalled.task("signal").until("success")
    await signalled.task("nobody").until("failed")
    for task in (sensed.task("sense"), sensed.task("poke")):
        await task.until("success")
        assert await task.xcom() == "delivered"
    assert "RunVanishedError" in "\n".join(await sensed.task("nothing").log())
    nobody = signalled.task("nobody")
    assert "NotRunningError: Workflow" in "\n".join(await nobody.log(2))  # It may be started yet.
