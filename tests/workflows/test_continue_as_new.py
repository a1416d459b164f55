"""A run whose history has become long goes on in another execution: nothing is lost, nothing is done twice."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from pydantic_ai import RunContext, Tool
from pydantic_ai.messages import ModelMessage
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import RetryPolicy

from interlock import Interlock, Price, RefusedError, Run
from interlock.adapters.pydantic_ai import idempotency_key
from interlock.adapters.pydantic_ai.worker import SubRunFailedError
from interlock.contracts.payloads import RunState
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually, running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call, user_texts


@pytest.fixture(scope="module")
async def short_histories() -> AsyncIterator[EmbeddedServer]:
    """A server that takes a history of 40 events for a long one."""
    config = {"limit.historyCount.suggestContinueAsNew": "40"}
    embedded = await EmbeddedServer.start(port=0, ui=False, dynamic_config=config)
    yield embedded
    await embedded.stop()


@pytest.fixture
def run_app(short_histories: EmbeddedServer) -> Running:
    # Without a cache each task replays all that an execution did so far, so nothing can hide in a worker's memory.
    return partial(running, server=short_histories, max_cached_workflows=0)


async def executions(app: RunningApp, run: Run) -> list[WorkflowExecutionStatus | None]:
    found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
    return sorted([one.status async for one in found], key=str)


def is_listed_once(app: RunningApp, run: Run) -> Callable[[], Awaitable[bool]]:
    async def is_it() -> bool:
        return [one.status for one in await app.client.runs() if one.workflow_id == run.id] == ["completed"]

    return is_it


def asks_for(request_id: str, state: RunState) -> bool:
    return [one.request_id for one in state.requests] == [request_id]


class Counter:
    def __init__(self) -> None:
        self.noted: list[int] = []
        self.keys: list[str] = []

    def note(self, ctx: RunContext[None], number: int) -> str:
        self.noted.append(number)
        self.keys.append(idempotency_key(ctx))
        return f"noted {number}"


def steps(count: int) -> Script:
    return Script(*([call("note", f"n{number}", number=number)] for number in range(count)), "done")


async def test_a_long_run_is_several_executions_and_does_each_step_once(run_app: Running) -> None:
    counter, script = Counter(), steps(9)
    async with run_app(Interlock([agent(script, tools=[counter.note])])) as app:
        run = await app.client.start("support", "go")
        output = await run.result()

        assert output.output == "done"
        assert counter.noted == list(range(9))
        assert len(set(counter.keys)) == 9
        assert script.calls == 10
        assert output.usage.requests == 10
        assert output.usage.tool_calls == 9
        assert output.messages is not None
        assert len(output.messages) == 20
        await eventually(is_listed_once(app, run))
        ended = await executions(app, run)
        assert ended.count(WorkflowExecutionStatus.CONTINUED_AS_NEW) >= 2
        assert ended.count(WorkflowExecutionStatus.COMPLETED) == 1
        assert (await run.journal()).continued_from


async def test_a_run_that_went_on_is_reported_from_its_first_start_with_the_execution_before(run_app: Running) -> None:
    async with run_app(Interlock([agent(steps(9), tools=[Counter().note])])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await eventually(is_listed_once(app, run))
        (listed,) = [one for one in await app.client.runs() if one.workflow_id == run.id]
        shown = await run.report()
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
        first, *_, before, last = sorted([one async for one in found], key=lambda one: one.start_time)

    for report in (listed, shown):
        assert report.started_at == first.start_time
        assert report.run_id == last.run_id
        assert report.continued_from == before.run_id


async def test_a_watched_run_shows_the_steps_of_all_its_executions(run_app: Running) -> None:
    counter, script = Counter(), steps(6)
    async with run_app(Interlock([agent(script, tools=[counter.note])])) as app:
        run = await app.client.start("support", "go")
        seen = [
            change.step.summary
            async for change in run.watch()
            if change.step and change.step.kind == "tool" and change.step.status == "completed"
        ]

        assert seen == [f"note: number {number}" for number in range(6)]
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in await executions(app, run)


@pytest.mark.parametrize("carried", [50, 2], ids=["all carried", "the latest carried"])
async def test_agents_of_tools_count_in_a_run_of_several_executions(
    run_app: Running, carried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is carried is bounded, or it would outgrow the input of an execution; what was used counts all the same."""
    monkeypatch.setattr("interlock.workflows.agent._CARRIED", carried)
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")

    async def delegate(number: int) -> Any:
        return (await inner.run(f"go {number}")).output

    script = Script(*([call("delegate", f"d{number}", number=number)] for number in range(5)), "done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "go")
        output = await run.result()

        assert inner_script.calls == 5
        assert output.usage.requests == 6 + 5
        sub_runs = (await run.state()).sub_runs
        assert len(sub_runs) == 5 if carried == 50 else 2 <= len(sub_runs) < 5


async def test_a_long_fork_has_the_keys_of_its_run_until_something_is_changed(run_app: Running) -> None:
    counter, script = Counter(), steps(8)
    async with run_app(Interlock([agent(script, tools=[counter.note])])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        keys = list(counter.keys)
        first = (await run.journal()).first_run_id
        fork = await app.client.fork(await app.client.plan_fork(run.id, run_id=first, at=2))
        await fork.result()
        assert len(await executions(app, fork)) > 1
        assert counter.keys[8:] == keys

        changed = await app.client.fork(await app.client.plan_fork(fork.id, at=1, message="Be quick."))
        await changed.result()
        assert len(counter.keys) > 16
        assert set(counter.keys[16:]).isdisjoint(keys)


async def test_an_agent_of_a_tool_may_be_the_long_one(run_app: Running) -> None:
    counter, inner_script = Counter(), steps(6)
    inner = agent(inner_script, name="inner", tools=[counter.note])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], "all done")
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "go")
        output = await run.result()

        assert output.output == "all done"
        assert script.results() == {"d": "done"}
        assert counter.noted == list(range(6))
        assert output.usage.requests == 2 + 7
        (below,) = (await run.state()).sub_runs
        ended = await executions(app, app.client.attach(below.workflow_id))
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in ended


