"""What agents of the OpenAI Agents SDK have and agents of others do not: handoffs, guardrails, hooks, contexts."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    AgentOutputSchemaBase,
    GuardrailFunctionOutput,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunHooks,
    Runner,
    ToolGuardrailFunctionOutput,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    tool_input_guardrail,
    tool_output_guardrail,
)
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from pydantic import BaseModel

from interlock import Interlock, RunFailedError
from interlock.contracts import names
from interlock.testing import RunningApp
from interlock.worker import make_replayer
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call


@dataclass
class Visit:
    user: str
    orders: list[str] = field(default_factory=list)
    notes: int = 0


async def replays(app: RunningApp, build: Interlock, run: Any) -> None:
    history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
    assert failed_tasks(history) == []
    await make_replayer(build).replay_workflow(history)


async def test_what_a_tool_changes_in_the_context_comes_back_to_the_run(run_app: Running) -> None:
    @function_tool
    def note(ctx: RunContextWrapper[Visit], order: str) -> str:
        ctx.context.orders.append(order)
        return ctx.context.user

    @function_tool
    def count(ctx: RunContextWrapper[Visit]) -> str:
        ctx.context.notes += 1
        return "counted"

    script = Script([call("note", "a", order="A-1"), call("count", "b")], [call("note", "c", order="A-2")], "done")

    def instructions(ctx: RunContextWrapper[Visit], _: Agent[Visit]) -> str:
        return f"{ctx.context.orders} {ctx.context.notes}"

    build = Interlock([agent(script, tools=[note, count], instructions=instructions)])
    async with run_app(build) as app:
        run = await app.client.start("support", "go", deps={"user": "ann"})
        await run.result()

        assert script.instructions == ["[] 0", "['A-1'] 1", "['A-1', 'A-2'] 1"]
        assert script.results()["a"] == "ann"
        await replays(app, build, run)


async def test_two_calls_that_change_the_same_field_are_reported(run_app: Running) -> None:
    @function_tool
    async def note(ctx: RunContextWrapper[Visit], order: str) -> str:
        ctx.context.orders.append(order)
        return "noted"

    script = Script([call("note", "a", order="A-1"), call("note", "b", order="A-2")], "done")
    async with run_app(Interlock([agent(script, tools=[note])])) as app:
        run = await app.client.start("support", "go", deps={"user": "ann"})
        with pytest.raises(RunFailedError, match="changed orders in the run's context, and so did a call") as failed:
            await run.result()

        assert failed.value.error_type == "ContextConflictError"


async def test_a_context_that_does_not_fit_is_refused_by_field(run_app: Running) -> None:
    @function_tool
    def note(ctx: RunContextWrapper[Visit]) -> str:
        return ""

    async with run_app(Interlock([agent(Script("done"), tools=[note])])) as app:
        run = await app.client.start("support", "go", deps={"orders": 5})
        with pytest.raises(RunFailedError, match=r"do not fit the context type Visit: .*user") as failed:
            await run.result()

        assert failed.value.error_type == "InvalidInputError"


async def test_a_run_is_handed_over_with_its_callback_and_the_next_agent_has_its_own_tools(run_app: Running) -> None:
    told: list[str] = []

    def on_handoff(ctx: RunContextWrapper[Visit]) -> None:
        told.append(ctx.context.user)
        ctx.context.notes = 7

    @function_tool(needs_approval=True)
    def refund(ctx: RunContextWrapper[Visit], order: str) -> str:
        return f"{order} {ctx.context.notes}"

    billing = agent(Script([], [call("refund", "b", order="A-1")], "paid back"), name="billing", tools=[refund])
    front = agent(Script([call("transfer_to_billing", "a")]), handoffs=[handoff(billing, on_handoff=on_handoff)])
    build = Interlock([front])
    async with run_app(build) as app:
        run = await app.client.start("support", "go", deps={"user": "ann"})
        (request,) = await app.requests(run, 1)
        assert (request.agent_path, request.tool) == (("support", "billing"), "refund")
        await run.decide(request.request_id, "approve")

        assert (await run.result()).output == "paid back"
        assert told == ["ann"]
        assert billing.model.results()["b"] == "A-1 7"  # type: ignore[union-attr]
        await replays(app, build, run)


async def test_agents_may_hand_over_in_a_circle(run_app: Running) -> None:
    one = agent(Script([call("transfer_to_two", "a")], [], [call("transfer_to_two", "c")]), name="one")
    two = agent(Script([], [call("transfer_to_one", "b")], [], "end"), name="two", handoffs=[one])
    one.handoffs = [two]
    build = Interlock([one])
    async with run_app(build) as app:
        run = await app.client.start("one", "go")

        assert (await run.result()).output == "end"
        await replays(app, build, run)


async def test_three_levels_of_agents_are_steps_of_one_run_and_the_innermost_call_waits(run_app: Running) -> None:
    ran: list[str] = []

    @function_tool(needs_approval=True)
    def refund(order: str) -> str:
        ran.append(order)
        return "paid"

    deep = agent(Script([call("refund", "a", order="A-1")], "deep"), name="deep", tools=[refund])
    middle = agent(
        Script([call("ask_deep", "a", input="x")], "middle"), name="middle", tools=[deep.as_tool("ask_deep", "")]
    )
    top = agent(Script([call("ask_middle", "a", input="x")], "top"), tools=[middle.as_tool("ask_middle", "")])
    build = Interlock([top])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert request.agent_path == ("support", "middle", "deep")
        await run.decide(request.request_id, "approve")

        output = await run.result()
        assert (output.output, output.usage.requests, output.usage.tool_calls) == ("top", 6, 3)
        assert ran == ["A-1"]
        assert [one.model.calls for one in (top, middle, deep)] == [2, 2, 2]  # type: ignore[union-attr]
        await replays(app, build, run)


class Seen(AgentHooks[Any]):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_start(self, context: Any, agent: Any) -> None:
        self.seen.append(f"start {agent.name}")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.seen.append(f"tool {tool.name} {context.tool_arguments}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self.seen.append(f"result {result}")

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        self.seen.append(f"end {output}")


async def test_each_hook_is_called_once_whatever_is_replayed(run_app: Running) -> None:
    @function_tool
    def look(order: str) -> str:
        return "broken"

    hooks = Seen()
    build = Interlock([agent(Script([call("look", "a", order="A-1")], "done"), tools=[look], hooks=hooks)])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await replays(app, build, run)

        assert hooks.seen == ["start support", 'tool look {"order":"A-1"}', "result broken", "end done"]


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_a_hook_gets_an_answer_that_does_not_quite_fit_as_the_run_does(run_app: Running) -> None:
    seen: list[Any] = []

    class Watches(AgentHooks[Any]):
        async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
            seen.append((type(response).__name__, response.output[0].status, response.output[0].content[0].text))

    text = ResponseOutputText(type="output_text", text="done", annotations=[])
    odd = ResponseOutputMessage.model_construct(
        id="m", type="message", role="assistant", status="finished", content=[text]
    )
    async with run_app(Interlock([agent(Script([odd]), hooks=Watches())])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert seen == [("ModelResponse", "finished", "done")]


async def test_a_hook_that_is_set_on_its_object_is_called(run_app: Running) -> None:
    seen: list[str] = []
    hooks: AgentHooks[Any] = AgentHooks()

    async def on_start(context: Any, agent: Any) -> None:
        seen.append(agent.name)

    hooks.on_start = on_start  # type: ignore[method-assign]
    async with run_app(Interlock([agent(Script("done"), hooks=hooks)])) as app:
        await (await app.client.start("support", "go")).result()

    assert seen == ["support"]


class Polite(Agent[Any]):
    """An agent of a user's own class, which takes other arguments."""

    def __init__(self, script: Script) -> None:
        super().__init__(name="support", model=script, instructions="Help.")

    async def get_system_prompt(self, run_context: RunContextWrapper[Any]) -> str | None:
        return f"{await super().get_system_prompt(run_context)} Be polite."


