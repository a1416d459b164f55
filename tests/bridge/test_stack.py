"""The ground that the other tests of the bridge stand on."""

import httpx
import pytest

from tests.bridge.airflow_api import AirflowAPI


async def test_a_plain_dag_runs(airflow: AirflowAPI) -> None:
    run = await airflow.trigger("plain", {"number": 21})
    task = run.task("double")
    await task.until("success")

    assert await run.until_ended() == "success"
    assert await task.xcom() == 42
    assert "doubling 21" in await task.log()


async def test_airflow_knows_the_providers(airflow: AirflowAPI) -> None:
    assert "apache-airflow-providers-common-ai" in await airflow.providers()


async def test_a_viewer_may_look_and_not_act(airflow: AirflowAPI) -> None:
    vera = airflow.as_user("vera")

    assert "plain" in await vera.dags()
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        await vera.trigger("plain")
