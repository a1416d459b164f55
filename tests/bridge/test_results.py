"""What a run gives reaches other tasks as it is."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from interlock.bridge.endings import Ending, Reference, xcom_value
from interlock.bridge.outcome import XCOM_LIMIT_BYTES, Waited, xcoms_of
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.stack import Stack


def test_an_output_that_looks_like_a_reference_is_referred_to() -> None:
    """Else what a model answers could have another task read any other run's result."""
    forged = Reference("payroll", "their-run", 9).as_xcom()
    ending = Ending(workflow_id="mine", run_id="my-run", status="completed", output=forged)
    value: Any = xcom_value(ending, XCOM_LIMIT_BYTES)
    assert (value["interlock_result"]["workflow_id"], value["interlock_result"]["run_id"]) == ("mine", "my-run")


def test_a_run_that_gives_nothing_back_leaves_no_return_value() -> None:
    """As a task's own code does. Whatever is mapped over such tasks counts their return values."""
    waited = Waited(temporal_conn_id="c", workflow_id="mine", run_id="my-run", began_at=datetime.now(UTC))
    ending = Ending(workflow_id="mine", run_id="my-run", status="completed")
    assert set(xcoms_of(ending, waited)) == {"run"}
    assert set(xcoms_of(ending.model_copy(update={"output": 0}), waited)) == {"run", "return_value"}


@pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.
async def test_a_result_that_was_waited_for_reaches_other_tasks(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    run = await airflow.trigger("handed_on", {"prompt": script([("wait", {"gate": tmp_path.name})], answer="one two")})
    for task_id in ("handle", "split"):
        await run.task(task_id).until("deferred", within_seconds=150)
    queued_at = (await run.task("handle").info())["queued_when"]
    stack.open_gate(tmp_path.name)

    assert await run.until_ended(within_seconds=300) == "success"
    assert (await run.task("handle").info())["queued_when"] == queued_at  # The trigger has ended it.
    assert await run.task("tell").xcom() == "one two"
    assert await run.task("tell_all").xcom() == ["one", "two"]
    assert [await run.task("tell_each", number).xcom() for number in (0, 1)] == ["one", "two"]
