"""A call that has begun settles before anything else becomes of its answer: what it returned is never lost."""

import asyncio
from collections.abc import Sequence

import pytest

from interlock import Run, RunFailedError
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Answer, Framework, Inner, Made, Script, Tool, app_of, ask, call

TOGETHER = [call("pay", "p", "A-1", 5.0), call("picky", "q", "A-1")]
INTERRUPTED = "The tool call was interrupted before a result was produced."


class Shop:
    """`pay` works until it is let go; `picky` fails the run while `pay` is at work, or when it is told to."""

    def __init__(self, *, lets_go: bool = False, waits: bool = False) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        self.picked, self.may_pick = asyncio.Event(), asyncio.Event() if waits else self.begun
        self.error: Exception | None = None
        self.seen: list[str] = []
        if lets_go:
            self.free.set()

    async def pay(self, made: Made) -> str:
        self.seen.append("begun")
        self.begun.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        self.seen.append("returned")
        if self.error:
            raise self.error
        return f"paid {made.order}"

    async def picky(self, made: Made) -> str:
        await self.may_pick.wait()
        self.picked.set()
        raise ValueError("not so")

    def tools(self, *, gated: bool = False) -> list[Tool]:
        return [Tool(name="pay", body=self.pay, gated=gated), Tool(name="picky", body=self.picky, stops=True)]

    async def has_failed(self, app: RunningApp, run: Run, beside: int = 1) -> None:
        """Wait until the run knows of the failure. beside: how many other steps are at work then."""
        await asyncio.wait_for(self.picked.wait(), 60)
        handle = app.client.temporal.get_workflow_handle(run.id)

        async def knows() -> bool:
            now = (await handle.describe()).raw_description
            return len(now.pending_activities) == beside and not now.HasField("pending_workflow_task")

        await eventually(knows)


def in_order(*answers: Answer) -> Script:
    """A model that gives these answers one after another, whatever it is asked."""
    left = iter(answers)
    return Script(*[lambda said: next(left)] * len(answers))


async def approved(app: RunningApp, run: Run) -> None:
    (request,) = await app.requests(run, 1)
    await run.decide(request.request_id, "approve")


@pytest.mark.parametrize("how", ["ungated", "approved", "by an agent that is a tool"])
async def test_a_call_at_work_keeps_its_result_when_another_one_fails_the_run(
    framework: Framework, run_app: RunApp, how: str
) -> None:
    shop = Shop()
    tools: Sequence[Tool | Inner] = shop.tools(gated=how == "approved")
    together, others = TOGETHER, []
    if how == "by an agent that is a tool":
        worker = framework.agent(
            Script([call("pay", "x", "A-1", 5.0)], "paid A-1"), name="worker", tools=[Tool(name="pay", body=shop.pay)]
        )
        tools, together, others = [Inner("worker", worker), tools[1]], [ask("worker", "p"), TOGETHER[1]], [worker]
    script = Script(together, "done")
    async with run_app(app_of(framework.agent(script, tools=tools), *others, stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        if how == "approved":
            await approved(app, run)
        await shop.has_failed(app, run)
        assert (await run.state()).stuck == []
        shop.free.set()
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        assert step.kind == "model"
        await run.retry()
        await run.result()

    assert shop.seen == ["begun", "returned"]
    assert script.results() == {"p": "paid A-1", "q": INTERRUPTED}


async def test_an_approved_call_that_fails_beside_is_asked_about_before_the_run_is_stuck(
    framework: Framework, run_app: RunApp
) -> None:
    shop, script = Shop(), Script(TOGETHER, "done")
    shop.error = ConnectionError("reset")
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        await shop.has_failed(app, run)
        shop.free.set()
        (question,) = (await app.state(run, lambda state: bool(state.requests))).requests
        assert question.kind == "outcome"
        await run.decide(question.request_id, "happened", result="receipt 77")
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert shop.seen == ["begun", "returned"]
    assert script.results()["p"] == "receipt 77"


async def test_a_question_whether_a_call_happened_stays_open_when_another_call_fails_the_run(
    framework: Framework, run_app: RunApp
) -> None:
    shop, script = Shop(lets_go=True, waits=True), Script(TOGETHER, "done")
    shop.error = ConnectionError("reset")
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        shop.may_pick.set()
        await shop.has_failed(app, run, beside=0)
        (question,) = await app.requests(run, 1)
        await run.decide(question.request_id, "happened", result="receipt 77")
        state = await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert [one.outcome for one in state.settled] == ["approved", "happened"]
    assert script.results()["p"] == "receipt 77"


async def test_giving_up_a_question_ends_the_run_although_another_call_has_failed_it(
    framework: Framework, run_app: RunApp
) -> None:
    shop, script = Shop(), Script(TOGETHER, "done")
    shop.error = ConnectionError("reset")
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)), stuck_seconds=0)) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        await shop.has_failed(app, run)
        shop.free.set()
        (question,) = (await app.state(run, lambda state: bool(state.requests))).requests
        await run.decide(question.request_id, "give_up")
        with pytest.raises(RunFailedError):
            await run.result()

    assert shop.seen == ["begun", "returned"]


async def test_a_call_that_waits_for_its_approval_is_withdrawn_when_another_one_fails_the_run(
    framework: Framework, run_app: RunApp
) -> None:
    shop = Shop(lets_go=True, waits=True)
    script = in_order(TOGETHER, [call("pay", "again", "A-1", 5.0)], "done")
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        shop.may_pick.set()
        state = await app.state(run, lambda state: bool(state.stuck))
        assert (state.requests, [one.outcome for one in state.settled]) == ([], ["withdrawn"])
        await run.retry()
        await approved(app, run)
        await run.result()

    assert shop.seen == ["begun", "returned"]
    assert script.results()["again"] == "paid A-1"


async def test_a_run_that_nobody_retries_ends_after_its_calls_have_settled(
    framework: Framework, run_app: RunApp
) -> None:
    shop, script = Shop(), Script(TOGETHER)
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)))) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        await shop.has_failed(app, run)
        shop.free.set()
        with pytest.raises(RunFailedError):
            await run.result()
        steps = (await run.journal()).steps

    assert [step.status for step in steps if (step.kind, step.name) == ("tool", "pay")] == ["completed"]


async def test_a_call_that_has_to_settle_is_cancelled_with_its_run(framework: Framework, run_app: RunApp) -> None:
    shop, script = Shop(), Script(TOGETHER)
    async with run_app(app_of(framework.agent(script, tools=shop.tools(gated=True)), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        await shop.has_failed(app, run)
        await run.cancel()
        with pytest.raises(RunFailedError) as ended:
            await run.result()

    assert ended.value.status == "cancelled"
    assert shop.seen == ["begun", "cancelled"]
