"""Cancelling a run: in every phase it ends cancelled, its requests are withdrawn, and its tools may clean up."""

import asyncio

import pytest

from interlock import Run, RunFailedError
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Answer, Desk, Framework, Inner, Made, Said, Script, Tool, app_of, ask, call

PAY = [call("refund", "a", "A-1", 1.0)]


async def cancelled(run: Run) -> None:
    await run.cancel()
    with pytest.raises(RunFailedError) as failed:
        await asyncio.wait_for(run.result(), 60)
    assert failed.value.status == "cancelled"


class Diary:
    """Something that takes as long as it is let, and cleans up."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cleaned = False

    async def work(self) -> str:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.cleaned = True
            raise
        return "rested"


async def test_a_run_whose_model_answers_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    diary = Diary()

    async def answer(said: list[Said]) -> Answer:
        return await diary.work()

    async with run_app(app_of(framework.agent(Script(answer)))) as app:
        run = await app.client.start("support", "go")
        await asyncio.wait_for(diary.begun.wait(), 60)
        await cancelled(run)

    assert diary.cleaned


async def test_a_run_whose_tool_works_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    diary = Diary()

    async def work(made: Made) -> str:
        return await diary.work()

    async with run_app(app_of(framework.agent(Script(PAY, "done"), tools=[Tool(body=work)]))) as app:
        run = await app.client.start("support", "go")
        await asyncio.wait_for(diary.begun.wait(), 60)
        await cancelled(run)

    assert diary.cleaned


async def withdrawn(app: RunningApp, run: Run) -> bool:
    return [one.outcome for one in (await run.journal()).requests] == ["withdrawn"]


async def test_a_run_that_waits_for_a_person_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    desk = Desk()
    async with run_app(app_of(framework.agent(Script(PAY, "done"), tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await cancelled(run)
        await eventually(lambda: withdrawn(app, run))

    assert desk.made == []


async def test_a_run_whose_inner_agent_waits_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    desk = Desk()
    inner = framework.agent(Script(PAY, "inner"), name="inner", tools=[Tool(body=desk, gated=True)])
    build = app_of(framework.agent(Script([ask("inner", "i")], "done"), tools=[Inner("inner", inner)]), inner)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await cancelled(run)
        await eventually(lambda: withdrawn(app, run))

    assert desk.made == []


async def test_a_run_that_asks_whether_a_call_happened_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    desk = Desk([ConnectionError()])
    async with run_app(app_of(framework.agent(Script(PAY, "done"), tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await cancelled(run)
        state = await run.state()
        assert (state.requests, [one.outcome for one in state.settled]) == ([], ["approved", "withdrawn"])

    assert desk.orders == ["A-1"]


async def test_a_stuck_run_can_be_cancelled(framework: Framework, run_app: RunApp) -> None:
    build = app_of(framework.agent(Script(PAY, "done"), tools=[Tool(body=Desk([ConnectionError()]))]), stuck_seconds=60)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda state: bool(state.stuck))
        await cancelled(run)

        assert (await run.state()).stuck == []
