"""Tools of an MCP server: steps like any other, and gated like any other."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic_ai.mcp import MCPToolset

from interlock import Interlock, RefusedError
from interlock.server import free_port
from interlock.testing import eventually
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

REPOSITORY = Path(__file__).parents[2]


class Shelf:
    """A running MCP server. taken: what its tool was called with, in its own process."""

    def __init__(self, url: str, log: Path) -> None:
        self.url = url
        self._log = log

    @property
    def taken(self) -> list[str]:
        return self._log.read_text().split()


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    log, port = tmp_path / "taken", free_port()
    log.touch()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.workflows.mcp_server", str(port), str(log), cwd=REPOSITORY
    )

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    await eventually(listens)
    yield Shelf(f"http://127.0.0.1:{port}/mcp", log)
    process.kill()
    await process.wait()


async def test_a_servers_tools_are_steps(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book")], "done")
    async with run_app(Interlock([agent(script, toolsets=[MCPToolset(shelf.url, id="shelf")])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert shelf.taken == ["book"]
        assert "took book" in str(script.results()["a"])
        assert [step.summary for step in await run.steps() if step.kind == "tool"] == ["take: thing book"]


async def test_a_servers_tools_can_be_gated(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book"), call("take", "b", thing="pen")], "done")
    toolset = MCPToolset(shelf.url, id="shelf").approval_required()
    async with run_app(Interlock([agent(script, toolsets=[toolset])])) as app:
        run = await app.client.start("support", "go")
        requests = {request.call_id: request for request in await app.requests(run, 2)}
        assert requests["a"].description == "Take a thing off the shelf."
        with pytest.raises(RefusedError, match=r"do not fit 'take': .*'thing' is a required property"):
            await run.decide(requests["a"].request_id, "approve", arguments={"object": "book"})
        await run.decide(requests["a"].request_id, "approve", arguments={"thing": "map"})
        await run.decide(requests["b"].request_id, "reject")
        await run.result()

        assert shelf.taken == ["map"]
