"""Any order and mix of answers over parallel calls."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai import Tool
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from interlock import Interlock, RefusedError
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


@dataclass(frozen=True)
class Answer:
    verdict: str
    noise: bool


answers = st.lists(
    st.builds(Answer, verdict=st.sampled_from(["approve", "reject", "edit"]), noise=st.booleans()),
    min_size=1,
    max_size=8,
)


def check_transcript(messages: list[ModelMessage]) -> None:
    """What model providers demand: each answer's calls get exactly one result each, in the next message."""
    for message, following in pairwise(messages):
        if isinstance(message, ModelResponse):
            assert isinstance(following, ModelRequest)
            asked = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
            told = [part.tool_call_id for part in following.parts if isinstance(part, ToolReturnPart)]
            assert told == asked
            assert len(set(asked)) == len(asked)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given_answers=answers, data=st.data())
async def test_each_call_has_one_result_whatever_the_order_and_mix_of_answers(
    run_app: Running, given_answers: list[Answer], data: st.DataObject
) -> None:
    ran: list[tuple[int, str]] = []

    def act(n: int, note: str) -> str:
        ran.append((n, note))
        return f"ran {n} {note}"

    count = len(given_answers)
    order = data.draw(st.permutations(range(count)), label="order of answers")
    script = Script([call("act", "same", n=n, note="asked") for n in range(count)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(act, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        requests = {request.arguments["n"]: request for request in await app.requests(run, count)}
        for n in order:
            answer, request = given_answers[n], requests[n]
            edited: dict[str, Any] | None = {"n": n, "note": "edited"} if answer.verdict == "edit" else None
            verdict: Any = "reject" if answer.verdict == "reject" else "approve"
            await run.decide(request.request_id, verdict, arguments=edited, digest=request.digest)
            if answer.noise:
                await refused(run, request.request_id)
        output = await run.result()

    expected = {"approve": "ran {n} asked", "edit": "ran {n} edited", "reject": "The tool call was denied."}
    told = [part.content for part in script.asked[-1][2].parts if isinstance(part, ToolReturnPart)]
    assert told == [expected[answer.verdict].format(n=n) for n, answer in enumerate(given_answers)]
    notes = {"approve": "asked", "edit": "edited"}
    assert sorted(ran) == [(n, notes[one.verdict]) for n, one in enumerate(given_answers) if one.verdict in notes]
    assert script.calls == 2
    assert output.usage.tool_calls == len(ran)
    check_transcript(script.asked[-1])


async def refused(run: Any, request_id: str) -> None:
    try:
        await run.decide(request_id, "approve")
    except RefusedError:
        return
    raise AssertionError("a second answer was accepted")
