"""The path through the real SDK client over HTTP: both APIs of OpenAI, plain and streamed."""

import asyncio
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, RunFailedError, Settings
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts.payloads import RunOutput
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.conftest import Running
from tests.openai_api import (
    OpenAIAPI,
    Script,
    Turn,
    answer,
    attempts,
    call,
    cut,
    dropped,
    error,
    malformed,
    reply,
    slow,
)
from tests.workflows.streamed import said

ONCE = Retries(model=RetryPolicy(maximum_attempts=1))
TWICE = Retries(
    model=RetryPolicy(
        initial_interval=timedelta(milliseconds=10), maximum_interval=timedelta(minutes=1), maximum_attempts=2
    )
)

PASSING: dict[str, Turn] = {
    "408": error(408),
    "409": error(409),
    "429": error(429),
    "500": error(500),
    "503": error(503),
    "dropped": dropped(),
    "broken off": cut("some words of an answer"),
    "malformed": malformed(),
}
STREAMED_PASSING: dict[str, Turn] = {"an error in the stream": cut("some words of an answer", how="error")}

REFUSED = {
    "400": (error(400), "ModelRequestRejectedError"),
    "401": (error(401), "ModelAuthenticationError"),
    "404": (error(404, code="model_not_found"), "ModelNotFoundError"),
    "422": (error(422), "ModelRequestRejectedError"),
    "quota": (error(429, code="insufficient_quota"), "ModelQuotaExceededError"),
}

NO_ANSWERS: dict[str, Turn] = {
    "malformed": malformed(),
    "a web page": reply("<html></html>", 200, "text/html"),
    "an error as an answer": reply({"error": {"message": "no", "type": "server_error"}}),
    "an empty object": reply({}),
    "a list": reply([]),
    "no items": answer(),
}


@dataclass(frozen=True)
class Kind:
    """One of the APIs, plain or streamed."""

    api: OpenAIAPI
    model: Callable[..., Any]
    path: str
    streamed: bool

    def agent(self, script: Script, *, name: str = "support", **options: Any) -> Agent[Any, Any]:
        """An agent whose model the script plays, over HTTP."""
        model = self.model(script.model, provider=OpenAIProvider(openai_client=self.api.client()))
        durable = Durable(event_stream_handler=read_all) if self.streamed else Durable()
        return Agent(model, name=name, capabilities=[durable], **options)


@pytest.fixture(params=["responses", "responses-streamed", "chat", "chat-streamed"])
def kind(openai_api: OpenAIAPI, request: pytest.FixtureRequest) -> Kind:
    api, _, streamed = request.param.partition("-")
    if api == "chat":
        return Kind(openai_api, OpenAIChatModel, "/v1/chat/completions", bool(streamed))
    return Kind(openai_api, OpenAIResponsesModel, "/v1/responses", bool(streamed))


async def read_all(ctx: RunContext[Any], events: AsyncIterable[Any]) -> None:
    async for _ in events:
        pass


def look(order: str) -> str:
    return f"seen {order}"


async def outcome(app: RunningApp, agent: str) -> RunOutput | RunFailedError:
    """How a run of the agent ends."""
    run = await app.client.start(agent, "go")
    try:
        async with asyncio.timeout(60):
            return await run.result()
    except RunFailedError as failed:
        return failed


