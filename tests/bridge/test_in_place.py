"""A run's requests on its own task: one after another, each with its own text, and each answered for itself."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Tool

from interlock import Client, Interlock, Run
from interlock.bridge import mirror, triggers
from interlock.bridge._airflow import ASKS_AGAIN
from interlock.bridge.asked import Asked
from interlock.bridge.form import Answer
from interlock.bridge.mirror import OwnTask, show_requests
from interlock.bridge.outcome import Waited, own_event
from interlock.bridge.settling import Settled
from interlock.bridge.triggers import RunTrigger
from interlock.contracts.payloads import ApprovalRequest
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually, running
from tests.bridge.agents import script
from tests.bridge.airflow_api import AirflowAPI, DagRun, Request
from tests.bridge.stack import Stack
from tests.workflows.scripts import Script, agent, call


def refund(order: str, amount: int = 1) -> str:
    return f"{order} refunded"


class Place:
    """A task that shows requests, without Airflow: what is shown on it, and by the approvals Dag."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.here: list[Asked] = []
        self.elsewhere: list[Asked] = []
        monkeypatch.setattr(mirror, "show", self._show)
        monkeypatch.setattr(mirror, "start", self._start)

    def _show(
        self, ti_id: Any, asked: Asked, request: ApprovalRequest, *, requested_by: str, links: Mapping[str, str]
    ) -> None:
        assert (ti_id, asked.digest, asked.in_place) == ("ti", request.digest, True)
        self.here.append(asked)

    def _start(self, asked: Asked, dag_id: str) -> bool:
        assert not asked.in_place
        self.elsewhere.append(asked)
        return True


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(monkeypatch)


def answer(asked: Asked, *, form_id: str | None = None, option: str = "Approve") -> Answer:
    return Answer(options=(option,), by="airflow:olga", values={"form": form_id or asked.form_id})


async def shown(client: Client, waited: Waited, *, in_place: bool = True) -> Waited:
    task = OwnTask("ti", {})
    return await show_requests(client, waited, dag_id="approvals", assignees=("olga",), task=task, in_place=in_place)


def waits(server: EmbeddedServer, run: Run, monkeypatch: pytest.MonkeyPatch) -> Waited:
    host, port = server.address.split(":")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", json.dumps({"conn_type": "temporal", "host": host, "port": int(port)}))
    return Waited(
        temporal_conn_id="here",
        workflow_id=run.id,
        run_id=run.started_run_id,
        began_at=datetime.now(UTC),
        mirrors=True,
    )


async def asks(app: RunningApp, *orders: str) -> Run:
    run = await app.client.start("support", " ".join(orders))
    await app.requests(run, len(orders))
    return run


def support(*turns: list[str]) -> Interlock:
    calls = [[call("refund", f"c{order}", order=order) for order in turn] for turn in turns]
    return Interlock([agent(Script(*calls, "done"), tools=[Tool(refund, requires_approval=True)])])


