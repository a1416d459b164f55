"""What runs have beside their agents, with agents of the OpenAI Agents SDK: budgets, sessions, streams, models."""

import asyncio
import socket
from typing import Any

import pytest
from agents import Agent, Model, ModelProvider, OpenAIResponsesModel, RunConfig, RunContextWrapper, function_tool

from interlock import Interlock, Price, RunFailedError
from interlock.adapters.openai_agents import progress
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call
from tests.openai_api import OpenAIAPI, answer
from tests.openai_api import call as asks


@function_tool
def look(order: str) -> str:
    return "broken"


async def test_a_budget_is_asked_about_before_the_call_that_it_does_not_cover(run_app: Running) -> None:
    script = Script([call("look", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=[look])], prices={"scripted": Price(call_usd="0.10")})) as app:
        run = await app.client.start("support", "go", budget={"requests": 1})
        (request,) = await app.requests(run, 1)
        assert (request.kind, script.calls) == ("budget", 1)
        await run.decide(request.request_id, "approve", arguments={"requests": 5})
        output = await run.result()

        assert (output.output, output.usage.requests, str(output.usage.cost_usd)) == ("done", 2, "0.20")


async def test_a_used_up_budget_ends_the_run_from_inside_an_agent_that_is_a_tool(run_app: Running) -> None:
    inner = agent(Script([call("look", "a", order="A-1")], "inner"), name="inner", tools=[look])
    outer = agent(Script([call("inner", "a", input="x")], "done"), tools=[inner.as_tool("inner", "")])
    async with run_app(Interlock([outer])) as app:
        run = await app.client.start("support", "go", budget={"requests": 2, "when_used_up": "end"})
        with pytest.raises(RunFailedError) as failed:
            await run.result()

        assert failed.value.error_type == "BudgetUsedUpError"
        assert outer.model.calls == 1  # type: ignore[union-attr]


async def test_the_turns_of_a_session_are_one_conversation(run_app: Running) -> None:
    script = Script("first", "second")
    async with run_app(Interlock([agent(script)])) as app:
        session = f"ann-{app.client.task_queue}"
        await (await app.client.start("support", "one", session=session)).result()
        output = await (await app.client.start("support", "two", session=session)).result()

        assert output.output == "second"
        assert [item.get("content") for item in script.asked[-1]][::2] == ["one", "two"]
        assert len(await app.client.conversation(session)) == 4


async def test_a_streamed_run_tells_what_its_model_says_and_how_far_its_tool_is(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    seen = asyncio.Event()

    @function_tool
    async def count(ctx: RunContextWrapper[Any]) -> str:
        progress(ctx, 1, 2, "half")
        await asyncio.wait_for(seen.wait(), 60)
        return "counted"

    openai_api.script([asks("count", "a")], answer("all is well", pause_seconds=0.1), model="scripted")
    one = Agent(name="support", model=OpenAIResponsesModel("scripted", openai_api.client()), tools=[count])
    async with run_app(Interlock([one])) as app:
        run = await app.client.start("support", "go", stream=True)
        events = []
        async for event in run.events():
            events.append(event)
            if (event.kind, event.text) == ("progress", "half"):
                seen.set()
        assert [event async for event in run.events(from_offset=events[3].offset + 1)] == events[4:]

    assert "".join(event.text for event in events if event.kind == "text") == "all is well"
    assert [event.kind for event in events].count("step_finished") == 3
    assert seen.is_set()


async def test_models_by_instance_by_name_by_provider_and_in_the_start_are_all_recorded(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    class Provider(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            return OpenAIResponsesModel(model_name or "unnamed", openai_api.client())

    scripts = {name: openai_api.script(name, model=name) for name in ("instance", "name", "start", "unnamed")}
    agents = [
        Agent("by_instance", model=OpenAIResponsesModel("instance", openai_api.client())),
        Agent("by_name", model="name"),
        Agent("without"),
    ]
    starts: dict[str, tuple[str, str | None]] = {
        "instance": ("by_instance", None),
        "name": ("by_name", None),
        "start": ("by_instance", "start"),
        "unnamed": ("without", None),
    }
    async with run_app(Interlock(agents, run_config=RunConfig(model_provider=Provider()))) as app:
        for name, (started, model) in starts.items():
            run = await app.client.start(started, "go", model=model)
            assert (await run.result()).output == name
            assert [step.kind for step in await run.steps()] == ["model"]

    assert [script.calls for script in scripts.values()] == [1, 1, 1, 1]


async def test_a_tool_opens_a_socket_without_any_wiring(run_app: Running) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    @function_tool
    async def asks(port: int) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"async\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answer.decode().strip()

    @function_tool
    def asks_in_a_thread(port: int) -> str:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"sync\n")
            with connection.makefile() as lines:
                return lines.readline().strip()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        script = Script([call("asks", "a", port=port), call("asks_in_a_thread", "b", port=port)], "done")
        async with run_app(Interlock([agent(script, tools=[asks, asks_in_a_thread])])) as app:
            await (await app.client.start("support", "go")).result()

    assert script.results() == {"a": "async", "b": "sync"}