async def test_calls_and_answers_go_over_http_and_usage_counts_once(run_app: Running, kind: Kind) -> None:
    script = kind.api.script(
        [call("look", "a", order="A-1"), call("look", "b", order="A-2")],
        answer("all is well", input_tokens=30, output_tokens=7),
    )
    async with run_app(Interlock([kind.agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go")
        output = await run.result()

        assert output.output == "all is well"
        assert script.requests[-1].results == {"a": "seen A-1", "b": "seen A-2"}
        assert (output.usage.requests, output.usage.input_tokens, output.usage.output_tokens) == (2, 40, 12)
        assert {(request.path, request.streams) for request in kind.api.requests} == {(kind.path, kind.streamed)}
        models = [step for step in await run.steps() if step.kind == "model"]
        assert [step.summary for step in models] == ["model scripted, turn 1", "model scripted, turn 2"]
        assert script.calls == 2


async def test_a_worker_that_takes_over_asks_for_no_answer_again(server: EmbeddedServer, kind: Kind) -> None:
    looked: list[str] = []

    def look(order: str) -> str:
        looked.append(order)
        return order

    script = kind.api.script([call("look", "a", order="A-1")], [call("confirm", "c")], "done")
    confirm = Tool(lambda: "yes", name="confirm", requires_approval=True)
    app = Interlock([kind.agent(script, tools=[look, confirm])])
    async with running(app, server) as first:
        run = await first.client.start("support", "go")
        await first.requests(run, 1)
        task_queue = first.client.task_queue
    async with running(app, server, task_queue=task_queue) as second:
        run = second.client.attach(run.id)
        await run.decide("1", "approve")
        output = await run.result()

        assert (output.output, output.usage.requests, output.usage.input_tokens) == ("done", 3, 30)
        assert (script.calls, looked) == (3, ["A-1"])


async def test_runs_at_once_with_the_same_call_ids_do_not_mix(server: EmbeddedServer, kind: Kind) -> None:
    script = kind.api.script(
        lambda request: [call("look", "a", order=request.prompt)], lambda request: request.results["a"]
    )
    async with running(Interlock([kind.agent(script, tools=[look])]), server) as app:
        runs = [await app.client.start("support", f"A-{n}") for n in range(3)]
        outputs = await asyncio.gather(*(run.result() for run in runs))

        assert [output.output for output in outputs] == ["seen A-0", "seen A-1", "seen A-2"]


async def test_no_attempt_is_made_before_the_provider_says(server: EmbeddedServer, kind: Kind) -> None:
    waits = {
        "seconds": kind.api.script(attempts(error(429, retry_after=2), "done"), model="seconds"),
        "milliseconds": kind.api.script(attempts(error(503, retry_after_ms=1_800), "done"), model="milliseconds"),
    }
    agents = [kind.agent(script, name=name) for name, script in waits.items()]
    async with running(Interlock(agents, retries=TWICE), server) as app:
        await asyncio.gather(*(outcome(app, name) for name in waits))

        gaps = {name: script.requests[1].at - script.requests[0].at for name, script in waits.items()}
        assert gaps["seconds"] >= 2
        assert gaps["milliseconds"] >= 1.8


async def test_what_passes_is_tried_again_and_counts_once(server: EmbeddedServer, kind: Kind) -> None:
    turns = {**PASSING, **(STREAMED_PASSING if kind.streamed else {})}
    scripts = {name: kind.api.script(attempts(turn, "done"), model=name) for name, turn in turns.items()}
    agents = [kind.agent(script, name=name) for name, script in scripts.items()]
    async with running(Interlock(agents, retries=TWICE), server) as app:
        ends = await asyncio.gather(*(outcome(app, name) for name in scripts))

        told = [(end.output, end.usage.requests, end.usage.input_tokens) for end in ends if isinstance(end, RunOutput)]
        assert told == [("done", 1, 10)] * len(turns)
        assert {name: script.calls for name, script in scripts.items()} == dict.fromkeys(turns, 2)


async def test_what_is_refused_is_not_tried_again(server: EmbeddedServer, kind: Kind) -> None:
    scripts = {name: kind.api.script(turn, model=name) for name, (turn, _) in REFUSED.items()}
    agents = [kind.agent(script, name=name) for name, script in scripts.items()]
    async with running(Interlock(agents), server) as app:
        ends = dict(zip(scripts, await asyncio.gather(*(outcome(app, name) for name in scripts)), strict=True))

        types = {name: end.error_type for name, end in ends.items() if isinstance(end, RunFailedError)}
        assert types == {name: kind for name, (_, kind) in REFUSED.items()}
        assert {name: script.calls for name, script in scripts.items()} == dict.fromkeys(REFUSED, 1)


async def test_what_is_no_answer_ends_the_run_with_a_type(server: EmbeddedServer, kind: Kind) -> None:
    scripts = {name: kind.api.script(turn, turn, model=name) for name, turn in NO_ANSWERS.items()}
    agents = [kind.agent(script, name=name) for name, script in scripts.items()]
    async with running(Interlock(agents, retries=TWICE), server) as app:
        ends = await asyncio.gather(*(outcome(app, name) for name in scripts))

        assert {type(end) for end in ends} == {RunFailedError}
        types = {end.error_type for end in ends if isinstance(end, RunFailedError)}
        assert types <= {"ModelAPIError", "ModelServerError", "UnexpectedModelBehavior", "TypeError", "AttributeError"}
        assert max(script.calls for script in scripts.values()) <= 2


async def test_a_run_stuck_over_a_malformed_answer_asks_again_when_told(server: EmbeddedServer, kind: Kind) -> None:
    script = kind.api.script([call("look", "a", order="A-1")], attempts(malformed(), "done"))
    app = Interlock([kind.agent(script, tools=[look])], settings=Settings(stuck_seconds=3_600), retries=ONCE)
    async with running(app, server) as worker:
        run = await worker.client.start("support", "go")
        state = await worker.state(run, lambda state: len(state.stuck) == 1)
        await run.retry()
        output = await run.result()

        assert [(step.kind, step.error_type) for step in state.stuck] == [("model", "ModelAPIError")]
        assert (output.output, output.usage.requests, script.calls) == ("done", 2, 3)


async def test_a_run_is_cancelled_while_the_model_is_slow(server: EmbeddedServer, openai_api: OpenAIAPI) -> None:
    kind = Kind(openai_api, OpenAIResponsesModel, "/v1/responses", streamed=True)
    script = kind.api.script(slow(60, "done"))
    async with running(Interlock([kind.agent(script)]), server) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda _: script.calls == 1)
        await run.cancel()
        async with asyncio.timeout(40):
            with pytest.raises(RunFailedError) as ended:
                await run.result()

        assert ended.value.status == "cancelled"


async def test_a_streamed_run_asks_for_streams_and_records_the_same_answer(run_app: Running, kind: Kind) -> None:
    script = kind.api.script(
        answer("I look at it. ", call("look", "a", order="A-1")),
        attempts(cut("half of an answer"), answer("all is well", input_tokens=30, output_tokens=7)),
    )
    app = Interlock([kind.agent(script, tools=[look])], retries=TWICE)
    async with run_app(app) as running_app:
        run = await running_app.client.start("support", "go", stream=True)
        output = await run.result()
        events = [event async for event in run.events()]

        assert output.output == "all is well"
        assert output.usage.output_tokens == 12
        assert {request.streams for request in kind.api.requests} == {True}
        assert said(events) == "I look at it. all is well"
        assert [event.attempt for event in events if event.kind == "attempt_failed"] == [1]
        assert [(event.name, event.arguments) for event in events if event.kind == "call"] == [
            ("look", {"order": "A-1"})
        ]
