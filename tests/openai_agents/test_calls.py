"""Calls of models and tools of the OpenAI Agents SDK: retried as their provider says, and told as outside of a run."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from agents import (
    Agent,
    FunctionTool,
    GuardrailFunctionOutput,
    OpenAIResponsesModel,
    Runner,
    Usage,
    function_tool,
    input_guardrail,
)
from agents.items import ModelResponse
from pydantic import BaseModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, RunFailedError, Settings
from interlock.adapters.openai_agents._requests import _delay
from interlock.adapters.openai_agents._scope import Scope
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_api import OpenAIAPI, Turn, attempts, cut, error

FAST = Retries(model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_interval=timedelta(seconds=5)))


async def asked(run_app: Running, openai_api: OpenAIAPI, turn: Turn, **options: Any) -> Any:
    """The requests that a run makes for one turn of its model."""
    script = openai_api.script(turn, model="scripted")
    one = Agent("support", model=OpenAIResponsesModel("scripted", openai_api.client()))
    async with run_app(Interlock([one], retries=FAST)) as app:
        run = await app.client.start("support", "go", **options)
        try:
            assert (await run.result()).output == "done"
        finally:
            requests = script.requests
    return requests


async def test_a_provider_that_asks_for_time_gets_it(run_app: Running, openai_api: OpenAIAPI) -> None:
    first, second = await asked(run_app, openai_api, attempts(error(429, retry_after_ms=1_800), "done"))

    assert second.at - first.at >= 1.8


async def test_a_refused_request_is_not_made_again(run_app: Running, openai_api: OpenAIAPI) -> None:
    with pytest.raises(RunFailedError, match="status 400") as failed:
        await asked(run_app, openai_api, error(400))

    assert failed.value.error_type == "BadRequestError"
    assert len(openai_api.requests) == 1


@pytest.mark.parametrize(("status", "said", "requests"), [(500, "false", 1), (400, "true", 2)])
async def test_the_providers_word_on_trying_again_holds(
    run_app: Running, openai_api: OpenAIAPI, status: int, said: str, requests: int
) -> None:
    turn = attempts(error(status, x_should_retry=said), "done")
    if requests == 2:
        await asked(run_app, openai_api, turn)
    else:
        with pytest.raises(RunFailedError, match=f"status {status}"):
            await asked(run_app, openai_api, turn)

    assert len(openai_api.requests) == requests


@pytest.mark.parametrize("how", ["ended", "dropped"])
async def test_a_streamed_answer_that_breaks_off_is_asked_for_again(
    run_app: Running, openai_api: OpenAIAPI, how: Any
) -> None:
    requests = await asked(run_app, openai_api, attempts(cut("a b c d e", after=6, how=how), "done"), stream=True)

    assert [request.streams for request in requests] == [True, True]


def test_a_provider_may_say_when_in_three_ways() -> None:
    in_an_hour = (datetime.now(UTC) + timedelta(hours=1)).strftime("%a, %d %b %Y %H:%M:%S GMT")

    assert _delay({"retry-after-ms": "1500", "retry-after": "9"}) == timedelta(seconds=1.5)
    assert _delay({"retry-after": "2.5"}) == timedelta(seconds=2.5)
    assert timedelta(minutes=59) < cast(timedelta, _delay({"retry-after": in_an_hour})) <= timedelta(hours=1)
    assert _delay({"retry-after": "soon"}) is None
    assert _delay({}) is None


class Price(BaseModel):
    amount: float


@dataclass
class Order:
    number: str
    at: datetime


VALUES: list[Callable[[], Any]] = []


def value(function: Callable[[], Any]) -> Callable[[], Any]:
    VALUES.append(function)
    return function


@value
def text() -> str:
    return "plain ümlaut"


@value
def record() -> dict[str, Any]:
    return {"a": [1, 2.5, None, True]}


@value
def model() -> Price:
    return Price(amount=5)


@value
def models() -> list[Price]:
    return [Price(amount=5), Price(amount=6)]


@value
def order() -> Order:
    return Order("A-1", datetime(2026, 11, 30, 12, tzinfo=UTC))


@value
def pair() -> tuple[int, str]:
    return (1, "two")


@value
def untyped() -> Any:
    return {1, 2}


@value
def nothing() -> None:
    return None


async def test_what_tools_return_reaches_the_model_as_it_does_outside(run_app: Running) -> None:
    tools = [function_tool(one) for one in VALUES]
    calls = [call(one.__name__, one.__name__) for one in VALUES]
    outside, inside = Script(calls, "done"), Script(calls, "done")
    await Runner.run(agent(outside, tools=list(tools)), "go")
    async with run_app(Interlock([agent(inside, tools=list(tools))])) as app:
        await (await app.client.start("support", "go")).result()

        assert inside.results() == outside.results()


async def test_a_result_that_ends_the_run_is_its_output_in_its_type(run_app: Running) -> None:
    one = agent(
        Script([call("model", "a")]),
        tools=[function_tool(model)],
        tool_use_behavior="stop_on_first_tool",
        output_type=Price,
    )
    async with run_app(Interlock([one])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == {"amount": 5.0}


def test_calls_have_their_places_in_the_models_order_whichever_begins_first() -> None:
    scope = Scope(
        gate=cast(Any, None),
        recovery=cast(Any, None),
        retries=Retries(),
        path=("support",),
        fork=None,
        key_root="",
        is_long=lambda: False,
        by_answer=True,
        context=cast(Any, None),
        agents={},
    )
    calls = [call("look", "x"), call("look", ""), call("look", "x")]
    numbered = scope.numbered(ModelResponse(output=list(calls), usage=Usage(), response_id=None), [])
    ids = [item.call_id for item in numbered.output]  # type: ignore[union-attr]

    assert len(set(ids)) == 3
    assert [scope.place_of(one) for one in reversed(ids)] == ["tool:3", "tool:2", "tool:1"]


async def test_a_retried_run_is_not_checked_by_its_input_guardrails_again(run_app: Running) -> None:
    checked: list[Any] = []

    @input_guardrail(run_in_parallel=False)
    def look_at(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        checked.append(given)
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    @function_tool
    def look(order: str) -> str:
        return "broken"

    script = Script([call("look", "a", order="A-1")], "done")
    one = agent(script, tools=[look], input_guardrails=[look_at])
    async with run_app(Interlock([one], settings=Settings(stuck_seconds=600))) as app:
        run = await app.client.start("support", "go", usage_limits={"max_turns": 1}, stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry(usage_limits={"max_turns": 5})

        assert (await run.result()).output == "done"
        assert checked == ["go"]


async def test_an_agent_that_is_a_tool_may_be_streamed_from(run_app: Running) -> None:
    inner = agent(Script([call("look", "a", order="A-1")], "inner done"), name="inner")

    @function_tool(needs_approval=True)
    def look(order: str) -> str:
        return "broken"

    inner.tools = [look]
    kinds: list[str] = []
    tool = inner.as_tool("inner", "", on_stream=lambda event: kinds.append(event["event"].type))
    script = Script([call("inner", "i", input="x")], "done")
    async with run_app(Interlock([agent(script, tools=[tool])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert request.agent_path == ("support", "inner")
        await run.decide(request.request_id, "approve")

        assert (await run.result()).output == "done"
        assert script.results() == {"i": "inner done"}
        assert "run_item_stream_event" in kinds


async def test_each_tool_takes_what_its_own_schema_says_and_one_without_a_usable_schema_takes_all(
    run_app: Running,
) -> None:
    taken: list[tuple[str, str]] = []

    def tool(name: str, schema: dict[str, Any]) -> FunctionTool:
        async def invoke(ctx: Any, arguments: str) -> str:
            taken.append((name, arguments))
            return "done"

        return FunctionTool(
            name, "", {"type": "object", "properties": {"key": schema}}, invoke, strict_json_schema=False
        )

    tools = [
        tool("word", {"type": "string"}),
        tool("number", {"type": "number"}),
        tool("none", {"type": "letters"}),
        tool("foreign", {"type": "string", "pattern": r"\p{L}"}),
    ]
    calls = [call(one.name, f"{one.name}-{key}", key=key) for key in ("a", 1) for one in tools]
    script = Script(calls, "done")
    async with run_app(Interlock([agent(script, tools=tools)])) as app:
        await (await app.client.start("support", "go")).result()

    assert sorted(taken) == [
        *(("foreign", key) for key in ('{"key":"a"}', '{"key":1}')),
        *(("none", key) for key in ('{"key":"a"}', '{"key":1}')),
        ("number", '{"key":1}'),
        ("word", '{"key":"a"}'),
    ]
    assert 'key: has to fit {"type":"string"}' in script.results()["word-1"]


async def test_a_result_that_is_too_large_to_keep_is_not_made_again(run_app: Running) -> None:
    made: list[str] = []

    @function_tool
    def export(order: str) -> str:
        made.append(order)
        return "x" * 3_000_000

    async with run_app(Interlock([agent(Script([call("export", "a", order="A-1")]), tools=[export])])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck

    assert (step.kind, step.error_type, made) == ("tool", "PayloadsTooLarge", ["A-1"])