async def test_one_is_shown_on_the_task_and_what_is_asked_beside_it_is_not(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(support(["A", "B"], ["C"]), server) as app:
        run = await asks(app, "A", "B")
        waited = await shown(app.client, waits(server, run, monkeypatch))
        assert ([one.request_id for one in place.here], [one.request_id for one in place.elsewhere]) == (["1"], ["2"])
        assert waited.here == place.here[0]
        assert waited == await shown(app.client, waited)

        waited = await shown(app.client, waited.model_copy(update={"answer": answer(place.here[0])}))
        assert waited.here is None
        assert waited.answer is None
        assert [one.request_id for one in await run.approvals()] == ["2"]
        await run.decide("2", "approve")

        async def third() -> Waited | None:
            found = await shown(app.client, waited)
            return found if found.here else None

        waited = await eventually(third)
        assert [one.request_id for one in place.here] == ["1", "3"]
        await shown(app.client, waited.model_copy(update={"answer": answer(place.here[1])}))
        await run.result()
        decided = [one.answer.by for one in (await run.journal()).requests if one.answer]
        assert decided[::2] == ["airflow:olga", "airflow:olga"]


@pytest.mark.parametrize("form_id", ["", "1/000000000000/1", "2"])
async def test_an_answer_to_another_form_is_asked_for_again(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch, form_id: str
) -> None:
    async with running(support(["A"]), server) as app:
        run = await asks(app, "A")
        waited = await shown(app.client, waits(server, run, monkeypatch))
        late = answer(place.here[0]).model_copy(update={"values": {"form": form_id}})

        waited = await shown(app.client, waited.model_copy(update={"answer": late}))

        assert [one.request_id for one in await run.approvals()] == ["1"]
        assert [one.round for one in place.here] == [1, 2]
        assert "another request was shown here" in place.here[1].said
        assert (waited.here, waited.answer, place.elsewhere) == (place.here[1], None, [])
        late = answer(place.here[0])
        waited = await shown(app.client, waited.model_copy(update={"answer": late}))
        assert [one.request_id for one in await run.approvals()] == ["1"]
        await shown(app.client, waited.model_copy(update={"answer": answer(place.here[2])}))
        await run.result()


async def test_an_answer_is_passed_on_where_the_dag_no_longer_wants_them_on_the_task(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(support(["A"], ["B"]), server) as app:
        run = await asks(app, "A")
        waited = await shown(app.client, waits(server, run, monkeypatch))

        waited = await shown(app.client, waited.model_copy(update={"answer": answer(place.here[0])}), in_place=False)
        assert waited.here is None
        assert waited.answer is None
        await app.requests(run, 1)
        await shown(app.client, waited, in_place=False)
        assert ([one.request_id for one in place.here], [one.request_id for one in place.elsewhere]) == (["1"], ["2"])
        await run.cancel()


async def first_event(waited: Waited, monkeypatch: pytest.MonkeyPatch, *, said: Answer | None = None) -> Any:
    """What a trigger tells a task that waits so, and what it has closed on it. said: what was answered there."""
    closed: list[Settled] = []

    async def answered(ti_id: str) -> Answer | None:
        return said

    async def close(ti_id: str, settled: Settled) -> None:
        closed.append(settled)

    monkeypatch.setattr(triggers, "answered", answered)
    monkeypatch.setattr(triggers, "close", close)
    (event,) = [one async for one in RunTrigger(waited.model_dump(mode="json")).run()]
    return event.payload, closed


async def test_what_is_settled_elsewhere_is_closed_on_the_task(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(support(["A"], ["B"]), server) as app:
        run = await asks(app, "A")
        waited = await shown(app.client, waits(server, run, monkeypatch))
        waiting = asyncio.create_task(first_event(waited, monkeypatch))
        await run.decide("1", "approve", by="ann")

        event, closed = await waiting
        heard, hint = own_event(waited.model_dump(mode="json"), event)
        assert [str(one) for one in closed] == ["approved by ann"]
        assert (hint["kind"], heard.here) == ("asked", None)

        await app.requests(run, 1)
        waited = await shown(app.client, heard)
        assert [one.request_id for one in place.here] == ["1", "2"]
        waiting = asyncio.create_task(first_event(waited, monkeypatch))
        await run.cancel()
        _, closed = await waiting
        assert [one.outcome for one in closed] == ["withdrawn"]


async def test_an_answer_that_came_before_the_trigger_is_passed_on(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(support(["A"]), server) as app:
        run = await asks(app, "A")
        waited = await shown(app.client, waits(server, run, monkeypatch))

        event, closed = await first_event(waited, monkeypatch, said=answer(waited.here))  # type: ignore[arg-type]
        heard, _ = own_event(waited.model_dump(mode="json"), json.loads(json.dumps(event)))
        assert (heard.answer, closed) == (answer(place.here[0]), [])
        # One that the run has not taken yet is passed on as soon as a worker is there.
        event, _ = await first_event(heard, monkeypatch)
        again, _ = own_event(heard.model_dump(mode="json"), event)
        await shown(app.client, again)
        await run.result()


async def test_what_airflow_tells_of_an_answer_is_an_answer(
    server: EmbeddedServer, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(support(["A"]), server) as app:
        run = await asks(app, "A")
        waited = await shown(app.client, waits(server, run, monkeypatch))
        told = {
            "chosen_options": ["Approve"],
            "params_input": {"form": place.here[0].form_id},
            "responded_by_user": {"id": "olga", "name": "olga"},
        }
        heard, _ = own_event(waited.model_dump(mode="json"), told)
        assert heard.answer == answer(place.here[0])
        nobodys, _ = own_event(waited.model_dump(mode="json"), {**told, "responded_by_user": None})
        assert nobodys == waited
        await run.cancel()


needs_3_4 = pytest.mark.skipif(not ASKS_AGAIN, reason="before Airflow 3.4 the text of a Required Action never changes")


async def on_task(run: DagRun, subject: str) -> Request:
    """The Required Action of the task itself, once it shows this."""

    async def there() -> Request | None:
        mine = [one for one in await run.api.requests(run.dag_id) if one.task.run.id == run.id]
        return next((one for one in mine if one.shown["subject"] == subject), None)

    found: Request = await eventually(there, within_seconds=150, every_seconds=0.2)
    return found


def form_of(request: Request) -> dict[str, Any]:
    """What Airflow's own form sends."""
    return {name: field["value"] for name, field in request.shown["params"].items()}


@needs_3_4
async def test_one_after_another_on_the_task_itself(airflow: AirflowAPI, stack: Stack) -> None:
    turns = [("refund", {"order": order, "amount": 1}) for order in ("A-1", "A-2", "A-3", "A-4")]
    dag_run = await airflow.trigger("asking_here", {"prompt": script(*[[turn] for turn in turns[:2]], turns[2:])})
    client = await Client.connect(stack.temporal_address)
    run, olga = client.attach(f"airflow/asking_here/{dag_run.id}/handle"), airflow.as_user("olga")
    first = await on_task(dag_run, "Approve refund: order A-1, amount 1?")
    await first.answer("Approve", params=form_of(first), by=olga)

    second = await on_task(dag_run, "Approve refund: order A-2, amount 1?")
    await second.answer("Approve", params=form_of(first), by=olga)  # By a page that was left open.
    second = await on_task(dag_run, "Approve refund: order A-2, amount 1?")

    async def again() -> bool:
        return "Asked again" in (await on_task(dag_run, "Approve refund: order A-2, amount 1?")).shown["body"]

    await eventually(again, within_seconds=60, every_seconds=0.2)
    assert [one.request_id for one in await run.approvals()] == ["2"]
    await run.decide("2", "reject", by="ann")

    third = await on_task(dag_run, "Approve refund: order A-3, amount 1?")

    async def beside() -> Request | None:
        found = await airflow.requests("interlock_approvals")
        return next((one for one in found if one.shown["subject"] == "Approve refund: order A-4, amount 1?"), None)

    fourth: Request = await eventually(beside, within_seconds=150, every_seconds=0.2)
    await fourth.answer("Approve", by=olga)
    await third.answer("Approve", params=form_of(third), by=olga)
    assert await dag_run.until_ended(150) == "success"
    effects = [line["order"] for line in stack.ledger(run.id) if line["what"] == "refund"]
    assert sorted(effects) == ["A-1", "A-3", "A-4"]
    task = dag_run.task("handle")
    assert [one["by"] for one in await task.xcom("decisions")] == [
        "airflow:olga",
        "ann",
        "airflow:olga",
        "airflow:olga",
    ]
    assert len(await task.tries()) == 1


@needs_3_4
async def test_who_marks_the_task_ends_its_run_and_closes_what_it_shows(airflow: AirflowAPI, stack: Stack) -> None:
    dag_run = await airflow.trigger("asking_here", {"prompt": script([("refund", {"order": "A-1", "amount": 1})])})
    client = await Client.connect(stack.temporal_address)
    run = client.attach(f"airflow/asking_here/{dag_run.id}/handle")
    request = await on_task(dag_run, "Approve refund: order A-1, amount 1?")
    await request.task.mark("failed")

    async def is_over() -> bool:
        return (await run.report()).status == "cancelled" and not await airflow.requests(
            "asking_here", state="deferred"
        )

    await eventually(is_over, within_seconds=150, every_seconds=0.2)
    assert not [line for line in stack.ledger(run.id) if line["what"] == "refund"]
