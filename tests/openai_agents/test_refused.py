"""What cannot run durably is refused by name where the app is made, or ends its run by its type."""

from importlib import metadata
from typing import Any

import pytest
from agents import (
    Agent,
    Handoff,
    HostedMCPTool,
    LocalShellTool,
    ModelRetrySettings,
    ModelSettings,
    OpenAIConversationsSession,
    RunConfig,
    RunContextWrapper,
    SQLiteSession,
    WebSearchTool,
    function_tool,
)
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.test import TestModel

from interlock import Interlock, MisconfiguredError, RunFailedError
from interlock.adapters.openai_agents._versions import SUPPORTED, range_of
from interlock.adapters.pydantic_ai import Durable
from tests.conftest import Running
from tests.openai_agents.ends import sdk_requirements
from tests.openai_agents.scripts import Script, agent


@function_tool
def look(order: str) -> str:
    return order


def other_look() -> Any:
    return function_tool(lambda order: order, name_override="look", strict_mode=False)


def takes(kind: Any) -> Any:
    def tool(ctx: Any) -> str:
        return ""

    tool.__annotations__["ctx"] = RunContextWrapper[kind]
    return function_tool(tool, name_override=f"takes_{kind.__name__}")


def inner(**options: Any) -> Any:
    return Agent("inner").as_tool("inner", "", **options)


KEPT = r"what a conversation kept by the provider holds changes .* \(previous_response_id\), or give the run a session"
CONVERSATIONS = OpenAIConversationsSession(openai_client=AsyncOpenAI(api_key="none"))
SHRINKING = ModelSettings(retry=ModelRetrySettings(backoff={"multiplier": 0.5}))
ALWAYS = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=lambda about: True))
IN_BODY = ModelSettings(extra_body={"conversation": "conv_1"})


def by_hand() -> Any:
    async def invoke(ctx: Any, arguments: str) -> Any: ...

    return Handoff("away", "", {}, invoke, "nobody")


def server(command: str, name: str | None = None) -> Any:
    return MCPServerStdio({"command": command}, name=name)


def hosted(label: str) -> Any:
    return HostedMCPTool({"type": "mcp", "server_label": label, "server_url": "http://127.0.0.1/mcp"})


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([Agent("a", handoffs=[Agent("b")]), Agent("b")], r"Two agents have the name 'b'"),
        ([Agent("a", tools=[Agent("a").as_tool("inner", "")])], r"Two agents have the name 'a'"),
        ([Agent("a", tools=[look, other_look()])], r"Agent 'a' has two tools named 'look'"),
        ([Agent("a", tools=[LocalShellTool(lambda _: "")])], r"of agent 'a' is a LocalShellTool, .* use a hosted one"),
        ([Agent("a", handoffs=[by_hand()])], r"Handoff 'away' of agent 'a' does not say .* `handoff\(agent\)`"),
        ([Agent("a", handoffs=[Agent("b 1"), Agent("b_1")])], r"'a' has two handoffs named 'transfer_to_b_1': "),
        ([Agent("a", tools=[takes(int), takes(str)])], r"share one context type, and there are: int .*; str "),
        ([Agent("a", tools=[takes(Script)])], r"context type Script cannot travel"),
        (
            [Agent("a", mcp_servers=[server("npx"), server("npx")])],
            r"'a' has two MCP servers named 'stdio: npx': .* a name",
        ),
        ([Agent("a", tools=[hosted("x"), hosted("x")])], r"'a' has two MCP servers named 'x': .* `server_label`"),
        ([Agent("a", tools=[hosted("x")], mcp_servers=[server("npx", "x")])], r"'a' has two MCP servers named 'x'"),
        ([Agent("a", tools=[inner(session=SQLiteSession("s"))])], r"Agent 'inner' is a tool with a session of its own"),
        ([Agent("a", tools=[inner(conversation_id="c")])], rf"'inner' .* in a conversation: {KEPT}"),
        ([Agent("a", tools=[inner(session=CONVERSATIONS)])], rf"'inner' .* in a conversation: {KEPT}"),
        ([Agent("a", model_settings=IN_BODY)], rf"Agent 'a' asks for a conversation in its model settings: {KEPT}"),
        ([Agent("a", model_settings=SHRINKING)], r"'a' has retry settings whose waits grow by 0.5, .* 1 or more"),
        (
            [Agent("a", tools=[inner(run_config=RunConfig(model_settings=ALWAYS))])],
            r"'inner' .* a retry policy in",
        ),
        ([Agent("a"), PydanticAgent(TestModel(), name="b", capabilities=[Durable()])], r"of one framework"),
    ],
    ids=[
        "graph",
        "tool",
        "tools",
        "shell",
        "handoff",
        "handoffs",
        "contexts",
        "context",
        "servers",
        "hosted",
        "both",
        "session",
        "id",
        "conversations",
        "body",
        "waits",
        "policy",
        "frameworks",
    ],
)
def test_what_cannot_run_is_refused_by_name(agents: list[Any], message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message):
        Interlock(agents)


def test_hosted_tools_and_servers_of_different_names_are_taken() -> None:
    tools = [WebSearchTool(), hosted("x"), hosted("y")]
    one = Agent("a", tools=tools, mcp_servers=[server("npx"), server("npx", "other")])
    assert Interlock([one]).agents.keys() == {"a"}


@pytest.mark.parametrize(("found", "fits"), [("0.21.9", False), ("0.22.0", True), ("0.22.9", True), ("0.23.0", False)])
def test_other_versions_of_the_sdk_are_refused(monkeypatch: pytest.MonkeyPatch, found: str, fits: bool) -> None:
    real = metadata.version
    wanted = {"openai-agents": found}
    monkeypatch.setattr(
        "interlock.adapters.openai_agents._versions.version", lambda name: wanted.get(name) or real(name)
    )
    if fits:
        Interlock([Agent("a")])
        return
    with pytest.raises(MisconfiguredError, match=rf"openai-agents >=0\.22,<0\.23; {found} is installed"):
        Interlock([Agent("a")])


def test_the_versions_that_are_taken_are_those_that_are_installed() -> None:
    assert sdk_requirements() == [f"{package}{range_of(package)}" for package in SUPPORTED]


async def test_a_conversation_that_the_provider_keeps_is_refused_where_a_run_is_started(run_app: Running) -> None:
    script = Script("done")
    async with run_app(Interlock([agent(script)])) as app:
        with pytest.raises(MisconfiguredError, match=f"conversation_id: {KEPT}"):
            await app.client.start("support", "go", conversation_id="conv_1")
        run = await app.client.start("support", "go", model_settings={"extra_args": {"conversation": "conv_1"}})
        with pytest.raises(RunFailedError, match=KEPT) as failed:
            await run.result()
        pasts: list[dict[str, Any]] = [{"message_history": []}, {"session": "s"}]
        for past in pasts:
            with pytest.raises(MisconfiguredError, match="previous_response_id"):
                await app.client.start("support", "go", previous_response_id="resp_1", **past)

        assert failed.value.error_type == "InvalidInputError"
        assert script.calls == 0


async def test_agents_of_pydantic_ai_take_no_answer_to_go_on_from(run_app: Running) -> None:
    async with run_app(Interlock([PydanticAgent(TestModel(), name="b", capabilities=[Durable()])])) as app:
        run = await app.client.start("b", "go", previous_response_id="resp_1")
        with pytest.raises(RunFailedError, match="openai_previous_response_id") as failed:
            await run.result()

        assert failed.value.error_type == "InvalidInputError"
