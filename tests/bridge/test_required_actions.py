"""What a run asks is shown as Required Actions, each with its own text, and is settled once, wherever that happens."""

import asyncio
import json
import re
from pathlib import Path
from signal import SIGKILL
from typing import Any

import httpx
import pytest
from airflow.sdk import __version__ as sdk_version

from interlock import Client, Run
from interlock.bridge.asked import Asked
from interlock.testing import eventually
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI, DagRun, Request
from tests.bridge.browser import NAMES, Page, find_browser
from tests.bridge.keeper import WORKER
from tests.bridge.processes import send
from tests.bridge.stack import Stack

APPROVALS = "interlock_approvals"
pytestmark = pytest.mark.timeout(600)  # Each answer is a task process or two, and a machine can be busy.


def refund(order: str, amount: int) -> tuple[str, dict[str, Any]]:
    return "refund", {"order": order, "amount": amount}


class Asking:
    """A task of an agent that asks, its run in Temporal, and what is shown of it."""

    def __init__(self, dag_run: DagRun, run: Run) -> None:
        self.dag_run = dag_run
        self.run = run
        self.task = dag_run.task("handle")

    @classmethod
    async def start(
        cls, airflow: AirflowAPI, stack: Stack, *turns: list[tuple[str, dict[str, Any]]], dag_id: str = "asking"
    ) -> "Asking":
        dag_run = await airflow.trigger(dag_id, {"prompt": script(*turns)})
        client = await Client.connect(stack.temporal_address)
        return cls(dag_run, client.attach(f"airflow/{dag_id}/{dag_run.id}/handle"))

    async def _all(self) -> list[Request]:
        found = await self.dag_run.api.requests(APPROVALS, state="deferred")
        place = re.sub("[^A-Za-z0-9_.~-]+", ".", self.run.id)
        mine = [one for one in found if one.task.run.id.startswith(f"{place}.")]
        return sorted(mine, key=lambda one: str(one.shown["subject"]))

    async def shown(self, count: int = 1) -> list[Request]:
        """Wait until so many Required Actions of the run can be answered."""

        async def there() -> list[Request]:
            found = await self._all()
            return found if len(found) == count else []

        requests: list[Request] = await eventually(there, within_seconds=150, every_seconds=0.2)
        return requests

    async def shows_nothing(self) -> None:
        async def nothing() -> bool:
            return not await self._all()

        await eventually(nothing, within_seconds=60, every_seconds=0.2)

    async def asked_for(self) -> list[str]:
        return [one.request_id for one in await self.run.approvals()]


async def settled(request: Request, try_number: int = 1) -> str:
    """How the task that showed a request ended, in this try or a later one: its state, and the last word of its log."""
    state = await request.task.until("success", "skipped", try_number=try_number, within_seconds=150)
    lines = await request.task.log((await request.task.info())["try_number"])
    return f"{state}: {[line for line in lines if line.startswith(('Request ', 'The answer '))][-1]}"


