"""Workers and servers that come and go while a tool waits for its agent, which may take as long as a person does."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic_ai import Tool
from temporalio.common import RetryPolicy

from interlock import Client, Interlock, Retries, Run, RunFailedError, UnavailableError
from interlock.contracts.payloads import RunInput, RunOutput
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually
from interlock.worker import SubRunsThroughClient, run_worker
from tests.workflows.scripts import Script, agent, call

ONCE = Retries(tool=RetryPolicy(maximum_attempts=1))


class Workers:
    """Workers on one task queue, one at a time, that stop without letting their calls finish."""

    def __init__(self, app: Interlock, client: Client) -> None:
        self._app, self._client = app, client

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        worker = asyncio.create_task(run_worker(self._app, self._client, stop))
        try:
            yield
        finally:
            stop.set()
            await worker


async def workers(server: EmbeddedServer, app: Interlock) -> tuple[Workers, RunningApp]:
    client = await Client.connect(server.address, task_queue=f"stopped-{uuid.uuid4().hex[:8]}", stuck_seconds=0)
    return Workers(app, client), RunningApp(client, server)


async def test_a_tool_waits_for_its_agent_over_any_number_of_workers(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_GRACEFUL_SHUTDOWN_SECONDS", "0")
    inner_script = Script([call("pay", "p")], "inner done")
    inner = agent(inner_script, name="payer", tools=[Tool(lambda: "paid", name="pay", requires_approval=True)])
    entered = 0

    async def delegate() -> Any:
        nonlocal entered
        entered += 1
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], "done")
    those, app = await workers(server, Interlock([agent(script, tools=[delegate]), inner], retries=ONCE))
    run = await app.client.start("support", "go")
    below: Run | None = None
    for times in range(1, 3):
        async with those.one():

            async def waits(times: int = times) -> bool:
                return entered == times

            await eventually(waits)
            (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
            below = app.client.attach(sub_run.workflow_id)
            await app.requests(below, 1)
    async with those.one():
        assert below
        await below.decide("1", "approve")
        output = await run.result()

    assert output.output == "done"
    assert script.results() == {"d": "inner done"}
    assert inner_script.calls == 2


class AwayOnce:
    """A run of which the server, once, does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def ended_in_vain(self, *, before: datetime) -> bool:
        return False

    async def result(self) -> RunOutput:
        self.asked += 1
        if self.asked == 1:
            raise UnavailableError("The Temporal server does not answer: transport error")
        return RunOutput(output="inner done")


async def test_an_agent_in_a_tool_is_waited_for_while_the_server_is_away(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = AwayOnce()

    async def start_run(*_: object, **__: object) -> AwayOnce:
        return away

    client = await Client.connect(server.address)
    monkeypatch.setattr(client, "start_run", start_run)
    run = RunInput(agent="payer", prompt="go")
    output = await SubRunsThroughClient(client).run("support-1/payer", run, not_before=datetime.now(UTC))

    assert output.output == "inner done"
    assert away.asked == 2


async def test_a_tool_without_an_agent_fails_for_good_with_the_last_worker_it_may_have(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTERLOCK_GRACEFUL_SHUTDOWN_SECONDS", "0")
    entered = False

    async def nap() -> str:
        nonlocal entered
        entered = True
        await asyncio.sleep(60)
        return "rested"

    app = Interlock([agent(Script([call("nap", "n")], "done"), tools=[nap])], retries=ONCE)
    those, running = await workers(server, app)
    run = await running.client.start("support", "go")

    async def naps() -> bool:
        return entered

    async with those.one():
        await eventually(naps)
    async with those.one():
        with pytest.raises(RunFailedError) as ended:
            await run.result()

    assert ended.value.error_type == "WorkerShutdown"
