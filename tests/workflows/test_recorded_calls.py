"""What is recorded is never run again, and comes back as it was."""

from datetime import UTC, date, datetime
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRetry, SkipToolExecution, ToolFailed
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.tools import DeferredToolRequests

from interlock import Client, Interlock, MisconfiguredError, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.server import EmbeddedServer
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


async def test_values_made_for_a_run_do_not_break_its_replay(run_app: Running) -> None:
    script = Script([call("look", "a")], [call("look", "b")], "done")
    durable = agent(script, tools=[Tool(lambda: "x", name="look")])

    @durable.instructions
    def with_ids(ctx: RunContext[Any]) -> str:
        return f"run {ctx.run_id} conversation {ctx.conversation_id}"

    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "go", model_settings={"extra_body": {"prompt_cache_key": "k"}})
        await run.result()

        asked = {
            str(message.instructions) for messages in script.asked for message in messages if message.kind == "request"
        }
        assert len(asked) == 1


async def test_models_by_instance_by_key_by_name_and_in_the_start_are_all_recorded(run_app: Running) -> None:
    own, other = Script("own"), Script("other")
    by_key = agent(own, name="by_key", durable={"models": {"other": other.model}})
    by_name = Agent("test", name="by_name", capabilities=[Durable()])
    async with run_app(Interlock([by_key, by_name])) as app:
        assert (await (await app.client.start("by_key", "go")).result()).output == "own"
        assert (await (await app.client.start("by_key", "go", model="other")).result()).output == "other"
        run = await app.client.start("by_name", "go")
        assert (await run.result()).output == "success (no tool calls)"
        assert [step.kind for step in await run.steps()] == ["model"]
        assert (own.calls, other.calls) == (1, 1)


class Item(BaseModel):
    name: str
    at: datetime
    day: date


ITEM = Item(name="x", at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), day=date(2026, 1, 2))


VALUES: list[Any] = [
    "text",
    ITEM,
    (1, "two"),
    ITEM.at,
    {"a": {"b": 1.5}},
    [ITEM, ITEM],
    [1, None, True],
    None,
    ITEM.day,
    b"raw",
    2**60,
]


async def test_a_tool_result_reaches_the_model_as_it_does_outside(run_app: Running) -> None:
    def give(n: int) -> Any:
        return VALUES[n]

    def told(script: Script) -> list[str]:
        parts = [part for part in script.asked[-1][-1].parts if isinstance(part, ToolReturnPart)]
        return [part.model_response_str() for part in parts]

    calls = [call("give", str(n), n=n) for n in range(len(VALUES))]
    outside, inside = (Script(calls, "done") for _ in range(2))
    await agent(outside, tools=[give]).run("go")
    async with run_app(Interlock([agent(inside, tools=[give])])) as app:
        await (await app.client.start("support", "go")).result()

    assert len(told(inside)) == len(VALUES)
    assert told(inside) == told(outside)


@pytest.mark.parametrize(("error", "outcome"), [(ToolFailed("broken"), "failed"), (ModelRetry("broken"), "retried")])
async def test_a_failure_the_model_is_told_of_shows_as_failed(run_app: Running, error: Exception, outcome: str) -> None:
    def look() -> str:
        raise error

    script = Script([call("look", "a")], "done")
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert script.outcomes() == {"a": outcome}
        steps = [step for step in await run.steps() if step.kind == "tool"]
        assert [(step.status, step.error) for step in steps] == [("failed", f"{type(error).__name__}: broken")]


async def test_outside_of_a_workflow_the_agent_is_its_frameworks_own() -> None:
    gated = Tool(lambda: "x", name="refund", requires_approval=True)
    script = Script([call("refund", "a")], "done")
    result = await agent(script, tools=[gated], output_type=[str, DeferredToolRequests]).run("go")

    assert isinstance(result.output, DeferredToolRequests)
    assert [one.tool_call_id for one in result.output.approvals] == ["a"]


class Guard(AbstractCapability[Any]):
    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        if args["name"] == "told":
            raise ModelRetry("not this one")
        if args["name"] == "skipped":
            raise SkipToolExecution("nothing")
        return args


