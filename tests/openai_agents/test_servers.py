"""MCP servers of agents of the OpenAI Agents SDK: the worker's own, and those that the provider calls."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, ModelBehaviorError, OpenAIResponsesModel, function_tool
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp
from mcp import MCPError
from temporalio.exceptions import ApplicationError

from interlock import Interlock, RefusedError, Retries, RunFailedError
from interlock.adapters._worker import check_ticket
from interlock.adapters.openai_agents import approval as limited
from interlock.adapters.openai_agents._servers import Servers
from interlock.adapters.openai_agents.worker import OpenAIAgentsAdapter
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Ticket
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


async def test_a_limit_of_a_server_holds_for_its_tools(run_app: Running, shelf: Shelf) -> None:
    script = Script([call("take", "a", thing="book")], "done")
    server = limited(server_at(shelf, require_approval="always", cache_tools_list=True), after_seconds=0.3)
    async with run_app(Interlock([agent(script, mcp_servers=[server])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert shelf.taken == []
        assert "Nobody answered" in str(script.results()["a"])


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


@pytest.mark.parametrize("then", ["deny", "fail"])
async def test_a_call_of_the_provider_has_the_limit_of_its_tool(
    run_app: Running, openai_api: OpenAIAPI, then: str
) -> None:
    script = openai_api.script([approval("take", "mcpr_1", server="shelf", thing="book")], "done")
    hosted = limited(shelf_at("http://127.0.0.1/mcp", require_approval="always"), after_seconds=0.3, then=then)
    one = Agent("support", model=OpenAIResponsesModel("scripted", openai_api.client()), tools=[hosted])
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go")
        if then == "fail":
            with pytest.raises(RunFailedError, match="about a call of 'take'") as failed:
                await run.result()
            assert failed.value.error_type == "ApprovalTimeoutError"
            return
        await run.result()

    (answer,) = [item for item in script.requests[-1].conversation if item.get("type") == "mcp_approval_response"]
    assert (answer["approve"], answer["reason"].startswith("Nobody answered")) == (False, True)


@pytest.mark.parametrize("approved", [True, False])
async def test_a_function_that_settles_what_the_provider_asks_about_is_asked_once_and_nobody_else(
    run_app: Running, openai_api: OpenAIAPI, approved: bool
) -> None:
    asked: list[str] = []

    def settle(request: Any) -> Any:
        asked.append(request.data.name)
        return {"approve": approved, "reason": "not now"} if len(asked) == 1 else {"approve": not approved}

    script = openai_api.script([approval("take", "mcpr_1", server="shelf", thing="book")], "done")
    hosted = HostedMCPTool(
        {"type": "mcp", "server_label": "shelf", "server_url": "http://127.0.0.1/mcp", "require_approval": "always"},
        on_approval_request=settle,
    )
    one = Agent("support", model=OpenAIResponsesModel("scripted", openai_api.client()), tools=[hosted])
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        assert not (await run.journal()).requests

    answers = [item for item in script.requests[-1].conversation if item.get("type") == "mcp_approval_response"]
    assert [(item["approve"], item.get("reason")) for item in answers] == [(approved, None if approved else "not now")]
    assert asked == ["take"]


def shelf_at(url: str, **options: Any) -> HostedMCPTool:
    config: Any = {"type": "mcp", "server_label": "shelf", "server_url": url, **options}
    return HostedMCPTool(config)


def by_name(order: str) -> str:
    return order


def by_number(order: int) -> str:
    return str(order)


def fingerprint(tools: list[Any], toolset: str = "", tool: str = "take", servers: list[Any] | None = None) -> str:
    one = Agent("support", tools=tools, mcp_servers=servers or [])
    return OpenAIAgentsAdapter({"support": one}, Retries()).fingerprint("support", toolset, tool)


def test_a_tool_of_another_schema_description_or_connection_is_another_tool() -> None:
    def own(function: Any, description: str = "Take it.") -> str:
        tool = function_tool(function, name_override="take", description_override=description)
        return fingerprint([tool])

    def hosted(url: str, **options: Any) -> str:
        return fingerprint([shelf_at(url, **options)], "shelf")

    def served(url: str) -> str:
        return fingerprint([], "shelf", servers=[MCPServerStreamableHttp({"url": url}, name="shelf")])

    assert own(by_name) == own(by_name)
    assert len({own(by_name), own(by_number), own(by_name, "Take all of it.")}) == 3
    assert hosted("http://one", headers={"a": "1"}) == hosted("http://one", headers={"a": "2"})
    assert hosted("http://one") != hosted("http://two")
    assert served("http://one") == served("http://one")
    assert served("http://one") != served("http://two")


@pytest.mark.parametrize(
    ("changed", "arguments", "what"),
    [
        ({}, {"order": "A-2"}, "the arguments"),
        ({}, {"order": "A-1", "more": 1}, "the arguments"),
        ({"toolset": "shelf"}, {"order": "A-1"}, "the tool"),
        ({"tool": "void"}, {"order": "A-1"}, "the tool"),
        ({"fingerprint": "another"}, {"order": "A-1"}, "the tool"),
    ],
)
def test_another_call_than_the_approved_one_is_refused_before_the_tool_runs(
    changed: dict[str, Any], arguments: dict[str, Any], what: str
) -> None:
    own = [function_tool(by_name, name_override="take"), function_tool(by_name, name_override="void")]
    adapter = OpenAIAgentsAdapter({"support": Agent("support", tools=[*own, shelf_at("http://one")])}, Retries())
    fields = {
        "request_id": "1",
        "agent": "support",
        "toolset": "",
        "tool": "take",
        "arguments_digest": digest({"order": "A-1"}),
        "fingerprint": adapter.fingerprint("support", "", "take"),
    }
    check_ticket(adapter, Ticket(**fields), {"order": "A-1"})
    with pytest.raises(ApplicationError, match=f"{what} of .* changed; it is asked for again") as refused:
        check_ticket(adapter, Ticket(**{**fields, **changed}), arguments)

    assert refused.value.non_retryable
    assert refused.value.type == "ToolChangedError"
