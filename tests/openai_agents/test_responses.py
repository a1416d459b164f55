"""Runs that go on from an answer which the provider keeps, over HTTP: what is sent, and what it goes on from."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    ToolGuardrailFunctionOutput,
    function_tool,
    tool_input_guardrail,
)

from interlock import Interlock, RefusedError, Settings
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.conftest import Running
from tests.openai_api import OpenAIAPI, Script, attempts, call, error

HOUR = Settings(stuck_seconds=3_600)
looked: list[str] = []


@pytest.fixture(autouse=True)
def nothing_looked_at() -> None:
    looked.clear()


@function_tool
def look(order: str) -> str:
    looked.append(order)
    return f"seen {order}"


@function_tool(needs_approval=True)
def pay(order: str) -> str:
    return f"paid {order}"


def support(api: OpenAIAPI, **options: Any) -> Agent[Any]:
    return Agent(
        "support", **{"model": OpenAIResponsesModel("scripted", api.client()), "tools": [look, pay], **options}
    )


def sent(script: Script) -> list[tuple[str | None, list[str]]]:
    """Of each request, which answer it goes on from, and what it sends beside."""
    return [
        (
            request.body.get("previous_response_id"),
            [item.get("output") or item.get("content") or item.get("type") for item in request.body["input"]],
        )
        for request in script.requests
    ]


async def test_a_run_goes_on_from_an_answer_and_each_request_from_the_one_before_over_a_restart(
    server: EmbeddedServer, openai_api: OpenAIAPI
) -> None:
    script = openai_api.script("first", [call("look", "l", order="A-1")], [call("pay", "p", order="A-1")], "done")
    app = Interlock([support(openai_api)])
    async with running(app, server) as first:
        before = await (await first.client.start("support", "one")).result()
        run = await first.client.start("support", "two", previous_response_id=before.last_response_id)
        await first.requests(run, 1)
        task_queue = first.client.task_queue
    async with running(app, server, task_queue=task_queue) as second:
        run = second.client.attach(run.id)
        await run.decide("1", "approve")
        output = await run.result()
        with pytest.raises(RefusedError, match="previous_response_id differs"):
            await second.client.start("support", "two", id=run.id, previous_response_id="resp_99")

    assert (output.output, output.last_response_id, looked) == ("done", "resp_4", ["A-1"])
    assert sent(script) == [
        (None, ["one"]),
        ("resp_1", ["two"]),
        ("resp_2", ["seen A-1"]),
        ("resp_3", ["paid A-1"]),
    ]


async def test_a_request_that_is_made_again_goes_on_from_the_same_answer(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    passing = error(503, retry_after_ms=1)
    script = openai_api.script([call("look", "l", order="A-1")], attempts(passing, error(400), "done"))
    async with run_app(Interlock([support(openai_api)], settings=HOUR)) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert looked == ["A-1"]
    assert sent(script) == [(None, ["go"]), *[("resp_1", ["seen A-1"])] * 3]


async def test_new_limits_and_a_stopped_answer_go_on_from_the_last_answer(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    @tool_input_guardrail
    def picky(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception("not so")

    @function_tool(tool_input_guardrails=[picky])
    def other() -> str:
        return ""

    both = [call("look", "m", order="A-2"), call("other", "o")]
    script = openai_api.script([call("look", "l", order="A-1")], both, "done")
    one = support(openai_api, tools=[look, other])
    async with run_app(Interlock([one], settings=HOUR)) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True, usage_limits={"max_turns": 1})
        for limits in ({"max_turns": 5}, None):
            await app.state(run, lambda state: bool(state.stuck))
            await run.retry(usage_limits=limits)
        output = await run.result()

    assert (output.output, looked) == ("done", ["A-1", "A-2"])
    first, second, third = sent(script)
    assert (first, second) == ((None, ["go"]), ("resp_1", ["seen A-1"]))
    assert (third[0], third[1][0]) == ("resp_2", "seen A-2")
    assert script.requests[2].results["o"].startswith("The tool call was interrupted")


async def test_a_retry_that_gives_no_new_limits_loses_nothing_of_the_last_answer(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    script = openai_api.script([call("look", "l", order="A-1")], "done")
    async with run_app(Interlock([support(openai_api)], settings=HOUR)) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True, usage_limits={"max_turns": 1})
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await app.state(run, lambda state: [one.step_id for one in state.stuck] == ["2"])
        await run.retry(usage_limits={"max_turns": 5})
        await asyncio.wait_for(run.result(), 60)

    assert sent(script) == [(None, ["go"]), ("resp_1", ["seen A-1"])]


async def test_an_answer_that_is_stopped_before_any_call_of_it_is_asked_for_again(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    @tool_input_guardrail
    def picky(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception("not so")

    @function_tool(tool_input_guardrails=[picky])
    def other() -> str:
        return ""

    script = openai_api.script([call("look", "l", order="A-1")], attempts([call("other", "o")], "done"))
    async with run_app(Interlock([support(openai_api, tools=[look, other])], settings=HOUR)) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry()
        await run.result()

    assert sent(script) == [(None, ["go"]), *[("resp_1", ["seen A-1"])] * 2]


async def test_a_fork_goes_on_from_the_answer_that_it_takes_over(run_app: Running, openai_api: OpenAIAPI) -> None:
    script = openai_api.script([call("look", "l", order="A-1")], [call("look", "m", order="A-2")], "done")
    async with run_app(Interlock([support(openai_api)])) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True)
        await run.result()
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=5))
        await fork.result()

    assert looked == ["A-1", "A-2"]
    assert sent(script)[2:] == [("resp_2", ["seen A-2"])] * 2


async def test_an_agent_that_is_a_tool_goes_on_from_the_answer_it_was_made_with(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    openai_api.script("earlier", model="scripted")
    inner_script = openai_api.script([call("look", "l", order="A-1")], "inner done", model="inner", earlier_answers=1)
    model = OpenAIResponsesModel("inner", openai_api.client())
    inner = Agent("inner", model=model, tools=[look]).as_tool("inner", "", previous_response_id="resp_1")
    outer = support(openai_api, tools=[inner])
    async with run_app(Interlock([outer])) as app:
        await (await app.client.start("support", "first")).result()
        script = openai_api.script([call("inner", "i", input="go")], "done")
        await (await app.client.start("support", "second")).result()

    assert sent(inner_script) == [("resp_1", ["go"]), ("resp_3", ["seen A-1"])]
    assert [previous for previous, _ in sent(script)] == [None, None]


async def test_what_a_reviewer_wants_changed_goes_on_from_the_last_answer(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    script = openai_api.script([call("look", "l", order="A-1")], "first", [call("look", "k", order="A-2")], "second")
    async with run_app(Interlock([support(openai_api)])) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True, review=True)
        await app.requests(run, 1)
        await run.decide("1", "reject", reason="A-2 too.")
        await app.state(run, lambda state: [one.request_id for one in state.requests] == ["2"])
        await run.decide("2", "approve")
        output = await run.result()

    assert (output.output, output.last_response_id, looked) == ("second", "resp_4", ["A-1", "A-2"])
    assert sent(script) == [
        (None, ["go"]),
        ("resp_1", ["seen A-1"]),
        ("resp_2", ["A-2 too."]),
        ("resp_3", ["seen A-2"]),
    ]
    said = [item for item in output.messages or [] if item.get("role") == "user"]
    assert [item["content"] for item in said] == ["go", "A-2 too."]


@pytest.fixture
async def short_histories() -> AsyncIterator[EmbeddedServer]:
    """A server that takes a history of 40 events for a long one."""
    config = {"limit.historyCount.suggestContinueAsNew": "40"}
    embedded = await EmbeddedServer.start(port=0, ui=False, dynamic_config=config)
    yield embedded
    await embedded.stop()


async def test_a_run_that_goes_on_in_another_execution_goes_on_from_the_last_answer(
    short_histories: EmbeddedServer, openai_api: OpenAIAPI
) -> None:
    script = openai_api.script(*[[call("look", f"l{n}", order=f"A-{n}")] for n in range(9)], "done")
    one = support(openai_api, model_settings=ModelSettings(tool_choice="required"))
    async with running(Interlock([one]), short_histories) as app:
        run = await app.client.start("support", "go", auto_previous_response_id=True)
        output = await run.result()
        executions = [one async for one in app.client.temporal.list_workflows(f"WorkflowId = '{run.id}'")]

    assert len(executions) > 1
    assert (output.output, looked) == ("done", [f"A-{n}" for n in range(9)])
    assert sent(script)[1:] == [(f"resp_{n + 1}", [f"seen A-{n}"]) for n in range(9)]
    # A tool that had to be called is not to be called again in each execution.
    assert [request.body.get("tool_choice") for request in script.requests] == ["required", *[None] * 9]
