"""The journal of runs on a real server: while they run, after they ended, and after they were started over."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Tool
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from interlock import Client, Interlock, Journal, RefusedError, Retries, Settings, SyncClient
from interlock.contracts import names
from interlock.contracts.payloads import Decision
from interlock.server import EmbeddedServer
from interlock.testing import eventually, running
from tests.conformance.test_sub_runs import sub_run_request
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


def refund(order: str, amount: float) -> str:
    """Pay money back."""
    return f"refunded {amount} for {order}"


def two_refunds() -> list[Any]:
    return [call("refund", "a", order="A-1", amount=10.0), call("refund", "b", order="A-2", amount=20.0)]


def refunding(*turns: Any, **options: Any) -> Interlock:
    return Interlock([agent(Script(*turns), tools=[Tool(refund, requires_approval=True)], **options)])


async def test_a_journal_tells_the_same_while_the_run_waits_after_it_ended_and_without_a_worker(
    run_app: Running,
) -> None:
    async with run_app(refunding(two_refunds(), "done")) as app:
        run = await app.client.start("support", "refund both", requested_by="ann")
        await app.requests(run, 2)
        waiting = await run.journal()
        assert (waiting.status, waiting.agent, waiting.requested_by) == ("awaiting_approval", "support", "ann")
        assert [one.outcome for one in waiting.requests] == ["open", "open"]
        await run.decide("2", "reject", reason="too late", by="bob")
        await run.decide("1", "approve", arguments={"order": "A-1", "amount": 4.0}, by="carla")
        output = await run.result()
    journal = await app.client.journal(run)

    assert (journal.status, journal.usage) == ("completed", output.usage)
    assert journal.totals.usage == output.usage
    told = [(one.outcome, one.answer and one.answer.by, one.edited) for one in journal.requests]
    assert told == [("approved", "carla", True), ("rejected", "bob", False)]
    assert journal.requests[0].executed == {"order": "A-1", "amount": 4.0}
    assert [step.event_id for step in journal.steps][: len(waiting.steps)] == [step.event_id for step in waiting.steps]
    by_id = await app.client.journal(run.id)
    assert by_id.model_dump(exclude={"read_at"}) == journal.model_dump(exclude={"read_at"})


async def test_what_was_proposed_and_what_ran_are_told_without_secrets(run_app: Running) -> None:
    def pay(order: str, api_key: str) -> str:
        return f"paid {order}"

    script = Script([call("pay", "p", order="A-1", api_key="sk-1234567890abcdef1234")], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"order": "A-2", "api_key": "[masked]"}, by="ann")
        await run.result()
        journal = await run.journal()

        (request,) = journal.requests
        assert (request.kind, request.call_id, request.edited) == ("approval", "p", True)
        assert request.proposed == {"order": "A-1", "api_key": "[masked]"}
        assert request.executed == {"order": "A-2", "api_key": "[masked]"}
        assert "sk-1234567890abcdef1234" not in journal.model_dump_json()


async def test_an_approved_call_that_may_have_happened_is_told_with_what_the_person_found(run_app: Running) -> None:
    def pay(amount: int) -> str:
        raise ConnectionError("reset by peer, token=hunter2")

    script = Script([call("pay", "p", amount=5)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", by="ann")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        assert (await run.journal()).status == "awaiting_approval"
        await run.decide("2", "happened", result={"receipt": 77, "token": "hunter2"}, by="bob")
        await run.result()
        approval, outcome = (await run.journal()).requests

        assert (approval.outcome, approval.steps, outcome.steps) == ("approved", (3,), ())
        assert outcome.answer is not None
        assert (outcome.kind, outcome.outcome, outcome.answer.by) == ("outcome", "happened", "bob")
        assert outcome.answer.result == {"receipt": 77, "token": "[masked]"}
        step = (await run.journal()).steps[2]
        assert step.error is not None
        assert step.error.startswith("ConnectionError: reset by peer, token=[masked] (in ")


async def test_a_stuck_step_is_told_with_who_had_it_run_again(run_app: Running) -> None:
    down = [True]

    def send(number: int) -> str:
        if down.pop():
            raise ConnectionError("closed")
        return "sent"

    once = Retries(tool=RetryPolicy(maximum_attempts=1))
    script = Script([call("send", "s", number=2)], "done")
    async with run_app(
        Interlock([agent(script, tools=[send])], settings=Settings(stuck_seconds=60), retries=once)
    ) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda state: len(state.stuck) == 1)
        stuck = await run.journal()
        assert (stuck.status, [one.outcome for one in stuck.stuck]) == ("stuck", ["open"])
        down.append(False)
        await run.retry(by="ann", reason="it is open again")
        await run.result()
        journal = await run.journal()

        assert [(one.label, one.outcome) for one in journal.stuck] == [("send: number 2", "retried")]
        assert [(one.by, one.reason, one.via) for one in journal.retries] == [("ann", "it is open again", "update")]
        assert [step.status for step in journal.steps] == ["completed", "failed", "completed", "completed"]
        assert journal.totals.waited_seconds > 0


async def test_of_two_signals_the_first_counts_and_the_run_agrees(run_app: Running) -> None:
    async with run_app(refunding(two_refunds()[:1], "done")) as app:
        run = await app.client.start("support", "refund A-1")
        await app.requests(run, 1)
        handle = app.client.temporal.get_workflow_handle(run.id)
        for by, verdict in (("ann", "reject"), ("bob", "approve")):
            said = Decision.model_validate(
                {"request_id": "1", "verdict": verdict, "decided_by": by, "decided_at": datetime.now(UTC)}
            )
            await handle.signal(names.DECIDE_APPROVAL, said)
        await run.result()
        (settled,) = (await run.state()).settled
        (request,) = (await run.journal()).requests

        assert (settled.outcome, settled.by) == ("rejected", "ann")
        assert request.answer is not None
        assert (request.outcome, request.answer.by) == ("rejected", "ann")
        assert [(one.by, one.ignored) for one in request.ignored] == [("bob", "the request was settled already")]


@pytest.mark.parametrize("length", [10, 50_000], ids=["short", "longer than the server keeps"])
async def test_a_step_that_is_tried_again_says_how_often_and_why(run_app: Running, length: int) -> None:
    let_go = asyncio.Event()

    async def look(order: str) -> str:
        if activity.info().attempt < 3:
            raise ConnectionError("password=hunter2 was refused" + "." * length)
        await let_go.wait()
        return order

    quickly = RetryPolicy(initial_interval=timedelta(milliseconds=10), backoff_coefficient=1)
    support = agent(
        Script([call("look", "a", order="A-1")], "done"),
        tools=[look],
        durable={"activity_config": {"retry_policy": quickly, "start_to_close_timeout": timedelta(seconds=30)}},
    )
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")

        async def third_attempt() -> Journal | None:
            journal = await run.journal()
            return journal if len(journal.steps) == 2 and journal.steps[1].attempts == 3 else None

        journal = await eventually(third_attempt)
        step = journal.steps[1]
        assert (step.status, step.ended_at) == ("scheduled", None)
        assert step.started_at is not None
        assert step.last_error is not None
        assert step.last_error.startswith("ConnectionError: password=[masked] was refused...")
        let_go.set()
        await run.result()
        step = (await run.journal()).steps[1]

        assert (step.status, step.attempts) == ("completed", 3)
        assert step.last_error is not None
        assert step.last_error.startswith("ConnectionError: password=[masked] was refused...")
        assert (await run.journal()).totals.retries == 2


async def test_the_runs_of_agents_in_tools_come_with_their_own_journals(run_app: Running) -> None:
    def pay(order: str) -> str:
        return f"paid {order}"

    payer = agent(
        Script([call("pay", "p", order="A-1")], "inner"), name="payer", tools=[Tool(pay, requires_approval=True)]
    )

    async def delegate(task: str) -> Any:
        return (await payer.run(task)).output

    support = agent(Script([call("delegate", "d", task="pay A-1")], "outer"), tools=[delegate])
    async with run_app(Interlock([support, payer])) as app:
        run = await app.client.start("support", "help")
        request = await sub_run_request(app, run)
        (link,) = (await run.journal(deep=True)).sub_runs
        assert link.journal is not None
        assert (link.position, link.status, link.run_id) == (2, "awaiting_approval", request.run_id)
        assert link.journal.requests[0].agent_path == ("support", "payer")
        await app.client.attach(request.workflow_id).decide("1", "approve")
        output = await run.result()
        shallow, deep = await run.journal(), await run.journal(deep=True)

        assert shallow.totals.usage == deep.totals.usage == output.usage
        assert [one.journal for one in shallow.sub_runs] == [None]
        (below,) = [one.journal for one in deep.sub_runs if one.journal]
        assert (below.status, below.parent_id, below.run_id) == ("completed", run.id, request.run_id)
        assert [step.kind for step in below.steps] == ["model", "description", "tool", "model"]


async def test_a_run_that_was_started_over_has_a_journal_for_each_execution(server: EmbeddedServer) -> None:
    async with running(refunding("done"), server) as app:
        run = await app.client.start("support", "go", id="started-over")
        await run.result()
        first = await run.journal()
        again = await app.client.start("support", "something else", id="started-over", restart=True)
        await again.result()
        latest = await again.journal()

        assert latest.summary == "support: something else"
        assert latest.run_id != first.run_id
        earlier = await again.journal(run_id=first.run_id)
        assert earlier.model_dump(exclude={"read_at"}) == first.model_dump(exclude={"read_at"})


@pytest.mark.parametrize(
    ("run_id", "said"),
    [
        (None, ""),
        ("7f0c9a51-0000-4000-8000-000000000000", " with an execution '7f0c9a51-"),
        ("x", " with an execution 'x'"),
    ],
)
async def test_a_run_that_is_not_there_is_refused(server: EmbeddedServer, run_id: str | None, said: str) -> None:
    client = await Client.connect(server.address)

    with pytest.raises(RefusedError, match=f"There is no run 'nobody'{said}"):
        await client.journal("nobody", run_id=run_id)


@activity.defn
async def print_invoice(number: int) -> str:
    return f"invoice {number}"


@workflow.defn
class Invoices:
    @workflow.run
    async def run(self, count: int) -> str:
        for number in range(count):
            await workflow.execute_activity(print_invoice, number, start_to_close_timeout=timedelta(seconds=5))
        return "printed"


async def test_a_workflow_that_is_no_run_of_an_agent_is_shown_too(server: EmbeddedServer) -> None:
    client = await Client.connect(server.address)
    worker = Worker(
        client.temporal,
        task_queue="invoices",
        workflows=[Invoices],
        activities=[print_invoice],
        workflow_runner=UnsandboxedWorkflowRunner(),
    )
    async with worker:
        await client.temporal.execute_workflow(Invoices.run, 2, id="invoices", task_queue="invoices")
    journal = await client.journal("invoices")

    assert (journal.workflow_type, journal.agent, journal.status) == ("Invoices", "", "completed")
    assert [(one.position, one.kind, one.name, one.status) for one in journal.steps] == [
        (1, "other", "print_invoice", "completed"),
        (2, "other", "print_invoice", "completed"),
    ]


async def test_the_client_for_other_code_reads_journals_too(server: EmbeddedServer) -> None:
    async with running(refunding("done"), server) as app:
        run = await app.client.start("support", "go")
        await run.result()

        def read() -> Journal:
            with SyncClient(server.address, task_queue=app.client.task_queue) as client:
                return client.journal(run.id)

        journal = await asyncio.get_running_loop().run_in_executor(None, read)
        assert [step.outcome for step in journal.steps] == ["answers"]