async def test_three_at_once_are_each_shown_and_settled_by_themselves(airflow: AirflowAPI, stack: Stack) -> None:
    asking = await Asking.start(airflow, stack, [refund("A-1", 5), refund("A-2", 7), refund("A-3", 9)])
    olga = airflow.as_user("olga")
    first, second, third = await asking.shown(3)

    assert [one.shown["subject"] for one in (first, second, third)] == [
        f"Approve refund: order A-{number}, amount {amount}?" for number, amount in ((1, 5), (2, 7), (3, 9))
    ]
    assert '"order": "A-2"' in second.shown["body"]
    with pytest.raises(httpx.HTTPStatusError, match="403"):
        await first.answer("Approve", by=airflow.as_user("vera"))
    await asyncio.gather(
        first.answer("Approve", params={"arguments": json.dumps({"order": "A-1", "amount": 4})}, by=olga),
        second.answer("Reject", params={"reason": "It was never sent."}, by=olga),
    )
    assert [await settled(one) for one in (first, second)] == [
        f"success: Request 1 of run {asking.run.id}: approved by airflow:olga.",
        f"success: Request 2 of run {asking.run.id}: rejected by airflow:olga.",
    ]
    assert await asking.asked_for() == ["3"]
    await asking.run.decide("3", "approve", by="ann@example.com")

    assert await settled(third) == f"skipped: Request 3 of run {asking.run.id}: approved by ann@example.com."
    closed = await third.task.request()
    assert closed.shown["response_received"]
    assert closed.shown["responded_by_user"] is None
    with pytest.raises(httpx.HTTPStatusError, match="409"):
        await third.answer("Reject")
    assert await asking.dag_run.until_ended(150) == "success"
    effects = [line for line in stack.ledger(asking.run.id) if line["what"] == "refund"]
    assert sorted((line["order"], line["amount"]) for line in effects) == [("A-1", 4), ("A-3", 9)]
    assert [one["outcome"] for one in await asking.task.xcom("decisions")] == ["approved", "rejected", "approved"]
    log = await asking.task.log()
    assert any(line.startswith("Waiting for a person since ") and "request 2, refund" in line for line in log)


async def test_a_person_answers_in_the_browser(airflow: AirflowAPI, stack: Stack, tmp_path: Path) -> None:
    program = find_browser()
    if program is None:
        pytest.skip(f"There is no browser ({', '.join(NAMES)}); on Debian: apt-get install chromium")
    asking = await Asking.start(airflow, stack, [refund("B-77", 9_007_199_254_740_993), refund("B-78", 2)])
    first, second = await asking.shown(2)
    async with Page.opened(program, tmp_path / "browser") as page:
        await page.set_cookie(stack.api_url, "_token", await airflow.as_user("olga").token())
        await page.go(f"{stack.api_url}/required_actions?response_received=false")
        await page.click(str(first.shown["subject"]))
        await page.shows("wants to run")
        await page.click("Approve")  # As it is.
        await first.task.until("success", within_seconds=150)

        await page.go(f"{stack.api_url}/required_actions?response_received=false")
        await page.click(str(second.shown["subject"]))
        await page.shows("wants to run")
        await page.write("textarea", '{"order": "B-79", "amount": 3}')
        await page.click("Approve")
        await second.task.until("success", within_seconds=150)

    assert await asking.dag_run.until_ended(150) == "success"
    effects = [(line["order"], line["amount"]) for line in stack.ledger(asking.run.id) if line["what"] == "refund"]
    assert sorted(effects) == [("B-77", 9_007_199_254_740_993), ("B-79", 3)]
    assert [one["by"] for one in await asking.task.xcom("decisions")] == ["airflow:olga"] * 2


async def test_what_an_agent_below_asks_is_shown_too(airflow: AirflowAPI, stack: Stack) -> None:
    below = script([refund("C-1", 5)])
    asking = await Asking.start(airflow, stack, [("delegate", {"prompt": below}), refund("A-1", 7)])
    first, second = await asking.shown(2)
    assert [one.shown["subject"] for one in (first, second)] == [
        "Approve refund: order A-1, amount 7?",
        "Approve refund: order C-1, amount 5?",
    ]
    assert "cashier" in second.shown["body"]
    olga = airflow.as_user("olga")
    await second.answer("Approve", by=olga)
    await second.task.until("success", within_seconds=150)
    assert await asking.asked_for() == ["1"]
    await first.answer("Reject", by=olga)

    assert await asking.dag_run.until_ended(150) == "success"
    ledger = (stack.folder / "ledger").read_text().splitlines()
    effects = [line for line in map(json.loads, ledger) if line["run"].startswith(asking.run.id)]
    assert [line["order"] for line in effects if line["what"] == "refund"] == ["C-1"]


