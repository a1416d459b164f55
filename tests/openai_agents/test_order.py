"""No timing of what runs around and inside of calls changes which result, key or answer belongs to which call."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agents import (
    AgentHooks,
    RunHooks,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolOutputGuardrail,
    function_tool,
)
from agents.tool_context import ToolContext
from hypothesis import strategies as st

from interlock import Interlock
from interlock.adapters.openai_agents import idempotency_key
from interlock.contracts.canonical import digest
from interlock.server import EmbeddedServer
from tests.conformance.conftest import app_runner
from tests.openai_agents.scripts import Script, agent, answers_in, call
from tests.seeds import for_examples

PLACES = [
    "predicate",
    "input guardrail",
    "agent start",
    "run start",
    "body",
    "agent end",
    "run end",
    "output guardrail",
]
"""Where a call can be late."""


@dataclass(frozen=True)
class Made:
    """One call of an answer. inside: whether an agent that is a tool makes it. gated: whether somebody is asked.
    late: in which places, and by how much."""

    call_id: str
    inside: bool
    gated: bool
    late: Mapping[str, int]


made = st.builds(
    Made,
    call_id=st.sampled_from(["same", "same", "", "other"]),
    inside=st.booleans(),
    gated=st.booleans(),
    late=st.dictionaries(st.sampled_from(PLACES), st.integers(1, 3), max_size=4),
)


@dataclass
class Clock:
    """Lets calls be late. keys: that the bodies saw, by order."""

    calls: Sequence[Made] = ()
    keys: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def of(self, order: str) -> Made:
        return self.calls[int(order.removeprefix("A-"))]

    async def wait(self, place: str, ctx: Any) -> None:
        arguments = json.loads(ctx.tool_arguments)
        if "order" in arguments:  # Not of the call that runs an agent.
            await asyncio.sleep(0.02 * self.of(arguments["order"]).late.get(place, 0))


def build(clock: Clock) -> Interlock:
    """An agent that looks at orders, and has another agent look."""

    async def gated(ctx: Any, arguments: dict[str, Any], call_id: str) -> bool:
        await clock.wait("predicate", ctx)
        return clock.of(arguments["order"]).gated

    def guardrail(place: str) -> Any:
        async def guard(data: Any) -> ToolGuardrailFunctionOutput:
            await clock.wait(place, data.context)
            return ToolGuardrailFunctionOutput.allow()

        return guard

    @function_tool(
        needs_approval=gated,
        tool_input_guardrails=[ToolInputGuardrail(guardrail("input guardrail"))],
        tool_output_guardrails=[ToolOutputGuardrail(guardrail("output guardrail"))],
    )
    async def look(ctx: ToolContext[Any], order: str) -> str:
        await clock.wait("body", ctx)
        clock.keys[order].append(idempotency_key(ctx))
        return f"saw {order}"

    class OfAgent(AgentHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            await clock.wait("agent start", context)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            await clock.wait("agent end", context)

    class OfRun(RunHooks[Any]):
        async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
            await clock.wait("run start", context)

        async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
            await clock.wait("run end", context)

    def calls(items: list[Any]) -> list[Any]:
        return [
            call("ask", one.call_id, input=f"A-{n}") if one.inside else call("look", one.call_id, order=f"A-{n}")
            for n, one in enumerate(clock.calls)
        ]

    def asks(items: list[Any]) -> list[Any]:
        return [call("look", "same", order=items[0]["content"])]

    hooks = OfAgent()
    inner = agent(Script(asks, lambda items: str(items[-1]["output"])), name="inner", tools=[look], hooks=hooks)
    tools: list[Any] = [look, inner.as_tool("ask", "")]
    return Interlock([agent(Script(calls, told), tools=tools, hooks=hooks)], run_hooks=OfRun())


def told(items: list[Any]) -> str:
    """What the model was told, in its order, with the call that it belongs to."""
    assert answers_in(items) == 1
    orders = {one["call_id"]: next(iter(json.loads(one["arguments"]).values())) for one in items if "arguments" in one}
    return json.dumps([[orders[one["call_id"]], one["output"]] for one in items if "output" in one])


async def test_no_delay_changes_which_result_key_or_answer_is_whose(server: EmbeddedServer) -> None:
    clock = Clock()
    async with app_runner(server, 0)(build(clock)) as app:

        async def example(calls: list[Made], order: list[int]) -> None:
            clock.calls = calls
            clock.keys.clear()
            run = await app.client.start("support", "go")
            gated = [n for n in order if n < len(calls) and calls[n].gated]
            if gated:
                requests = {one.arguments["order"]: one for one in await app.requests(run, len(gated))}
                for n in gated:
                    await run.decide(
                        requests[f"A-{n}"].request_id,
                        "reject" if n % 2 else "approve",
                        reason=f"no {n}" if n % 2 else "",
                        digest=requests[f"A-{n}"].digest,
                    )
            output = await run.result()
            steps = [step for step in await run.steps() if step.kind == "tool"]
            first = (await app.client.temporal.get_workflow_handle(run.id).describe()).run_id

            rejected = {n for n in gated if n % 2}
            results = [f"no {n}" if n in rejected else f"saw A-{n}" for n in range(len(calls))]
            assert json.loads(output.output) == [[f"A-{n}", result] for n, result in enumerate(results)]
            ran = [n for n in range(len(calls)) if n not in rejected]
            assert {n: len(clock.keys[f"A-{n}"]) for n in ran} == dict.fromkeys(ran, 1)
            keys = {order: key for order, (key,) in clock.keys.items() if key}
            assert len(set(keys.values())) == len(ran)
            assert {(step.arguments or {})["order"]: step.key for step in steps} == keys
            for n in ran:
                if not calls[n].inside:  # Its place is the model's, not that of its beginning or its end.
                    assert keys[f"A-{n}"] == digest([first, n + 1])[:32]

        await for_examples(example, st.lists(made, min_size=2, max_size=4), st.permutations(range(4)), count=5)
