"""What a run gives reaches other tasks as it is."""

from pathlib import Path

import pytest

from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.stack import Stack


@pytest.mark.timeout(500)  # Tasks of Airflow take long on a machine that does much else.
async def test_a_result_that_was_waited_for_reaches_other_tasks(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    run = await airflow.trigger("handed_on", {"prompt": script([("wait", {"gate": tmp_path.name})], answer="one two")})
    for task_id in ("handle", "split"):
        await run.task(task_id).until("deferred", within_seconds=150)
    stack.open_gate(tmp_path.name)

    assert await run.until_ended(within_seconds=300) == "success"
    assert "xcoms.not_pushed" not in await run.task("handle").log()  # The trigger has ended it.
    assert await run.task("tell").xcom() == "one two"
    assert await run.task("tell_all").xcom() == ["one", "two"]
    assert [await run.task("tell_each", number).xcom() for number in (0, 1)] == ["one", "two"]
