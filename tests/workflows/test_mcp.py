"""Tools of an MCP server: steps like any other, and gated like any other."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from pydantic_ai.mcp import MCPToolset

from interlock import Interlock, RefusedError
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call
from tests.workflows.shelves import SHELVES, Shelf


@pytest.fixture
def run_app(server: EmbeddedServer) -> Running:
    """With the workflow cache off. What is told apart here is in the steps, which know nothing of a cache."""
    return partial(running, server=server, max_cached_workflows=0)


@pytest.fixture(params=sorted(SHELVES))
async def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Shelf]:
    async with SHELVES[request.param](tmp_path / "taken") as shelf:
        yield shelf


async def test_a_servers_tools_are_steps(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book")], "done")
    async with run_app(Interlock([agent(script, toolsets=[MCPToolset(shelf.transport, id="shelf")])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert shelf.taken == ["book"]
        assert "took book" in str(script.results()["a"])
        assert [step.summary for step in await run.steps() if step.kind == "tool"] == ["take: thing book"]


async def test_a_servers_tools_can_be_gated(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book"), call("take", "b", thing="pen")], "done")
    toolset = MCPToolset(shelf.transport, id="shelf").approval_required()
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
