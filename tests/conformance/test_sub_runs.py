"""Agents that the code of tools runs: each is a run of its own, which nothing starts twice."""

import asyncio
from datetime import timedelta

import pytest

from interlock import Run, RunFailedError
from interlock.contracts.payloads import ApprovalRequest
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import RunApp, reset
from tests.conformance.frameworks import Desk, Framework, Inner, Said, Script, Tool, app_of, ask, call

PAY = [call("refund", "p", "A-1", 1.0)]


async def sub_run_request(app: RunningApp, run: Run, *, depth: int = 1) -> ApprovalRequest:
    """The request that the run of an agent in a tool waits with."""
    for _ in range(depth):
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        run = app.client.attach(sub_run.workflow_id)
    (request,) = await app.requests(run, 1)
    return request


async def approve(app: RunningApp, request: ApprovalRequest) -> None:
    await app.client.attach(request.workflow_id).decide(request.request_id, "approve", digest=request.digest)


async def test_a_gated_call_of_an_agent_in_a_tool_waits_with_the_path_of_agents(
    framework: Framework, run_app: RunApp
) -> None:
    desk, inner_script = Desk(), Script(PAY, "inner done")
    inner = framework.agent(inner_script, name="payer", tools=[Tool(body=desk, gated=True)])
    script = Script([ask("payer", "d")], "outer done")
    outer = framework.agent(script, tools=[Inner("payer", inner, in_body=True)])
    async with run_app(app_of(outer, inner)) as app:
        run = await app.client.start("support", "help")
        request = await sub_run_request(app, run)
        assert request.agent_path == ("support", "payer")
        assert request.workflow_id.startswith(f"{run.id}/payer-")
        state = await app.state(run, lambda state: bool(state.sub_runs))
        assert [(sub.workflow_id, sub.usage) for sub in state.sub_runs] == [(request.workflow_id, None)]
        await approve(app, request)
        output = await run.result()
        journal = await run.journal()

    assert (output.output, script.results()) == ("outer done", {"d": "inner done"})
    assert desk.orders == ["A-1"]
    assert (inner_script.calls, script.calls) == (2, 2)
    # Each model call of both agents, once.
    assert (output.usage.requests, output.usage.input_tokens) == (4, 20)
    assert journal.totals.usage.requests == 4


async def test_the_innermost_agent_of_three_is_approved_after_a_restart(framework: Framework, run_app: RunApp) -> None:
    desk = Desk()
    scripts = [Script([ask("b", "b")], "a done"), Script([ask("c", "c")], "b done"), Script(PAY, "c done")]
    c = framework.agent(scripts[2], name="c", tools=[Tool(body=desk, gated=True)])
    b = framework.agent(scripts[1], name="b", tools=[Inner("c", c, in_body=True)])
    a = framework.agent(scripts[0], name="a", tools=[Inner("b", b, in_body=True)])
    build = app_of(a, b, c)
    async with run_app(build, graceful_shutdown_timeout=timedelta(seconds=1)) as app:
        run = await app.client.start("a", "go")
        request = await sub_run_request(app, run, depth=2)
        assert request.agent_path == ("a", "b", "c")
    async with run_app(build, queue=app.client.task_queue) as app:
        await approve(app, request)
        output = await run.result()

    assert (output.output, output.usage.requests, desk.orders) == ("a done", 6, ["A-1"])
    assert [script.calls for script in scripts] == [2, 2, 2]


async def test_what_an_agent_in_a_tool_used_counts_when_the_run_above_was_reset_meanwhile(
    framework: Framework, run_app: RunApp
) -> None:
    desk, inner_script = Desk(), Script(PAY, "inner done")
    inner = framework.agent(inner_script, name="payer", tools=[Tool(body=desk, gated=True)])
    script = Script([ask("payer", "d")], "outer done")
    async with run_app(app_of(framework.agent(script, tools=[Inner("payer", inner, in_body=True)]), inner)) as app:
        run = await app.client.start("support", "help")
        request = await sub_run_request(app, run)
        await reset(app, run)
        run = app.client.attach(run.id)

        async def waits_again() -> bool:
            steps = (await run.journal()).steps
            return [(step.kind, step.status) for step in steps][-1:] == [("tool", "scheduled")]

        await eventually(waits_again)
        await approve(app, request)
        output = await run.result()

    assert (desk.orders, inner_script.calls, script.calls) == (["A-1"], 2, 3)
    assert output.usage.requests == 2 + 2


