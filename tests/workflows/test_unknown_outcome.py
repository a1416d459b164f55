"""An approved call of which nobody knows whether it happened is never run again: a person looks, and says so."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import ModelRetry, RunContext, Tool
from pydantic_ai.exceptions import ToolFailed
from temporalio.common import RetryPolicy

from interlock import Interlock, RefusedError, Retries, Run, RunFailedError
from interlock.activities.describe import DescribeTool
from interlock.adapters.pydantic_ai import idempotency_key
from interlock.contracts.payloads import ApprovalRequest
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

QUICK = Retries(tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3))


class Bank:
    """A tool that has its effect, and then fails as often as it is told to."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.paid: list[int] = []
        self.keys: list[str] = []

    def pay(self, ctx: RunContext[None], amount: int) -> str:
        self.paid.append(amount)
        self.keys.append(idempotency_key(ctx))
        if self.errors:
            raise self.errors.pop(0)
        return f"paid {amount}"


def bank_app(script: Script, bank: Bank, **options: Any) -> Interlock:
    return Interlock([agent(script, tools=[Tool(bank.pay, requires_approval=True, **options)])], retries=QUICK)


async def asked(app: RunningApp, run: Run) -> ApprovalRequest:
    """Approve the call and wait until the run asks whether it happened."""
    (request,) = await app.requests(run, 1)
    await run.decide(request.request_id, "approve", digest=request.digest)
    state = await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
    assert state.status == "awaiting_approval"
    (question,) = state.requests
    return question


PAY = [call("pay", "p", amount=5)]


@pytest.mark.parametrize("error", [ModelRetry("not so"), ToolFailed("no")], ids=["ModelRetry", "ToolFailed"])
async def test_what_a_tool_tells_the_model_is_no_unknown_outcome(run_app: Running, error: Exception) -> None:
    bank, script = Bank(error), Script(PAY, "done")
    async with run_app(bank_app(script, bank)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()

        assert bank.paid == [5]
        assert len((await run.state()).settled) == 1


@pytest.mark.parametrize("said", [False, "no"])
async def test_a_tool_that_says_anything_else_of_itself_has_one_attempt(server: EmbeddedServer, said: Any) -> None:
    bank, script = Bank(ConnectionError()), Script(PAY, "done")
    async with running(bank_app(script, bank, metadata={"idempotent": said}), server) as app:
        run = await app.client.start("support", "go")
        question = await asked(app, run)
        await run.decide(question.request_id, "happened", result="paid")
        await run.result()

        assert bank.paid == [5]


async def test_a_result_that_cannot_be_written_is_asked_for(run_app: Running) -> None:
    ran: list[int] = []

    def pay(amount: int) -> Any:
        ran.append(amount)
        return object()

    script = Script(PAY, "done")
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])], retries=QUICK)) as app:
        run = await app.client.start("support", "go")
        question = await asked(app, run)
        await run.decide(question.request_id, "happened", result="paid 5")
        await run.result()

        assert ran == [5]
        assert script.results() == {"p": "paid 5"}


async def test_a_call_that_no_worker_could_begin_is_no_unknown_outcome(server: EmbeddedServer) -> None:
    bank, script = Bank(), Script(PAY, "done")
    app_of = bank_app(script, bank)
    async with running(app_of, server) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        task_queue = app.client.task_queue
    without_the_tool = [DescribeTool(app_of.adapter()).describe_tool]
    async with running(app_of, server, task_queue=task_queue, activities=without_the_tool) as app:
        run = app.client.attach(run.id)
        await run.decide("1", "approve")
        with pytest.raises(RunFailedError, match="is not registered on this worker") as failed:
            await run.result()

        assert failed.value.error_type == "NotFoundError"
        assert bank.paid == []


async def test_each_kind_of_request_takes_its_own_answers(run_app: Running) -> None:
    bank, script = Bank(ConnectionError()), Script(PAY, "done")
    async with run_app(bank_app(script, bank)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        for verdict in ("happened", "not_happened", "give_up"):
            with pytest.raises(RefusedError, match="waits for an approval, not for a result: approve or reject it"):
                await run.decide("1", verdict)
        question = await asked(app, run)
        for verdict in ("approve", "reject"):
            with pytest.raises(RefusedError, match="asks whether an approved call happened"):
                await run.decide(question.request_id, verdict)  # type: ignore[arg-type]
        with pytest.raises(RefusedError, match="asks whether an approved call happened"):
            await run.complete_tool_call("p", result="paid")
        with pytest.raises(RefusedError, match="Only an approval takes arguments"):
            await run.decide(question.request_id, "not_happened", arguments={"amount": 500})
        with pytest.raises(RefusedError, match="Only a call that happened has a result"):
            await run.decide(question.request_id, "give_up", result="paid")
        await run.decide(question.request_id, "happened", result="paid")
        await run.result()

        assert bank.paid == [5]


async def test_an_answer_to_the_approval_does_not_settle_the_question_that_follows(run_app: Running) -> None:
    bank, script = Bank(ConnectionError()), Script(PAY, "done")
    async with run_app(bank_app(script, bank)) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        question = await asked(app, run)
        with pytest.raises(RefusedError, match="already approved"):
            await run.decide("1", "approve", digest=request.digest)
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide(question.request_id, "happened", digest=request.digest)
        await run.cancel()
        with pytest.raises(RunFailedError):
            await run.result()

        assert (await run.state()).settled[-1].outcome == "withdrawn"