async def test_one_after_another_each_is_asked_anew(airflow: AirflowAPI, stack: Stack) -> None:
    asking = await Asking.start(airflow, stack, [refund("A-1", 1)], [refund("A-2", 2)], [refund("A-3", 3)])
    for number in (1, 2, 3):
        (request,) = await asking.shown()
        assert request.shown["subject"] == f"Approve refund: order A-{number}, amount {number}?"
        await request.answer("Approve")
        await request.task.until("success", within_seconds=150)

    assert await asking.dag_run.until_ended(150) == "success"
    assert [line["order"] for line in stack.ledger(asking.run.id) if line["what"] == "refund"] == ["A-1", "A-2", "A-3"]


async def test_an_answer_that_cannot_be_taken_is_asked_for_again_with_the_reason(
    airflow: AirflowAPI, stack: Stack
) -> None:
    asking = await Asking.start(airflow, stack, [refund("A-1", 5)], dag_id="asking_some")
    (first,) = await asking.shown()
    assert [one["id"] for one in first.shown["assigned_users"]] == ["olga", "uma"]
    with pytest.raises(httpx.HTTPStatusError, match="403"):  # An administrator, and not asked.
        await first.answer("Approve")
    olga = airflow.as_user("olga")
    await first.answer("Approve", params={"arguments": "{order: A-1}"}, by=olga)
    await first.task.until("skipped", within_seconds=150)

    (second,) = await asking.shown()
    assert second.task.run.id == f"{first.task.run.id}-2"
    assert "no JSON" in second.shown["body"]
    assert [one["id"] for one in second.shown["assigned_users"]] == ["olga", "uma"]
    await second.answer("Approve", params={"arguments": '{"order": "A-1", "amount": "much"}'}, by=olga)
    await second.task.until("skipped", within_seconds=150)

    (third,) = await asking.shown()
    assert "amount" in third.shown["body"].partition("**support**")[0]
    assert await asking.asked_for() == ["1"]
    await asking.task.mark("failed")  # Whoever ends the agent's task ends its run: nothing is asked any more.

    assert "withdrawn: its run is cancelled" in await settled(third)
    await asking.shows_nothing()
    assert (await asking.run.report()).status == "cancelled"
    assert not [line for line in stack.ledger(asking.run.id) if line["what"] == "refund"]


@pytest.mark.alone
async def test_a_marked_task_comes_back_when_cleared_and_its_answer_outlives_what_dies(
    airflow: AirflowAPI, stack: Stack
) -> None:
    asking = await Asking.start(airflow, stack, [refund("A-1", 5)])
    (request,) = await asking.shown()
    await request.task.mark("failed")
    await request.task.run.until_ended()  # Else Airflow fails the Dag run after it was cleared.
    assert await asking.asked_for() == ["1"]
    await request.task.clear()
    (request,) = await asking.shown()
    async with stack.down(WORKER):
        await request.answer("Approve", by=airflow.as_user("olga"))

        async def process() -> list[int]:
            return await stack.task_processes(request.task)

        send(await eventually(process), SIGKILL)
        await request.task.until("deferred", try_number=3, within_seconds=150)

        async def waits() -> bool:
            # Airflow may have failed the third try by a mistake of its own.
            info = await request.task.info()
            return any("is passed on once" in line for line in await request.task.log(info["try_number"]))

        await eventually(waits, within_seconds=150, every_seconds=0.2)

    assert await settled(request, 3) == f"success: Request 1 of run {asking.run.id}: approved by airflow:olga."
    assert await asking.dag_run.until_ended(150) == "success"


@pytest.mark.skipif(sdk_version.startswith("1.2."), reason="Airflow 3.2 does not tell who has started a Dag run")
async def test_who_starts_the_approvals_dag_by_hand_asks_nothing(airflow: AirflowAPI) -> None:
    asked = Asked(
        temporal_conn_id="temporal_default",
        workflow_id="airflow/asking_some/x/handle",
        run_id="x",
        request_id="1",
        digest="x",
        assignees=("ada",),
    )
    run = await airflow.trigger(APPROVALS, asked.model_dump(mode="json"))

    assert await run.until_ended(150) == "failed"
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await run.task("decide").request()
