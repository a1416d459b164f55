"""A run whose history has become long goes on in another execution: nothing is lost, nothing is done twice."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
from temporalio.client import WorkflowExecutionStatus

from interlock import RefusedError
from interlock.contracts.payloads import RunState
from interlock.server import EmbeddedServer
from tests.conformance.conftest import RunApp, app_runner
from tests.conformance.frameworks import Desk, Framework, Script, Tool, Turn, app_of, call


@pytest.fixture(scope="module")
async def short_histories() -> AsyncIterator[EmbeddedServer]:
    """A server that takes a history of 40 events for a long one."""
    config = {"limit.historyCount.suggestContinueAsNew": "40"}
    embedded = await EmbeddedServer.start(port=0, ui=False, dynamic_config=config)
    yield embedded
    await embedded.stop()


@pytest.fixture
def run_app(short_histories: EmbeddedServer) -> RunApp:
    # Without a cache each task replays all that an execution did so far, so nothing can hide in a worker's memory.
    return app_runner(short_histories, 0)


async def test_a_long_run_is_several_executions_and_does_each_step_once(framework: Framework, run_app: RunApp) -> None:
    looked, desk = Desk(), Desk()
    turns = [[call("look", f"l{n}", f"L-{n}")] for n in range(8)]
    script = Script(*turns[:4], [call("refund", "r", "R-1", 1.0)], *turns[4:], "done")
    tools = [Tool(name="look", body=looked), Tool(body=desk, gated=True)]
    async with run_app(app_of(framework.agent(script, tools=tools))) as app:
        run = await app.client.start("support", "go", usage_limits=framework.turns(30))
        await app.requests(run, 1)
        await run.decide("1", "approve")
        output = await run.result()
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
        ended = [one.status async for one in found]

    assert output.output == "done"
    assert looked.orders == [f"L-{n}" for n in range(8)]
    assert desk.orders == ["R-1"]
    assert len({made.key for made in looked.made + desk.made}) == 9
    assert (script.calls, output.usage.requests, output.usage.tool_calls) == (10, 10, 9)
    assert WorkflowExecutionStatus.CONTINUED_AS_NEW in ended


async def test_limits_count_over_all_executions(framework: Framework, run_app: RunApp) -> None:
    looked, script = Desk(), Script(*[[call("look", f"l{n}", f"L-{n}")] for n in range(9)], "done")
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=looked)]), stuck_seconds=60)
    async with run_app(build) as app:
        run = await app.client.start("support", "go", usage_limits=framework.turns(7))
        await app.state(run, lambda state: bool(state.stuck))
        assert script.calls == 7
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
        assert WorkflowExecutionStatus.CONTINUED_AS_NEW in [one.status async for one in found]
        await run.retry(usage_limits=framework.turns(40))
        output = await run.result()

    assert (output.output, output.usage.requests) == ("done", 10)
    assert looked.orders == [f"L-{n}" for n in range(9)]


def asks(request_id: str, state: RunState) -> bool:
    return [request.request_id for request in state.requests] == [request_id]


async def test_requests_are_numbered_over_all_executions_and_none_is_lost(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script(*[[call("refund", "same", f"R-{n}", 1.0)] for n in range(1, 7)], "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        earlier = ""
        for n in range(1, 7):
            (request,) = (await app.state(run, partial(asks, str(n)))).requests
            assert request.arguments["order"] == f"R-{n}"
            if earlier:
                with pytest.raises(RefusedError, match="not the one this answer was given for"):
                    await run.decide(str(n), "approve", digest=earlier)
                with pytest.raises(RefusedError, match="already approved"):
                    await run.decide(str(n - 1), "approve", digest=earlier)
            await run.decide(str(n), "approve", digest=request.digest)
            earlier = request.digest
        await run.result()
        settled = [one.request_id for one in (await run.state()).settled]
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
        ended = [one.status async for one in found]

    assert settled == ["1", "2", "3", "4", "5", "6"]
    assert desk.orders == [f"R-{n}" for n in range(1, 7)]
    assert WorkflowExecutionStatus.CONTINUED_AS_NEW in ended


async def test_a_review_goes_on_in_the_next_execution(framework: Framework, run_app: RunApp) -> None:
    looked = Desk()
    turns: list[Turn] = []
    for n in range(4):
        turns += [[call("look", f"l{n}-{m}", f"L-{n}") for m in range(3)], f"output {n}"]
    script = Script(*turns)
    build = app_of(framework.agent(script, tools=[Tool(name="look", body=looked)]), review={"support": 4})
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        for n in range(4):
            (request,) = (await app.state(run, partial(asks, str(n + 1)))).requests
            assert request.arguments == {"output": f"output {n}"}
            await run.decide(str(n + 1), "approve" if n == 3 else "reject", reason=f"Not {n}.")
        output = await run.result()
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")
        ended = [one.status async for one in found]

    assert (output.output, script.calls, output.usage.requests, len(looked.made)) == ("output 3", 8, 8, 12)
    assert "last of 4" in request.question
    assert [part.text for part in script.asked[-1] if part.kind == "user"] == ["go", "Not 0.", "Not 1.", "Not 2."]
    assert WorkflowExecutionStatus.CONTINUED_AS_NEW in ended
