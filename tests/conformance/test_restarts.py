"""Workers that come and go: no completed call is made again, and no answer is lost."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest

from interlock import Interlock, Retries, RunFailedError
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp
from tests.conformance.conftest import RunApp, app_runner, reset
from tests.conformance.frameworks import Desk, Framework, Inner, Made, Script, Tool, app_of, ask, call


@pytest.fixture
def run_app(server: EmbeddedServer) -> RunApp:
    """With the workflow cache on: the next worker replays each run in any case."""
    return app_runner(server, 1_000)


REFUND = [call("refund", "same", "A-1", 10.0)]


def three_levels(framework: Framework, desk: Desk, scripts: list[Script]) -> Interlock:
    """An agent that asks an agent that asks an agent whose tool is gated."""
    deep = framework.agent(scripts[2], name="deep", tools=[Tool(body=desk, gated=True)])
    middle = framework.agent(scripts[1], name="middle", tools=[Inner("deep", deep)])
    return app_of(framework.agent(scripts[0], tools=[Inner("middle", middle)]), middle, deep)


async def test_the_innermost_call_of_three_agents_is_approved_after_a_restart(
    framework: Framework, run_app: RunApp
) -> None:
    desk = Desk()
    scripts = [Script([ask("middle", "same")], "top"), Script([ask("deep", "same")], "middle"), Script(REFUND, "deep")]
    build = three_levels(framework, desk, scripts)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.agent_path, request.tool) == (("support", "middle", "deep"), "refund")
    async with run_app(build, queue=app.client.task_queue):
        await run.decide("1", "approve", digest=request.digest)
        output = await run.result()
        journal = await run.journal()

    assert (output.output, desk.orders) == ("top", ["A-1"])
    assert [script.calls for script in scripts] == [2, 2, 2]
    assert [script.results()["same"] for script in scripts] == ["middle", "deep", "done A-1"]
    assert (output.usage.requests, output.usage.input_tokens, output.usage.output_tokens) == (6, 30, 12)
    paths = [step.agent_path for step in journal.steps if step.kind == "model"]
    top, middle, deep = ("support",), ("support", "middle"), ("support", "middle", "deep")
    assert paths == [top, middle, deep, deep, middle, top]


async def test_two_runs_with_the_same_call_ids_trade_no_answers(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script([call("refund", "a", "A-1", 1.0), call("refund", "b", "A-2", 2.0)], "done")
    build = app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))
    async with run_app(build) as app:
        one, other = await app.client.start("support", "go"), await app.client.start("support", "go")
        for run in (one, other):
            await app.requests(run, 2)
        await one.decide("2", "approve", arguments={"order": "A-2", "amount": 22.0})
        await app.state(one, lambda _: len(desk.made) == 1)
    async with run_app(build, queue=app.client.task_queue) as app:
        await other.decide("1", "approve")
        await one.decide("1", "reject", reason="not this one")
        await other.decide("2", "reject", reason="nor this")
        ends = [await run.result() for run in (one, other)]

    assert [(end.output, end.usage.tool_calls) for end in ends] == [("done", 1), ("done", 1)]
    assert sorted((made.order, made.amount) for made in desk.made) == [("A-1", 1.0), ("A-2", 22.0)]
    assert script.calls == 4
    told = [script.results(turn) for turn in range(4) if script.results(turn)]
    assert sorted((one["a"], one["b"].partition("\n")[0]) for one in told) == [
        ("done A-1", "nor this"),
        ("not this one", "done A-2"),
    ]


async def test_a_run_goes_over_any_number_of_workers_and_repeats_nothing(framework: Framework, run_app: RunApp) -> None:
    desk, looked = Desk(), Desk()
    turns = [[call("look", f"l{n}", f"L-{n}"), call("refund", f"r{n}", f"R-{n}")] for n in range(3)]
    script = Script(*turns, "done")
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=looked), Tool(body=desk, gated=True)]))
    queue, run = "", None
    for n in range(3):
        async with run_app(build, queue=queue) as app:
            queue = app.client.task_queue
            run = run or await app.client.start("support", "go")
            await has_asked(app, run.id, n)
            await run.decide(str(n + 1), "approve")
    assert run
    async with run_app(build, queue=queue):
        output = await run.result()

    assert looked.orders == ["L-0", "L-1", "L-2"]
    assert desk.orders == ["R-0", "R-1", "R-2"]
    assert script.calls == 4
    assert (output.usage.requests, output.usage.tool_calls) == (4, 6)


async def has_asked(app: RunningApp, run_id: str, times: int) -> None:
    run = app.client.attach(run_id)
    await app.state(run, lambda state: [one.request_id for one in state.requests] == [str(times + 1)])


async def test_generated_instructions_do_not_break_a_replay(framework: Framework, run_app: RunApp) -> None:
    asked = 0

    def instructions() -> str:
        nonlocal asked
        asked += 1
        return f"Be brief, for the {asked}. time."

    desk, script = Desk(), Script(REFUND, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)], instructions=instructions))
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
    async with run_app(build, queue=app.client.task_queue):
        await run.decide("1", "approve")
        assert (await run.result()).output == "done"

    assert script.calls == 2


async def test_an_answer_reaches_a_run_that_had_no_worker(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(REFUND, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
    decision = {"request_id": "1", "verdict": "approve", "decided_at": request.requested_at.isoformat()}
    await app.client.temporal.get_workflow_handle(run.id).signal("decide_approval", decision)
    async with run_app(build, queue=app.client.task_queue):
        await run.result()

    assert desk.orders == ["A-1"]


async def test_an_inner_agent_is_asked_about_before_it_runs(framework: Framework, run_app: RunApp) -> None:
    desk, inner_script = Desk(), Script(REFUND, "inner")
    inner = framework.agent(inner_script, name="inner", tools=[Tool(body=desk, gated=True)])
    script = Script([ask("inner", "i")], "done")
    async with run_app(app_of(framework.agent(script, tools=[Inner("inner", inner, gated=True)]), inner)) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.agent_path, request.tool, inner_script.calls) == (("support",), "ask_inner", 0)
        await run.decide("1", "approve")
        (request,) = (await app.state(run, partial(asks, "2"))).requests
        assert (request.agent_path, request.tool) == (("support", "inner"), "refund")
        await run.decide("2", "reject", reason="no")
        await run.result()

        assert script.results() == {"i": "inner"}
        assert inner_script.results() == {"same": "no"}


def asks(request_id: str, state: object) -> bool:
    return [one.request_id for one in state.requests] == [request_id]  # type: ignore[attr-defined]


class Interrupted:
    """The body of a tool whose worker stops in its midst the first time, after the effect."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.made: list[Made] = []

    async def __call__(self, made: Made) -> str:
        self.made.append(made)
        if len(self.made) == 1:
            self.begun.set()
            await asyncio.sleep(60)
        return "paid"


