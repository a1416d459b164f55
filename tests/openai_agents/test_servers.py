"""MCP servers of agents of the OpenAI Agents SDK: the worker's own, and those that the provider calls."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, ModelBehaviorError, OpenAIResponsesModel
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp
from mcp import MCPError

from interlock import Interlock, RefusedError
from interlock.adapters.openai_agents._servers import Servers
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_api import OpenAIAPI, approval
from tests.workflows.shelves import REPOSITORY, SHELVES, Shelf


@pytest.fixture(params=sorted(SHELVES))
async def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Shelf]:
    async with SHELVES[request.param](tmp_path / "taken") as shelf:
        yield shelf


def server_at(shelf: Shelf, **options: Any) -> MCPServer:
    if shelf.url:
        return MCPServerStreamableHttp({"url": shelf.url}, name="shelf", **options)
    started = {"command": sys.executable, "args": shelf.arguments, "cwd": str(REPOSITORY)}
    return MCPServerStdio(started, name="shelf", **options)  # type: ignore[arg-type]


async def test_a_servers_tools_are_steps_and_wait_for_their_approval(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book"), call("take", "b", thing="pen")], "done")
    server = server_at(shelf, require_approval="always", cache_tools_list=True)
    async with run_app(Interlock([agent(script, mcp_servers=[server])])) as app:
        run = await app.client.start("support", "go")
        requests = {request.call_id: request for request in await app.requests(run, 2)}
        assert requests["a"].description == "Take a thing off the shelf."
        with pytest.raises(RefusedError, match=r"do not fit 'take': .*'thing' is a required property"):
            await run.decide(requests["a"].request_id, "approve", arguments={"object": "book"})
        await run.decide(requests["a"].request_id, "approve", arguments={"thing": "map"})
        await run.decide(requests["b"].request_id, "reject")
        await run.result()

        assert shelf.taken == ["map"]
        assert "took map" in str(script.results()["a"])
        assert [step.name for step in (await run.journal()).steps if step.kind == "tool"] == ["take"]


class Noted(MCPServer):
    """Notes how often it was connected to."""

    def __init__(self) -> None:
        super().__init__()
        self.connected: list[str] = []

    @property
    def name(self) -> str:
        return "noted"

    async def connect(self) -> None:
        self.connected.append("connect")

    async def cleanup(self) -> None:
        self.connected.append("cleanup")

    async def list_tools(self, *args: Any) -> Any: ...

    async def call_tool(self, *args: Any) -> Any: ...

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, *args: Any) -> Any: ...


@pytest.mark.parametrize("error", [MCPError(-1, "no such thing"), ModelBehaviorError("no JSON")])
async def test_an_answer_of_the_servers_breaks_no_connection(error: Exception) -> None:
    servers, server = Servers(), Noted()
    with pytest.raises(type(error)):
        async with servers.using([server]):
            raise error
    async with servers.using([server]):
        assert server.connected == ["connect"]
    await servers.close()
    assert server.connected == ["connect", "cleanup"]


async def test_a_broken_connection_is_made_anew() -> None:
    servers, server = Servers(), Noted()
    with pytest.raises(BrokenPipeError):
        async with servers.using([server]):
            raise BrokenPipeError
    assert server.connected == ["connect", "cleanup"]
    async with servers.using([server]):
        assert server.connected == ["connect", "cleanup", "connect"]
    await servers.close()


@pytest.mark.parametrize("approved", [True, False])
async def test_a_call_that_the_provider_asks_about_waits_for_a_person(
    run_app: Running, openai_api: OpenAIAPI, approved: bool
) -> None:
    script = openai_api.script([approval("take", "mcpr_1", server="shelf", thing="book")], "done")
    hosted = HostedMCPTool(
        {"type": "mcp", "server_label": "shelf", "server_url": "http://127.0.0.1/mcp", "require_approval": "always"}
    )
    one = Agent("support", model=OpenAIResponsesModel("scripted", openai_api.client()), tools=[hosted])
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.tool, request.arguments) == ("take", {"thing": "book"})
        with pytest.raises(RefusedError, match="its provider runs this call"):
            await run.decide(request.request_id, "approve", arguments={"thing": "map"})
        await run.decide(request.request_id, "approve" if approved else "reject", reason="" if approved else "not now")

        assert (await run.result()).output == "done"
    answers = [item for item in script.requests[-1].conversation if item.get("type") == "mcp_approval_response"]
    assert [(item["approval_request_id"], item["approve"]) for item in answers] == [("mcpr_1", approved)]
    assert answers[0].get("reason") == (None if approved else "not now")