async def test_a_call_that_a_guard_stops_is_no_step(run_app: Running) -> None:
    ran: list[str] = []

    def look(name: str) -> str:
        ran.append(name)
        return name

    script = Script([call("look", name, name=name) for name in ("told", "skipped", "free")], "done")
    async with run_app(Interlock([agent(script, tools=[look], capabilities=[Guard()])])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert ran == ["free"]
        assert [step.summary for step in await run.steps() if step.kind == "tool"] == ["look: name free"]
        assert script.results()["skipped"] == "nothing"


async def test_a_call_id_that_looks_like_one_that_was_made_up_trades_no_results(run_app: Running) -> None:
    def look(n: int) -> int:
        return n * 10

    def calls(messages: list[ModelMessage]) -> Any:
        parts = [call("look", n=n) for n in range(3)]
        for part, call_id in zip(parts, ("a", "a-2", "a"), strict=True):
            part.tool_call_id = call_id
        return parts

    script = Script(calls, "done")
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        await (await app.client.start("support", "go")).result()

    told = [
        (part.tool_call_id, part.content) for part in script.asked[-1][-1].parts if isinstance(part, ToolReturnPart)
    ]
    assert [content for _, content in told] == [0, 10, 20]
    assert len({call_id for call_id, _ in told}) == 3


async def test_a_conversation_goes_in_and_comes_out(run_app: Running) -> None:
    history: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart("my name is Ann")]),
        ModelResponse(parts=[TextPart("hello Ann")], model_name="m"),
    ]
    script = Script("you are Ann", earlier_answers=1)
    async with run_app(Interlock([agent(script)])) as app:
        first = await app.client.start("support", "who am I?", message_history=_json(history))
        output = await first.result()
        assert output.messages is not None
        assert [message["kind"] for message in output.messages] == ["request", "response"] * 2
        assert len(script.asked[-1]) == 3


def _json(messages: list[ModelMessage]) -> list[Any]:
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python(messages, mode="json")
    return dumped


class Deps(BaseModel):
    tenant: str
    since: date


async def test_dependencies_are_checked_against_the_agents_type_and_reach_the_tools(run_app: Running) -> None:
    got: list[Deps] = []

    def look(ctx: RunContext[Deps]) -> str:
        got.append(ctx.deps)
        return ctx.deps.tenant

    script = Script([call("look", "a")], "done")
    async with run_app(Interlock([agent(script, tools=[look], deps_type=Deps)])) as app:
        run_id = "deps-" + app.client.task_queue
        bad = await app.client.start("support", "go", id=run_id, deps={"tenant": 3})
        with pytest.raises(
            RunFailedError, match=r"do not fit Deps of agent 'support': tenant: .*; since: Field required"
        ):
            await bad.result()
        # A run that no worker could take on has done nothing, so its id is free for the corrected input.
        run = await app.client.start("support", "go", id=run_id, deps={"tenant": "t", "since": "2026-01-02"})
        await run.result()

    assert got == [Deps(tenant="t", since=date(2026, 1, 2))]


class Answer(BaseModel):
    total: float
    on: date


async def test_output_types_are_the_agents(run_app: Running) -> None:
    script = Script([call("final_result", "f", total=3, on="2026-01-02")])
    async with run_app(Interlock([agent(script, output_type=Answer)])) as app:
        output = await (await app.client.start("support", "go")).result()

    assert output.output == {"total": 3.0, "on": "2026-01-02"}


async def test_an_unknown_agent_is_named_with_those_there_are(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script("done"))])) as app:
        run = await app.client.start("supprot", "go")
        with pytest.raises(RunFailedError, match="no agent 'supprot'; it has: support"):
            await run.accepted()


async def test_a_prompt_that_is_empty_or_not_text_is_refused_before_anything_starts(server: EmbeddedServer) -> None:
    client = await Client.connect(server.address, task_queue="nobody-there")
    prompts: list[Any] = ["", "   ", [], None, 7]
    for prompt in prompts:
        with pytest.raises(MisconfiguredError, match=r"cannot be started: .*(prompt|iterable)"):
            await client.start("support", prompt)


async def test_any_error_of_the_loop_ends_the_run_with_its_type(run_app: Running) -> None:
    class Breaks(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            raise LookupError("no such shelf")

    async with run_app(Interlock([agent(Script("done"), capabilities=[Breaks()])])) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="no such shelf") as failed:
            await run.result()
        assert (failed.value.error_type, failed.value.status) == ("LookupError", "failed")


async def test_an_output_too_large_for_a_payload_ends_the_run_by_name(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script("x" * 800_000, "y"))])) as app:
        output = await (await app.client.start("support", "go")).result()
        assert (len(output.output), output.messages) == (800_000, None)
    async with run_app(Interlock([agent(Script("é" * 800_000))])) as app:  # It is the bytes that count.
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="1,600,") as failed:
            await run.result()
        assert failed.value.error_type == "OutputTooLargeError"