async def test_cancelling_a_run_cancels_the_agents_its_tools_run(framework: Framework, run_app: RunApp) -> None:
    inner = framework.agent(Script(PAY, "x"), name="payer", tools=[Tool(body=Desk(), gated=True)])
    outer = framework.agent(Script([ask("payer", "d")], "done"), tools=[Inner("payer", inner, in_body=True)])
    async with run_app(app_of(outer, inner)) as app:
        run = await app.client.start("support", "help")
        request = await sub_run_request(app, run)
        await run.cancel()
        for one in (run, app.client.attach(request.workflow_id)):
            with pytest.raises(RunFailedError) as ended:
                await one.result()
            assert ended.value.status == "cancelled"
        state = await app.client.attach(request.workflow_id).state()
        assert (state.requests, [one.outcome for one in state.settled]) == ([], ["withdrawn"])


def breaks(said: list[Said]) -> str:
    raise ZeroDivisionError("division by zero")


async def test_a_failed_agent_in_a_tool_fails_the_run_with_its_reason(framework: Framework, run_app: RunApp) -> None:
    script = Script(breaks)
    inner = framework.agent(script, name="worker")
    outer = framework.agent(Script([ask("worker", "d")], "done"), tools=[Inner("worker", inner, in_body=True)])
    async with run_app(app_of(outer, inner)) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(
            RunFailedError, match=r"Agent 'worker' failed \(ZeroDivisionError\): division by zero"
        ) as ended:
            await run.result()

    assert ended.value.error_type == "SubRunFailedError"


async def test_a_failed_agent_is_started_over_when_its_call_is_retried(framework: Framework, run_app: RunApp) -> None:
    first, desk = [True], Desk()

    def breaks_once(said: list[Said]) -> str:
        if first:
            first.clear()
            raise ZeroDivisionError("division by zero")
        return "inner done"

    inner = framework.agent(Script(PAY, breaks_once), name="worker", tools=[Tool(body=desk)])
    script = Script([ask("worker", "d")], "done")
    outer = framework.agent(script, tools=[Inner("worker", inner, in_body=True)])
    async with run_app(app_of(outer, inner, stuck_seconds=60)) as app:
        run = await app.client.start("support", "help")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        inside = app.client.attach(sub_run.workflow_id)
        await app.state(inside, lambda state: bool(state.stuck))
        await inside.cancel()
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert script.results() == {"d": "inner done"}
    # The same call has the same key, so that whatever it does elsewhere is not done twice.
    assert [made.order for made in desk.made] == ["A-1", "A-1"]
    assert len({made.key for made in desk.made}) == 1


async def test_an_agent_in_a_tool_that_the_app_does_not_have_is_refused_by_name(
    framework: Framework, run_app: RunApp
) -> None:
    script = Script("done")
    stranger = framework.agent(script, name="stranger")
    outer = framework.agent(Script([ask("stranger", "d")], "done"), tools=[Inner("stranger", stranger, in_body=True)])
    async with run_app(app_of(outer)) as app:
        run = await app.client.start("support", "help")
        with pytest.raises(RunFailedError, match=r"Agent 'stranger' is run by a tool .* Add it to Interlock"):
            await run.result()

    assert script.calls == 0


async def test_an_agent_in_a_tool_spends_the_budget_of_its_run(framework: Framework, run_app: RunApp) -> None:
    inner_script = Script("inner done")
    inner = framework.agent(inner_script, name="worker")
    script = Script([ask("worker", "d")], "done")
    outer = framework.agent(script, tools=[Inner("worker", inner, in_body=True)])
    async with run_app(app_of(outer, inner)) as app:
        run = await app.client.start("support", "help", budget={"requests": 1, "when_used_up": "end"})
        with pytest.raises(RunFailedError, match="1 of 1 model calls are used") as ended:
            await asyncio.wait_for(run.result(), 60)

    assert ended.value.error_type == "BudgetUsedUpError"
    assert (script.calls, inner_script.calls) == (1, 0)