async def test_a_conversation_too_large_to_take_along_goes_on_where_it_is(run_app: Running) -> None:
    """At 1.2 MB: twice in a history would still fit, but not beside the rest of what a run is started with."""

    def read(number: int) -> str:
        return str(number) * 100_000

    script = Script(*([call("read", f"r{number}", number=number)] for number in range(13)), "done")
    async with run_app(Interlock([agent(script, tools=[read])])) as app:
        run = await app.client.start("support", "x" * 300_000)
        output = await run.result()

        assert output.output == "done"
        assert script.calls == 14


async def test_the_events_of_all_executions_are_one_stream(run_app: Running) -> None:
    counter = Counter()
    async with run_app(Interlock([agent(steps(9), tools=[counter.note])])) as app:
        run = await app.client.start("support", "go", stream=True)
        events = [event async for event in run.events()]
        ended = await executions(app, run)

        assert ended.count(WorkflowExecutionStatus.CONTINUED_AS_NEW) >= 2
        assert [event.offset for event in events] == list(range(len(events)))
        assert [event.kind for event in events].count("run_started") == 1
        assert [event.step for event in events if event.kind == "step_finished"] == list(range(1, 20))
        assert events[-1].kind == "run_ended"
        for offset in (0, 1, len(events) // 2, len(events) - 1, len(events)):
            assert [event async for event in run.events(from_offset=offset)] == events[offset:]


async def test_a_budget_and_what_is_spent_of_it_go_on_with_the_run(run_app: Running) -> None:
    counter, script = Counter(), steps(9)
    app_of_steps = Interlock([agent(script, tools=[counter.note])], prices={"scripted": Price(call_usd="0.10")})
    async with run_app(app_of_steps) as app:
        run = await app.client.start("support", "go", budget={"requests": 5, "cost_usd": "0.80"})
        await app.state(run, partial(asks_for, "1"))
        assert script.calls == 5
        await run.decide("1", "approve", arguments={"requests": 95})
        state = await app.state(run, partial(asks_for, "2"))
        assert script.calls == 8
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in await executions(app, run)
        assert state.budget
        assert (state.budget.limits.requests, str(state.budget.spent.cost_usd)) == (100, "0.80")
        await run.decide("2", "approve")
        output = await run.result()

        assert (output.usage.requests, str(output.usage.cost_usd)) == (10, "1.00")


async def test_the_run_of_an_agent_in_a_tool_claims_from_its_budget_over_all_its_executions(run_app: Running) -> None:
    counter, inner_script = Counter(), steps(6)
    inner = agent(inner_script, name="worker", tools=[counter.note])

    async def delegate() -> str:
        return str((await inner.run("go")).output)

    outer = agent(Script([call("delegate", "d1")], [call("delegate", "d2")], "done"), tools=[delegate])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go", budget={"requests": 12})
        state = await app.state(run, lambda state: bool(state.budget and state.budget.lacks and state.budget.waiting))
        (at_work,) = [one for one in state.sub_runs if one.usage is None]
        below = app.client.attach(at_work.workflow_id)
        (request,) = await app.requests(below, 1)
        assert inner_script.calls == 12 - 2
        await below.decide(request.request_id, "approve", arguments={"requests": 5})
        output = await run.result()

        assert output.usage.requests == 3 + 2 * 7
        state = await run.state()
        assert state.budget
        assert (state.budget.spent.requests, state.budget.limits.requests) == (17, 17)
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in await executions(app, below)


def many(width: int, turns: int) -> Script:
    """Calls that are made together: their results come one by one, so a fork's history is not as long as its run's."""
    numbers = [range(turn * width, (turn + 1) * width) for turn in range(turns)]
    return Script(*([call("note", f"n{number}", number=number) for number in turn] for turn in numbers), last_said)


def last_said(messages: list[ModelMessage]) -> str:
    return f"done {user_texts(messages)}"


async def first_execution(app: RunningApp, run: Run) -> str:
    return (await run.journal()).first_run_id


@pytest.mark.parametrize(("width", "turns"), [(3, 4), (5, 3)])
async def test_a_fork_does_not_go_on_elsewhere_before_all_is_taken_over(
    run_app: Running, width: int, turns: int
) -> None:
    counter, script = Counter(), many(width, turns)
    async with run_app(Interlock([agent(script, tools=[counter.note])])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        first = await first_execution(app, run)
        last = len((await run.journal(run_id=first)).steps)
        plan = await app.client.plan_fork(run.id, at=last + 1, run_id=first)
        taken_over = sum(step.kind == "tool" for step in plan.taken_over)
        counter.noted.clear()
        keys = set(counter.keys)
        await (await app.client.fork(plan)).result()

        assert sorted(counter.noted) == list(range(taken_over, width * turns))
        assert set(counter.keys) == keys  # Also of the calls that the run made in its later executions.
        assert [step.summary for step in plan.effects] == [f"note: number {number}" for number in sorted(counter.noted)]
        assert plan.of_this_execution == 0


async def test_what_was_planned_for_a_fork_is_not_lost_when_its_history_is_long_before(run_app: Running) -> None:
    counter, script = Counter(), many(12, 1)
    async with run_app(Interlock([agent(script, tools=[counter.note])])) as app:
        run = await app.client.start("support", "go", id=f"wide-{app.client.task_queue}")
        await run.result()
        first = await first_execution(app, run)
        last = len((await run.journal(run_id=first)).steps)
        assert last == 13
        message = await app.client.plan_fork(run.id, at=last + 1, run_id=first, message="Hello.")
        result = await app.client.plan_fork(run.id, at=last, run_id=first, result="given")

        assert (await (await app.client.fork(message)).result()).output == "done ['Hello.']"
        assert "given" in str((await (await app.client.fork(result)).result()).messages)
        assert len(counter.noted) == 12


async def test_a_stuck_step_of_a_later_execution_has_a_number_of_its_own(run_app: Running) -> None:
    """A retry of an earlier one that comes late must not have it run."""
    tried: list[int] = []

    def flaky(number: int) -> str:
        tried.append(number)
        if tried.count(number) == 1:
            raise RuntimeError("not yet")
        return "fine"

    once = Tool(flaky, metadata={"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}})
    turns = [[call("note", f"n{number}", number=number)] for number in range(8)]
    script = Script([call("flaky", "a", number=1)], *turns, [call("flaky", "b", number=2)], "done")
    async with run_app(Interlock([agent(script, tools=[Counter().note, once])])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry(step="1")
        (stuck,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in await executions(app, run)
        with pytest.raises(RefusedError, match="Step '1' is not stuck; stuck: 2"):
            await run.retry(step="1")
        await run.retry(step=stuck.step_id)

        assert (await run.result()).output == "done"
        assert tried == [1, 1, 2, 2]


async def test_an_agent_of_a_tool_that_was_terminated_does_not_keep_the_run_where_it_is(
    short_histories: EmbeddedServer,
) -> None:
    counter = Counter()
    inner = agent(
        Script([call("pay", "p")], "inner done"),
        name="inner",
        tools=[Tool(lambda: "paid", name="pay", requires_approval=True)],
    )

    async def delegate() -> str:
        try:
            return str((await inner.run("go")).output)
        except SubRunFailedError:
            return "failed"

    script = Script([call("delegate", "d")], *([call("note", f"n{at}", number=at)] for at in range(5)), "done")
    async with running(Interlock([agent(script, tools=[counter.note, delegate]), inner]), short_histories) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        await app.requests(app.client.attach(sub_run.workflow_id), 1)
        await app.client.temporal.get_workflow_handle(sub_run.workflow_id).terminate()
        await run.result()

        assert counter.noted == list(range(5))
        assert len(await executions(app, run)) > 1
