"""Each call has its place, and its key, by the order of the model's calls, whatever else runs beside it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import BinaryContent, ModelMessage, ModelResponse, ModelResponsePart, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Interlock, Run
from interlock.adapters.pydantic_ai import Durable, idempotency_key
from interlock.contracts import names
from interlock.contracts.payloads import RunInput
from interlock.testing import RunningApp
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call, prompt_of

HERE: dict[str, Any] = {"temporal": False}
"""The metadata of a tool that runs in the workflow."""


class Inner:
    """An agent for the prompts A and B. The first time, its model only answers A once B has looked."""

    def __init__(self) -> None:
        self.looked: list[str] = []
        self.keys: dict[str, list[str]] = {}
        self.asked = 0
        self._looked_for_b = asyncio.Event()
        model = FunctionModel(self._answer, model_name="scripted")
        self.agent = Agent(model, name="inner", capabilities=[Durable()], tools=[self.look])

    async def look(self, ctx: RunContext[None], at: str) -> str:
        self.looked.append(at)
        if at == "B":
            self._looked_for_b.set()
        self.keys.setdefault(at, []).append(idempotency_key(ctx))
        return f"saw {at}"

    async def both(self) -> Any:
        first, second = await asyncio.gather(self.agent.run("A"), self.agent.run("B"))
        return [first.output, second.output]

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked += 1
        who = prompt_of(messages)
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=[TextPart(f"answer for {who}")])
        if who == "A":
            await self._looked_for_b.wait()
        return ModelResponse(parts=[call("look", who, at=who)])


async def test_a_tool_that_calls_others_under_its_own_call_id_gives_each_a_place_and_a_key(run_app: Running) -> None:
    keys: list[str] = []

    def note(ctx: RunContext[None], what: str) -> str:
        keys.append(idempotency_key(ctx))
        return what

    async def twice(ctx: RunContext[None]) -> str:
        manager = ctx.tool_manager
        assert manager
        assert manager.tools
        for what in ("one", "two"):
            await manager.toolset.call_tool("note", {"what": what}, ctx, manager.tools["note"])
        return "noted"

    script = Script([call("twice", "t"), call("note", "n", what="three")], "done")
    async with run_app(Interlock([agent(script, tools=[note, Tool(twice, metadata=HERE)])])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=len((await run.journal()).steps) + 1))
        await fork.result()

        assert len(keys) == len(set(keys)) == 3


async def test_an_agent_that_runs_itself_has_places_of_its_own_for_it(run_app: Running) -> None:
    async def ask_myself() -> Any:
        return (await support.run(["Again?", BinaryContent(b"\xff", media_type="image/png")])).output

    def note(what: str) -> str:
        return what

    def again(messages: list[ModelMessage]) -> str | list[ModelResponsePart]:
        inside = "Again?" in str(messages[0])
        return [call("note", "n", what="inside")] if inside else [call("ask_myself", "a")]

    script = Script(again, "done")
    support = agent(script, tools=[note, Tool(ask_myself, metadata=HERE)])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")
        output = await run.result()
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=len((await run.journal()).steps) + 1))

        assert (await fork.result()).output == output.output == "done"
        assert script.calls == 4
        assert [step.rpartition("/")[0] for step in await steps_of(app, run)] == [
            "",
            "tool:1/1",
            "tool:1/1/tool:1",
            "tool:1/1",
            "",
        ]


def outer(inner: Inner) -> Interlock:
    script = Script([call("both", "1")], lambda messages: str(getattr(messages[-1].parts[0], "content", "")))
    return Interlock([agent(script, tools=[Tool(inner.both, metadata=HERE)]), inner.agent])


async def steps_of(app: RunningApp, run: Run) -> list[str]:
    history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    found = [event.activity_task_scheduled_event_attributes.header.fields for event in history.events]
    return [
        str(app.client.temporal.data_converter.payload_converter.from_payload(one[names.HEADER_STEP]))
        for one in found
        if one
    ]


async def forks(app: RunningApp, run: Run, positions: list[int]) -> AsyncIterator[tuple[int, Run]]:
    for at in positions:
        yield at, await app.client.fork(await app.client.plan_fork(run.id, at=at))


async def test_a_fork_gives_agents_that_run_side_by_side_their_own_results(run_app: Running) -> None:
    inner = Inner()
    async with run_app(outer(inner)) as app:
        run = await app.client.start("support", "go")
        output = (await run.result()).output
        last = len((await run.journal()).steps)
        assert inner.looked == ["B", "A"]
        async for at, fork in forks(app, run, [last + 1, last, last - 1, last - 3]):
            asked, looked = inner.asked, len(inner.looked)
            assert (await fork.result()).output == output == "['answer for A', 'answer for B']"
            if at > last:
                assert (inner.asked, len(inner.looked)) == (asked, looked)

        assert [len(set(keys)) for keys in inner.keys.values()] == [1, 1]
        assert set(inner.keys["A"]).isdisjoint(inner.keys["B"])


async def test_calls_of_agents_in_the_workflow_have_their_places_within_the_call_that_runs_them(
    run_app: Running,
) -> None:
    inner = Inner()
    async with run_app(outer(inner)) as app:
        run = await app.client.start("support", "go")
        await run.result()

        places = {step.rpartition("/")[0] for step in await steps_of(app, run)}
        assert places == {"", "tool:1/1", "tool:1/2", "tool:1/1/tool:1", "tool:1/2/tool:1"}


async def test_a_run_that_was_started_before_keeps_its_one_counter_and_can_be_forked(run_app: Running) -> None:
    inner = Inner()
    async with run_app(outer(inner)) as app:
        old = RunInput(agent="support", prompt="go")
        run = await app.client.start_run(f"old-{app.client.task_queue}", old)
        output = (await run.result()).output
        places = {step.partition("/")[0] for step in await steps_of(app, run)}
        assert places == {"", "tool:1", "tool:2", "tool:3"}
        plan = await app.client.plan_fork(run.id, at=len((await run.journal()).steps) + 1)
        assert not plan.run.options.places_by_answer
        fork = await app.client.fork(plan)

        assert (await fork.result()).output == output


class Dawdles(AbstractCapability[Any]):
    """A hook that makes the first call wait until the second has begun."""

    async def before_tool_execute(self, ctx: RunContext[Any], *, call: Any, tool_def: Any, args: Any) -> Any:
        if call.tool_call_id == "first":
            await asyncio.sleep(0.2)
        return args


@pytest.mark.parametrize("dawdles", [False, True])
async def test_a_hook_before_a_call_does_not_change_its_place(run_app: Running, dawdles: bool) -> None:
    ran: list[str] = []

    def note(what: str) -> str:
        ran.append(what)
        return what

    capabilities = [Dawdles()] if dawdles else []
    script = Script([call("note", "first", what="first"), call("note", "second", what="second")], "done")
    async with run_app(Interlock([agent(script, tools=[note], capabilities=capabilities)])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        assert (ran == ["second", "first"]) is dawdles or not dawdles
        history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
        steps = {step.arguments["what"]: step for step in (await run.journal()).steps if step.arguments}
        placed = {
            event.event_id: event.activity_task_scheduled_event_attributes.header.fields[names.HEADER_STEP].data
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        }

        assert [placed[steps[what].event_id][:7] for what in ("first", "second")] == [b'"tool:1', b'"tool:2']