AT_ONCE = {"graceful_shutdown_timeout": timedelta(0)}


async def test_an_approved_call_whose_worker_stopped_is_asked_about_and_not_run_again(
    framework: Framework, run_app: RunApp
) -> None:
    bank, script = Interrupted(), Script(REFUND, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=bank, gated=True, tells=True)]), retries=Retries())
    async with run_app(build, **AT_ONCE) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await asyncio.wait_for(bank.begun.wait(), 60)
    async with run_app(build, queue=app.client.task_queue) as app:
        (question,) = (await app.state(run, partial(asks, "2"))).requests
        assert (question.kind, question.tool) == ("outcome", "refund")
        await run.decide("2", "happened", result="paid, says the bank")
        await run.result()

    assert len(bank.made) == 1
    assert (script.results(), script.calls) == ({"same": "paid, says the bank"}, 2)


@pytest.mark.parametrize("gated", [True, False], ids=["approved", "ungated"])
async def test_a_call_that_may_run_twice_does_so_with_one_key_when_its_worker_stopped(
    framework: Framework, run_app: RunApp, gated: bool
) -> None:
    bank, script = Interrupted(), Script(REFUND, "done")
    tool = Tool(body=bank, gated=gated, idempotent=gated, tells=True)
    build = app_of(framework.agent(script, tools=[tool]), retries=Retries())
    async with run_app(build, **AT_ONCE) as app:
        run = await app.client.start("support", "go")
        if gated:
            await app.requests(run, 1)
            await run.decide("1", "approve")
        await asyncio.wait_for(bank.begun.wait(), 60)
    async with run_app(build, queue=app.client.task_queue):
        output = await run.result()

    first, second = bank.made
    assert first.key == second.key
    assert (script.results(), script.calls, output.usage.tool_calls) == ({"same": "paid"}, 2, 1)


async def test_a_call_whose_last_worker_stopped_is_stuck_and_no_failure_to_tell_the_model(
    framework: Framework, run_app: RunApp
) -> None:
    bank, script = Interrupted(), Script(REFUND, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=bank, tells=True)]), stuck_seconds=600)
    async with run_app(build, **AT_ONCE) as app:
        run = await app.client.start("support", "go")
        await asyncio.wait_for(bank.begun.wait(), 60)
    async with run_app(build, queue=app.client.task_queue) as app:
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        assert (step.kind, step.error_type, script.calls) == ("tool", "WorkerShutdown", 1)
        await run.retry()
        await run.result()

    first, second = bank.made
    assert first.key == second.key
    assert (script.results(), script.calls) == ({"same": "paid"}, 2)


async def test_a_run_that_is_cancelled_while_its_worker_stops_ends_on_the_next(
    framework: Framework, run_app: RunApp
) -> None:
    bank, script = Interrupted(), Script(REFUND, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=bank, tells=True)]))
    async with run_app(build, **AT_ONCE) as app:
        run = await app.client.start("support", "go")
        await asyncio.wait_for(bank.begun.wait(), 60)
        stopping = asyncio.create_task(run.cancel())
    await stopping
    async with run_app(build, queue=app.client.task_queue):
        with pytest.raises(RunFailedError) as failed:
            await asyncio.wait_for(run.result(), 40)

    assert (failed.value.status, len(bank.made), script.calls) == ("cancelled", 1, 1)


async def test_a_reset_run_makes_the_key_that_it_made(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(REFUND, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk)]))) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await reset(app, run)
        await app.client.attach(run.id).result()

    first, again = desk.made
    assert first.key == again.key
