"""A cluster that nobody has prepared: Interlock's search attributes are missing, and runs work all the same."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import Tool

from interlock import Client, Interlock, UnavailableError
from interlock.contracts import names
from interlock.server import EmbeddedServer, free_port, temporal_binary
from interlock.testing import eventually, running
from tests.workflows.scripts import Script, agent, call


@pytest.fixture
async def bare_server() -> AsyncIterator[EmbeddedServer]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        temporal_binary(),
        *["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "never"],
        stdout=asyncio.subprocess.DEVNULL,
    )
    server = EmbeddedServer(f"127.0.0.1:{port}", "", None, process)

    async def answers() -> bool:
        try:
            return bool(await (await Client.connect(server.address)).missing_attributes())
        except UnavailableError:
            return False

    await eventually(answers)
    yield server
    await server.stop()


async def test_runs_work_where_the_search_attributes_are_missing(bare_server: EmbeddedServer) -> None:
    script = Script([call("refund", "a")], "done")
    refund = Tool(lambda: "refunded", name="refund", requires_approval=True)
    async with running(Interlock([agent(script, tools=[refund])]), bare_server) as app:
        assert await app.client.missing_attributes() == list(names.SEARCH_ATTRIBUTES)
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        (request,) = await app.client.approvals()
        assert (await run.report()).status == "awaiting_approval"
        await run.decide(request.request_id, "approve", digest=request.digest)

        assert (await run.result()).output == "done"
        assert [report.status for report in await app.client.runs()] == ["completed"]
