"""The page of a run in Airflow: for those who may read the Dag that has started it."""

from typing import Any

import httpx
import pytest

from interlock import Client
from interlock.testing import eventually
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.keeper import TEMPORAL
from tests.bridge.stack import Stack


async def page(airflow: AirflowAPI, stack: Stack, user: str = "", **query: str) -> httpx.Response:
    headers = {"Authorization": f"Bearer {await airflow.as_user(user).token()}"} if user else {}
    async with httpx.AsyncClient(base_url=stack.api_url, timeout=30, trust_env=False) as http:
        return await http.get("/interlock/runs", params=query, headers=headers)


async def test_the_journal_is_shown_to_those_who_may_read_the_dag(airflow: AirflowAPI, stack: Stack) -> None:
    run = await airflow.trigger("agents", {"prompt": "<b>hello</b>"})
    await run.until_ended()
    links = await run.task("handle").links()
    address = httpx.URL(str(links["Journal"]))
    there = dict(address.params)

    assert str(address).startswith(f"{stack.api_url}/interlock/runs?")
    assert str(links["Approvals"]) == f"{address}#requests"
    shown = await page(airflow, stack, "vera", **there)
    assert shown.status_code == 200
    assert there["workflow_id"] in shown.text
    assert "<b>hello" not in shown.text
    assert shown.headers["cache-control"] == "no-store"
    for user, query, status, says in [
        ("", there, 401, "You are not signed in"),
        ("nora", there, 403, "You may not see this run"),
        ("nora", {**there, "workflow_id": "nobody's"}, 403, "You may not see this run"),
        ("ada", {**there, "workflow_id": "nobody's"}, 404, "There is no such run"),
        ("ada", {**there, "connection": "nobody's"}, 404, "Airflow has no connection"),
        ("ada", {"connection": "temporal_default"}, 400, "workflow_id"),
    ]:
        answer = await page(airflow, stack, user, **query)
        assert (answer.status_code, says in answer.text) == (status, True), answer.text


async def test_a_connection_to_something_else_is_not_used(airflow: AirflowAPI, stack: Stack) -> None:
    body: dict[str, Any] = {"connection_id": "some_database", "conn_type": "generic", "host": "127.0.0.1", "port": 1}
    await airflow.ask("POST", "/connections", body)
    try:
        answer = await page(airflow, stack, "ada", connection="some_database", workflow_id="any")
    finally:
        await airflow.ask("DELETE", "/connections/some_database")

    assert (answer.status_code, "is none of type" in answer.text) == (404, True)


@pytest.mark.alone
async def test_a_run_that_no_dag_has_started_and_a_server_that_is_away(airflow: AirflowAPI, stack: Stack) -> None:
    run = await (await Client.connect(stack.temporal_address)).start("support", "hello")
    await run.result()
    there = {"connection": "temporal_default", "workflow_id": run.id}

    assert (await page(airflow, stack, "nora", **there)).status_code == 403
    assert (await page(airflow, stack, "ada", **there)).status_code == 200
    async with stack.down(TEMPORAL):
        answer = await page(airflow, stack, "ada", **there)
        assert (answer.status_code, "Temporal does not answer" in answer.text) == (503, True)

    async def is_back() -> bool:
        return (await page(airflow, stack, "ada", **there)).status_code == 200

    await eventually(is_back, within_seconds=60, every_seconds=0.5)