async def test_an_agent_of_a_class_of_the_users_runs(run_app: Running) -> None:
    script = Script("done")
    async with run_app(Interlock([Polite(script)])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert script.instructions == ["Help. Be polite."]


class Shouted(AgentOutputSchemaBase):
    """An output schema of a user's own."""

    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "Shouted"

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object"}

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return json_str.upper()


async def test_an_output_schema_of_the_users_is_told_to_the_model_and_reads_its_answer(run_app: Running) -> None:
    told: list[tuple[str, dict[str, Any], bool]] = []

    class Told(Script):
        async def get_response(self, *args: Any, **named: Any) -> Any:
            schema = named["output_schema"]
            told.append((schema.name(), schema.json_schema(), schema.is_strict_json_schema()))
            return await super().get_response(*args, **named)

    one = agent(Told('{"a": "b"}'), output_type=Shouted())
    async with run_app(Interlock([one])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == '{"A": "B"}'

    assert told == [("Shouted", {"type": "object"}, False)]


async def test_an_agent_that_hands_over_is_told_to_whom(run_app: Running) -> None:
    seen: list[tuple[str, str, str]] = []

    class Watches(AgentHooks[Any]):
        def __init__(self, owner: str) -> None:
            self.owner = owner

        async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
            seen.append((self.owner, agent.name, source.name))

    billing = agent(Script([call("transfer_to_billing", "h")], "done"), name="billing", hooks=Watches("billing"))
    hooks = Watches("support")
    support = agent(Script([call("transfer_to_billing", "h")]), handoffs=[billing], hooks=hooks)
    async with run_app(Interlock([support])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert seen == [("support", "billing", "support")]


@pytest.mark.parametrize("in_parallel", [True, False])
async def test_an_input_guardrail_ends_the_run(run_app: Running, in_parallel: bool) -> None:
    @input_guardrail(run_in_parallel=in_parallel)
    async def no_fruit(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput({"given": given}, tripwire_triggered="apple" in str(given))

    build = Interlock([agent(Script("done"), input_guardrails=[no_fruit])])
    async with run_app(build) as app:
        assert (await (await app.client.start("support", "pear")).result()).output == "done"
        run = await app.client.start("support", "apple")
        with pytest.raises(RunFailedError) as failed:
            await run.result()

        assert failed.value.error_type == "InputGuardrailTripwireTriggered"
        await replays(app, build, run)


class Price(BaseModel):
    amount: float


async def test_an_output_guardrail_sees_the_output_in_its_type(run_app: Running) -> None:
    seen: list[Any] = []

    @output_guardrail
    def look(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        seen.append(output)
        return GuardrailFunctionOutput(None, tripwire_triggered=output.amount > 100)

    build = Interlock([agent(Script(lambda items: items[0]["content"]), output_type=Price, output_guardrails=[look])])
    async with run_app(build) as app:
        assert (await (await app.client.start("support", '{"amount": 5}')).result()).output == {"amount": 5.0}
        assert seen == [Price(amount=5.0)]
        with pytest.raises(RunFailedError) as failed:
            await (await app.client.start("support", '{"amount": 500}')).result()

        assert failed.value.error_type == "OutputGuardrailTripwireTriggered"


async def test_tool_guardrails_stop_a_call_before_a_person_is_asked_and_replace_what_it_returns(
    run_app: Running,
) -> None:
    ran: list[str] = []

    @tool_input_guardrail
    def small(data: Any) -> ToolGuardrailFunctionOutput:
        if "900" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("too much")
        return ToolGuardrailFunctionOutput.allow()

    @tool_output_guardrail
    async def no_names(data: Any) -> ToolGuardrailFunctionOutput:
        if "ann" in data.output:
            return ToolGuardrailFunctionOutput.reject_content("a name")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(needs_approval=True, tool_input_guardrails=[small], tool_output_guardrails=[no_names])
    def refund(amount: int) -> str:
        ran.append(str(amount))
        return "paid to ann"

    script = Script([call("refund", "a", amount=900), call("refund", "b", amount=5)], "done")
    build = Interlock([agent(script, tools=[refund])])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"amount": 5}
        await run.decide(request.request_id, "approve")
        output = await run.result()

        assert ran == ["5"]
        assert script.results() == {"a": "too much", "b": "a name"}
        assert output.usage.tool_calls == 1
        await replays(app, build, run)


async def test_an_agent_behaves_as_its_frameworks_own_outside_of_a_run() -> None:
    from agents import Runner

    @function_tool(needs_approval=True)
    def refund(order: str) -> str:
        return "paid"

    one = agent(Script([call("refund", "a", order="A-1")], "done"), tools=[refund])
    Interlock([one])
    result = await asyncio.wait_for(Runner.run(one, "go"), 5)

    assert [item.name for item in result.interruptions] == ["refund"]


class SeenByRun(RunHooks[Any]):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.seen.append(("start", agent.name))

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.seen.append(("answer", agent.name, response.usage.input_tokens))

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self.seen.append(("handoff", from_agent.name, to_agent.name))

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.seen.append(("end", agent.name, output))


async def test_what_the_runner_would_be_given_holds_for_every_run_of_the_app(run_app: Running) -> None:
    @input_guardrail
    def no_fruit(ctx: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(None, tripwire_triggered=given == "apple")

    script = Script([call("transfer_to_billing", "a")], "paid back")
    billing = Agent(name="billing")
    config = RunConfig(model=script, input_guardrails=[no_fruit], model_settings=ModelSettings(temperature=0.5))
    hooks = SeenByRun()
    build = Interlock([Agent(name="support", handoffs=[billing])], run_config=config, run_hooks=hooks)
    async with run_app(build) as app:
        run = await app.client.start("support", "go", model_settings={"top_p": 0.2})

        assert (await run.result()).output == "paid back"
        assert hooks.seen == [
            ("start", "support"),
            ("answer", "support", 5),
            ("handoff", "support", "billing"),
            ("start", "billing"),
            ("answer", "billing", 5),
            ("end", "billing", "paid back"),
        ]
        settings = script.settings[-1]
        assert (settings.temperature, settings.top_p) == (0.5, 0.2)
        await replays(app, build, run)
        with pytest.raises(RunFailedError) as failed:
            await (await app.client.start("support", "apple")).result()
        assert failed.value.error_type == "InputGuardrailTripwireTriggered"


@pytest.mark.parametrize("slow", ["hook", "guardrail", "predicate"])
async def test_whatever_time_comes_before_a_call_it_keeps_its_place_and_its_result(run_app: Running, slow: str) -> None:
    """The first call waits in a function of the user's until the second one has run."""
    ran: list[str] = []
    second = asyncio.Event()

    async def dawdle(what: str, arguments: str) -> None:
        if what == slow and "first" in arguments:
            await second.wait()

    class Hooks(AgentHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            await dawdle("hook", context.tool_arguments)

    @tool_input_guardrail
    async def guard(data: Any) -> ToolGuardrailFunctionOutput:
        await dawdle("guardrail", data.context.tool_arguments)
        return ToolGuardrailFunctionOutput.allow()

    async def asks(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
        await dawdle("predicate", str(arguments))
        return False

    @function_tool(tool_input_guardrails=[guard], needs_approval=asks)
    async def note(what: str) -> str:
        ran.append(what)
        second.set()
        return f"noted {what}"

    script = Script([call("note", "a", what="first"), call("note", "b", what="second")], "done")
    build = Interlock([agent(script, tools=[note], hooks=Hooks())])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
        placed = {
            event.event_id: event.activity_task_scheduled_event_attributes.header.fields[names.HEADER_STEP].data
            for event in history.events
            if event.HasField("activity_task_scheduled_event_attributes")
        }
        steps = {step.arguments["what"]: step for step in (await run.journal()).steps if step.arguments}
        await replays(app, build, run)

    assert ran == ["second", "first"]
    assert script.results() == {"a": "noted first", "b": "noted second"}
    assert [placed[steps[what].event_id][:7] for what in ("first", "second")] == [b'"tool:1', b'"tool:2']


class Seeing(Script):
    """Remembers what its requests offer: the tools, the handoffs and the stored prompt."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.offered: list[tuple[list[str], list[str], Any]] = []

    async def get_response(self, *args: Any, **named: Any) -> Any:
        offered = [tool.name for tool in named["tools"]], [one.tool_name for one in named["handoffs"]]
        self.offered.append((*offered, named["prompt"]))
        return await super().get_response(*args, **named)


async def test_what_is_offered_and_the_prompt_are_asked_for_as_often_as_outside_whatever_is_replayed(
    run_app: Running,
) -> None:
    """Each function says something else whenever it is asked."""

    def made() -> tuple[Seeing, Agent[Any], list[str]]:
        asked: list[str] = []

        def is_enabled(ctx: Any, agent: Any) -> bool:
            asked.append("tool")
            return asked.count("tool") % 2 == 1

        def may_hand_over(ctx: Any, agent: Any) -> bool:
            asked.append("handoff")
            return asked.count("handoff") % 2 == 0

        def prompt(data: Any) -> Any:
            asked.append("prompt")
            return {"id": f"prompt-{asked.count('prompt')}"}

        @function_tool(is_enabled=is_enabled)
        def look(order: str) -> str:
            return "broken"

        @function_tool
        def pay(order: str) -> str:
            return "paid"

        script = Seeing([call("pay", "a", order="A-1")], [call("pay", "b", order="A-2")], "done")
        others = [handoff(agent(Script("never"), name="billing"), is_enabled=may_hand_over)]
        return script, agent(script, tools=[look, pay], handoffs=others, prompt=prompt), asked

    outside, one, asked_outside = made()
    await Runner.run(one, "go")
    inside, other, asked = made()
    build = Interlock([other])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await replays(app, build, run)

    assert inside.offered == outside.offered
    assert len({str(offered) for offered in inside.offered}) == 3
    assert sorted(asked) == sorted(asked_outside)


def usages() -> tuple[Agent[Any], list[str]]:
    """An agent whose functions note what has been used when each is called."""
    seen: list[str] = []

    def note(what: str, ctx: Any) -> None:
        seen.append(f"{what}: {ctx.usage.requests} requests, {ctx.usage.input_tokens} + {ctx.usage.output_tokens}")

    class Hooks(AgentHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            note("hook", context)

        async def on_end(self, context: Any, agent: Any, output: Any) -> None:
            note("end", context)

    def instructions(ctx: Any, agent: Any) -> str:
        note("instructions", ctx)
        return ""

    @tool_input_guardrail
    def guard(data: Any) -> ToolGuardrailFunctionOutput:
        note("guardrail", data.context)
        return ToolGuardrailFunctionOutput.allow()

    @output_guardrail
    def last(ctx: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        note("output", ctx)
        return GuardrailFunctionOutput(None, tripwire_triggered=False)

    @function_tool(tool_input_guardrails=[guard])
    def look(ctx: RunContextWrapper[Any], order: str) -> str:
        note("tool", ctx)
        return "broken"

    script = Script([call("look", "a", order="A-1")], "done")
    options: dict[str, Any] = {"instructions": instructions, "hooks": Hooks(), "output_guardrails": [last]}
    return agent(script, tools=[look], **options), seen


async def test_the_users_functions_see_what_the_run_has_used_as_they_do_outside(run_app: Running) -> None:
    one, outside = usages()
    await Runner.run(one, "go")
    other, inside = usages()
    build = Interlock([other])
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await replays(app, build, run)

    assert sorted(inside) == sorted(outside)
    assert "tool: 1 requests, 5 + 2" in inside
    assert "end: 2 requests, 10 + 4" in inside
