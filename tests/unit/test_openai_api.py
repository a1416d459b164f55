"""The test server that stands for OpenAI: the SDKs take what it gives, and it refuses what OpenAI would refuse."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.openai_api import (
    Answer,
    OpenAIAPI,
    Turn,
    answer,
    approval,
    attempts,
    call,
    cut,
    dropped,
    error,
    malformed,
    refusal,
)
from tests.workflows.shelves import REPOSITORY, SHELVES, Shelf

LOOK = [call("look", "a", order="A-1"), call("look", "b", order="A-2")]


async def test_a_response_is_the_same_plain_and_streamed(openai_api: OpenAIAPI) -> None:
    openai_api.script(answer("two words", *LOOK, input_tokens=30, reasoning_tokens=2))
    client = openai_api.client()
    plain = await client.responses.create(model="scripted", input="go")
    events = [event async for event in await client.responses.create(model="scripted", input="go", stream=True)]

    assert plain.output_text == "two words"
    assert [item.type for item in plain.output] == ["message", "function_call", "function_call"]
    assert plain.usage
    assert (plain.usage.input_tokens, plain.usage.output_tokens_details.reasoning_tokens) == (30, 2)
    done = events[-1]
    assert done.type == "response.completed"
    assert done.response.output_text == "two words"
    assert done.response.usage == plain.usage
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "two words"


async def test_a_chat_completion_is_the_same_plain_and_streamed(openai_api: OpenAIAPI) -> None:
    openai_api.script(answer("two words", *LOOK, input_tokens=30))
    client, asked = openai_api.client(), {"role": "user", "content": "go"}
    plain = await client.chat.completions.create(model="scripted", messages=[asked])  # type: ignore[list-item]
    async with client.chat.completions.stream(
        model="scripted",
        messages=[asked],  # type: ignore[list-item]
        stream_options={"include_usage": True},
    ) as stream:
        streamed = await stream.get_final_completion()

    message = streamed.choices[0].message
    assert message.content == plain.choices[0].message.content == "two words"
    calls = [(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or ()]
    assert calls == [("a", "look", '{"order": "A-1"}'), ("b", "look", '{"order": "A-2"}')]
    assert streamed.usage == plain.usage
    assert streamed.choices[0].finish_reason == "tool_calls"


async def test_a_request_that_is_made_again_gets_the_same_answer(openai_api: OpenAIAPI) -> None:
    script = openai_api.script(LOOK, "second", lambda request: f"third of {request.prompt}")
    create = openai_api.client().responses.create
    first, again = [await create(model="scripted", input="go") for _ in range(2)]
    outputs: Any = [{"type": "function_call_output", "call_id": call_id, "output": "seen"} for call_id in "ab"]
    seconds = [
        await create(model="scripted", input=outputs, previous_response_id=earlier.id)
        for earlier in (first, first, again)
    ]
    third = await create(model="scripted", input="on", previous_response_id=seconds[-1].id)

    assert [call.to_dict()["call_id"] for call in (*first.output, *again.output)] == ["a", "b", "a", "b"]
    assert [second.output_text for second in seconds] == ["second"] * 3
    assert third.output_text == "third of go"
    assert script.requests[-1].results == {"a": "seen", "b": "seen"}
    assert script.requests[0].headers["authorization"] == "Bearer test"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": "unknown", "input": "go"}, "model_not_found"),
        ({"model": "scripted", "input": "go", "previous_response_id": "resp_9"}, "previous_response_not_found"),
        ({"model": "scripted", "input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, None),
        ({"model": "scripted", "input": [{"role": "assistant", "content": "one too many"}]}, None),
    ],
    ids=["model", "previous response", "output without a call", "behind the script"],
)
async def test_what_openai_refuses_is_refused(openai_api: OpenAIAPI, body: dict[str, Any], code: str | None) -> None:
    openai_api.script("done")
    with pytest.raises(openai.APIStatusError) as refused:
        await openai_api.client().responses.create(**body)

    assert refused.value.status_code in (400, 404)
    assert refused.value.code == code


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(
    ("turn", "raised"),
    [
        (error(429, retry_after_ms=50), openai.RateLimitError),
        (error(500, x_should_retry="false"), openai.InternalServerError),
        (dropped(), openai.APIConnectionError),
        (cut("some words of an answer"), openai.APIConnectionError),
        (malformed(), ValueError),
    ],
    ids=["429", "500", "dropped", "cut", "malformed"],
)
async def test_a_failure_is_what_the_sdk_knows(
    openai_api: OpenAIAPI, turn: Turn, raised: type[Exception], streamed: bool
) -> None:
    script = openai_api.script(attempts(turn, "done"))
    client = openai_api.client()

    async def ask() -> list[Any]:
        given = await client.responses.create(model="scripted", input="go", stream=streamed)
        return [event async for event in given] if isinstance(given, openai.AsyncStream) else given.output

    with pytest.raises(raised) as failed:
        await ask()
    if isinstance(failed.value, openai.APIStatusError):
        assert {"retry-after-ms": "50", "x-should-retry": "false"}.items() & failed.value.response.headers.items()
    assert await ask()
    assert script.calls == 2


API = pytest.mark.parametrize("api", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])


@pytest.fixture
def agents() -> Any:
    return pytest.importorskip("agents", reason="needs openai-agents")


async def _run(agents: Any, agent: Any, given: Any, *, streamed: bool = False, **options: Any) -> Any:
    if not streamed:
        return await agents.Runner.run(agent, given, **options)
    result = agents.Runner.run_streamed(agent, given, **options)
    async for _ in result.stream_events():
        pass
    return result


@API
@STREAMED
async def test_the_agents_sdk_runs_over_http(agents: Any, openai_api: OpenAIAPI, api: str, streamed: bool) -> None:
    script = openai_api.script(LOOK, answer("all is well", input_tokens=30, output_tokens=7))
    model = getattr(agents, api)("scripted", openai_api.client())
    look = agents.function_tool(_look, name_override="look")
    agent = agents.Agent("support", model=model, tools=[look], model_settings=agents.ModelSettings(include_usage=True))
    result = await _run(agents, agent, "go", streamed=streamed)

    assert result.final_output == "all is well"
    assert script.requests[-1].results == {"a": "seen A-1", "b": "seen A-2"}
    assert [request.streams for request in openai_api.requests] == [streamed, streamed]
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens) == (2, 40, 12)


@API
@STREAMED
@pytest.mark.parametrize(
    ("turn", "raised"),
    [(error(429), openai.RateLimitError), (dropped(), openai.APIConnectionError), (malformed(), ValueError)],
    ids=["429", "dropped", "malformed"],
)
async def test_the_agents_sdk_sees_failures(
    agents: Any, openai_api: OpenAIAPI, api: str, streamed: bool, turn: Turn, raised: type[Exception]
) -> None:
    script = openai_api.script(turn)
    agent = agents.Agent("support", model=getattr(agents, api)("scripted", openai_api.client()))
    with pytest.raises(raised):
        await _run(agents, agent, "go", streamed=streamed)

    assert script.calls == 1


@STREAMED
@pytest.mark.parametrize("approved", [True, False], ids=["approved", "rejected"])
async def test_the_agents_sdk_answers_a_hosted_approval(
    agents: Any, openai_api: OpenAIAPI, streamed: bool, approved: bool
) -> None:
    script = openai_api.script([approval("take", "mcpr_1", server="shelf", thing="book")], "done")
    hosted = agents.HostedMCPTool(
        {"type": "mcp", "server_label": "shelf", "server_url": "http://127.0.0.1/mcp", "require_approval": "always"}
    )
    agent = agents.Agent("support", model=agents.OpenAIResponsesModel("scripted", openai_api.client()), tools=[hosted])
    result = await _run(agents, agent, "go", streamed=streamed)
    (asked,) = result.interruptions
    state = result.to_state()
    (state.approve if approved else state.reject)(asked)
    result = await _run(agents, agent, state, streamed=streamed)

    assert result.final_output == "done"
    answers = [item for item in script.requests[-1].conversation if item.get("type") == "mcp_approval_response"]
    assert [(item["approval_request_id"], item["approve"]) for item in answers] == [("mcpr_1", approved)]


async def test_the_agents_sdk_goes_on_from_an_earlier_response(agents: Any, openai_api: OpenAIAPI) -> None:
    script = openai_api.script(LOOK, "done")
    look = agents.function_tool(_look, name_override="look")
    agent = agents.Agent("support", model=agents.OpenAIResponsesModel("scripted", openai_api.client()), tools=[look])
    result = await _run(agents, agent, "go", auto_previous_response_id=True)

    assert result.final_output == "done"
    assert [item["type"] for item in script.requests[-1].body["input"]] == ["function_call_output"] * 2
    assert script.requests[-1].answers == 1


@API
async def test_the_agents_sdk_sees_a_refusal(agents: Any, openai_api: OpenAIAPI, api: str) -> None:
    openai_api.script(Answer(refusal("no thanks")))
    agent = agents.Agent("support", model=getattr(agents, api)("scripted", openai_api.client()))
    with pytest.raises(agents.ModelRefusalError, match="no thanks"):
        await _run(agents, agent, "go")


@pytest.fixture(params=sorted(SHELVES))
async def shelf(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Shelf]:
    async with SHELVES[request.param](tmp_path / "taken") as shelf:
        yield shelf


async def test_the_agents_sdk_calls_an_mcp_server(agents: Any, openai_api: OpenAIAPI, shelf: Shelf) -> None:
    servers = pytest.importorskip("agents.mcp")
    script = openai_api.script([call("take", "a", thing="book")], "done")
    command = {"command": sys.executable, "args": shelf.arguments, "cwd": str(REPOSITORY)}
    reached = servers.MCPServerStreamableHttp({"url": shelf.url}) if shelf.url else servers.MCPServerStdio(command)
    async with reached as server:
        model = agents.OpenAIResponsesModel("scripted", openai_api.client())
        await _run(agents, agents.Agent("support", model=model, mcp_servers=[server]), "go")

    assert shelf.taken == ["book"]
    assert "took book" in str(script.requests[-1].results["a"])


def _look(order: str) -> str:
    """Look at an order."""
    return f"seen {order}"
