"""Answers and what ends the wait for them. A sample of the races; `make soak ARGS=races` runs a thousand."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from pydantic_ai import Tool

from interlock import Interlock, RefusedError, RunFailedError
from interlock.server import EmbeddedServer
from interlock.testing import running
from soak.races import KINDS, race
from tests.seeds import chosen_seed
from tests.workflows.scripts import Script, agent, call


async def test_an_answer_that_races_the_end_of_the_wait_has_one_outcome(
    server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    report = await race(40, chosen_seed(), print, server=server)

    assert report.violations == []
    assert [row.kind for row in report.rows] == [kind.name for kind in KINDS]
    assert sum(row.runs + row.wide for row in report.rows) >= 40  # A slow machine sends many too far apart to count.
    assert report.runs > 0
    assert not [record for record in caplog.records if "never retrieved" in record.getMessage()]


@pytest.mark.parametrize("cached_runs", [1_000, 0])
async def test_an_answer_that_comes_with_the_runs_cancellation_is_refused(
    server: EmbeddedServer, cached_runs: int
) -> None:
    pay = Tool(lambda: "paid", name="pay", requires_approval=True)
    app = Interlock([agent(Script([call("pay")], "done"), tools=[pay])])
    async with AsyncExitStack() as stack:
        async with running(app, server, max_cached_workflows=cached_runs) as first:
            run = await first.client.start("support", "go")
            await first.requests(run, 1)
        await run.cancel()
        answer = asyncio.create_task(run.decide("1", "approve"))  # Both wait for the worker, and reach it together.
        await asyncio.sleep(0.2)
        queue = first.client.task_queue
        await stack.enter_async_context(running(app, server, task_queue=queue, max_cached_workflows=cached_runs))
        with pytest.raises(RefusedError, match="is being cancelled"):
            await answer
        with pytest.raises(RunFailedError, match="ancelled"):
            await run.result()

        assert [request.outcome for request in (await run.journal()).requests] == ["withdrawn"]
