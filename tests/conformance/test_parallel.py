"""Calls that run side by side: whatever their timing, each has its own result, and its own answer."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

from interlock import RefusedError
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Desk, Framework, Made, Script, Tool, app_of, call
from tests.seeds import for_examples


@pytest.mark.parametrize("first", ["A-0", "A-1", "A-2"])
async def test_the_order_in_which_calls_end_changes_no_result(
    framework: Framework, run_app: RunApp, first: str
) -> None:
    keys: dict[str, str] = {}
    ended: list[str] = []
    others = asyncio.Event()

    async def look(made: Made) -> str:
        if made.order != first:
            await others.wait()
        ended.append(made.order)
        keys[made.order] = made.key
        others.set()
        return f"saw {made.order}"

    script = Script([call("look", f"l{n}", f"A-{n}") for n in range(3)], "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(name="look", body=look)]))) as app:
        run = await app.client.start("support", "go")
        await run.result()
        steps = [step for step in await run.steps() if step.kind == "tool"]

    assert ended[0] == first
    assert script.results() == {f"l{n}": f"saw A-{n}" for n in range(3)}
    assert [(step.arguments or {})["order"] for step in steps] == ["A-0", "A-1", "A-2"]
    assert [step.key for step in steps] == [keys[f"A-{n}"] for n in range(3)]
    assert len(set(keys.values())) == 3


@pytest.mark.parametrize("call_id", ["same", ""], ids=["shared", "empty"])
async def test_calls_that_share_a_call_id_do_not_trade_results(
    framework: Framework, run_app: RunApp, call_id: str
) -> None:
    desk = Desk()
    script = Script(
        [call("look", call_id, f"A-{n}") for n in range(3)], [call("look", call_id, "A-0")], lambda said: "done"
    )
    async with run_app(app_of(framework.agent(script, tools=[Tool(name="look", body=desk)]))) as app:
        run = await app.client.start("support", "go")
        await run.result()

    assert sorted(desk.orders) == ["A-0", "A-0", "A-1", "A-2"]
    assert [part.text for part in script.asked[1] if part.kind == "result"] == ["done A-0", "done A-1", "done A-2"]
    calls = [part.call_id for part in script.asked[-1] if part.kind == "call"]
    assert len(set(calls)) == 4
    assert [script.results()[one] for one in calls] == ["done A-0", "done A-1", "done A-2", "done A-0"]


@dataclass(frozen=True)
class Answer:
    verdict: str
    noise: bool


answers = st.lists(
    st.builds(Answer, verdict=st.sampled_from(["approve", "reject", "edit"]), noise=st.booleans()),
    min_size=1,
    max_size=6,
)


async def test_each_call_has_one_result_whatever_the_order_and_mix_of_answers(
    framework: Framework, run_app: RunApp
) -> None:
    desk = Desk()
    player = Script(lambda said: [call("refund", "same", f"A-{n}", 1.0) for n in range(int(said[0].text))], "done")
    build = app_of(framework.agent(player, tools=[Tool(body=desk, gated=True)]))
    async with run_app(build) as app:

        async def example(given: list[Answer], order: list[int]) -> None:
            desk.made.clear()
            player.asked.clear()
            run = await app.client.start("support", str(len(given)))
            requests = {request.arguments["order"]: request for request in await app.requests(run, len(given))}
            for n in [n for n in order if n < len(given)]:
                answer, request = given[n], requests[f"A-{n}"]
                edited: dict[str, Any] | None = {"order": f"A-{n}", "amount": 5.0} if answer.verdict == "edit" else None
                verdict: Any = "reject" if answer.verdict == "reject" else "approve"
                await run.decide(request.request_id, verdict, arguments=edited, digest=request.digest)
                if answer.noise:
                    with pytest.raises(RefusedError):
                        await run.decide(request.request_id, "approve")
            output = await run.result()

            amounts = {"approve": 1.0, "edit": 5.0}
            ran = [(f"A-{n}", amounts[one.verdict]) for n, one in enumerate(given) if one.verdict in amounts]
            assert sorted((made.order, made.amount) for made in desk.made) == ran
            told = [part.text.partition("\n")[0] for part in player.asked[-1] if part.kind == "result"]
            denied = framework.denied
            assert told == [denied if one.verdict == "reject" else f"done A-{n}" for n, one in enumerate(given)]
            calls = [part.call_id for part in player.asked[-1] if part.kind == "call"]
            results = [part.call_id for part in player.asked[-1] if part.kind == "result"]
            assert calls == results
            assert len(set(calls)) == len(given)
            assert (player.calls, output.usage.tool_calls) == (2, len(ran))

        await for_examples(example, answers, st.permutations(range(6)), count=6)
