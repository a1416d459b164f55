"""A call that has begun settles before anything else becomes of its answer: what it returned is never lost."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from temporalio.workflow import ChildWorkflowConfig

from interlock import Interlock, Run, RunFailedError, Settings
from interlock.testing import RunningApp, eventually
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

HOUR = Settings(stuck_seconds=3_600)
TOGETHER = [call("pay", "p", amount=5), call("picky", "q")]


class Shop:
    """`pay` works until it is let go; `picky` fails the run while `pay` is at work."""

    def __init__(self) -> None:
        self.begun, self.free = asyncio.Event(), asyncio.Event()
        self.seen: list[str] = []

    async def pay(self, amount: int) -> str:
        self.seen.append("begun")
        self.begun.set()
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        self.seen.append("returned")
        return f"paid {amount}"

    async def picky(self) -> str:
        await self.begun.wait()
        raise ModelRetry("not so")

    def tools(self, **options: Any) -> list[Tool[Any]]:
        return [Tool(self.pay, **options), Tool(self.picky, max_retries=0)]


async def failed(run: Run, tool: str = "picky") -> None:
    """Wait until the call that fails the run has done so."""

    async def has_failed() -> bool:
        return ("failed", tool) in [(step.status, step.name) for step in (await run.journal()).steps]

    await eventually(has_failed)


async def approved(app: RunningApp, run: Run) -> None:
    (request,) = await app.requests(run, 1)
    await run.decide(request.request_id, "approve")


async def test_a_call_in_a_workflow_of_its_own_keeps_its_result_when_another_one_fails_the_run(
    run_app: Running,
) -> None:
    shop = Shop()

    async def pay(amount: int) -> str:
        return str((await worker.run("pay")).output)

    script = Script(TOGETHER, "done")
    worker = agent(Script([call("pay", "x", amount=5)], "paid 5"), name="worker", tools=[Tool(shop.pay)])
    in_a_workflow = {"temporal": {"child_workflow": ChildWorkflowConfig()}}
    tools = [Tool(pay, metadata=in_a_workflow), Tool(shop.picky, max_retries=0)]
    async with run_app(Interlock([agent(script, tools=tools), worker], settings=HOUR)) as app:
        run = await app.client.start("support", "go")
        await failed(run)
        assert (await app.state(run, lambda state: True)).stuck == []
        shop.free.set()
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        assert "picky" in step.message
        await run.retry()
        await run.result()

        assert shop.seen == ["begun", "returned"]
        assert script.results() == {"p": "paid 5", "q": "The tool call was interrupted before a result was produced."}


class Impatient(AbstractCapability[Any]):
    """A hook that gives each call a moment."""

    async def wrap_tool_execute(self, ctx: RunContext[Any], *, handler: Any, args: Any, **_: Any) -> Any:
        async with asyncio.timeout(0.2):
            return await handler(args)


async def test_a_hook_that_loses_patience_gets_the_result_late(run_app: Running) -> None:
    shop, script = Shop(), Script([call("pay", "p", amount=5)], "done")
    tools = shop.tools()
    async with run_app(Interlock([agent(script, tools=tools, capabilities=[Impatient()])])) as app:
        run = await app.client.start("support", "go")
        await shop.begun.wait()
        await eventually(lambda: has_fired(app, run))
        shop.free.set()
        await run.result()

        assert shop.seen == ["begun", "returned"]
        assert script.results() == {"p": "paid 5"}


async def has_fired(app: RunningApp, run: Run) -> bool:
    """Whether a timer of the run's has gone off, and what it set off is done."""
    history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    events = [event.WhichOneof("attributes") for event in history.events]
    fired = "timer_fired_event_attributes"
    done = "workflow_task_completed_event_attributes"
    return fired in events and done in events[events.index(fired) :]


async def test_an_approved_call_whose_time_was_over_is_asked_about(run_app: Running) -> None:
    shop, script = Shop(), Script([call("pay", "p", amount=5)], "done")
    async with run_app(Interlock([agent(script, tools=shop.tools(requires_approval=True, timeout=0.1))])) as app:
        run = await app.client.start("support", "go")
        await approved(app, run)
        (question,) = (await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])).requests
        assert "Timed out after 0.1 seconds" in question.question
        await run.decide(question.request_id, "happened", result="receipt 77")
        await run.result()

        assert script.results() == {"p": "receipt 77"}


async def test_a_failure_that_nobody_can_retry_does_not_wait_for_an_agent_that_asks_a_person(run_app: Running) -> None:
    inner_script = Script([call("pay", "p")], "inner done")
    inner = agent(inner_script, name="inner", tools=[Tool(lambda: "paid", name="pay", requires_approval=True)])
    asked = asyncio.Event()

    async def delegate() -> str:
        return str((await inner.run("go")).output)

    async def picky() -> str:
        await asked.wait()
        raise ModelRetry("not so")

    script = Script([call("delegate", "d"), call("picky", "q")], "done")
    async with run_app(Interlock([agent(script, tools=[delegate, Tool(picky, max_retries=0)]), inner])) as app:
        run = await app.client.start("support", "go", stuck_seconds=0)
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        below = app.client.attach(sub_run.workflow_id)
        await app.requests(below, 1)
        asked.set()
        with pytest.raises(RunFailedError, match="picky"):
            await asyncio.wait_for(run.result(), 60)

        async def is_cancelled() -> bool:
            return (await below.report()).status == "cancelled"

        await eventually(is_cancelled)


async def test_nor_for_one_that_works_in_the_run_itself_and_asks(run_app: Running) -> None:
    inner_script = Script([call("pay", "p")], "inner done")
    inner = agent(inner_script, name="inner", tools=[Tool(lambda: "paid", name="pay", requires_approval=True)])
    asked = asyncio.Event()

    async def delegate() -> str:
        return str((await inner.run("go")).output)

    async def picky() -> str:
        await asked.wait()
        raise ModelRetry("not so")

    tools = [Tool(delegate, metadata={"temporal": False}), Tool(picky, max_retries=0)]
    script = Script([call("delegate", "d"), call("picky", "q")], "done")
    async with run_app(Interlock([agent(script, tools=tools), inner])) as app:
        run = await app.client.start("support", "go", stuck_seconds=0)
        await app.requests(run, 1)
        asked.set()
        with pytest.raises(RunFailedError, match="picky"):
            await asyncio.wait_for(run.result(), 60)
