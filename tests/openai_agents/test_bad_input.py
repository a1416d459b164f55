"""What models, servers and callers should not give, over HTTP: the model is told, or the run ends soon, by a type."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    MultiProvider,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    function_tool,
)
from pydantic import BaseModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, RunFailedError
from interlock.contracts.payloads import RunOutput
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running
from tests.openai_api import OpenAIAPI, Turn, call, malformed, reply
from tests.openai_api.script import Call

TWICE = Retries(
    model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
    tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
)
KINDS = [OpenAIResponsesModel, OpenAIChatCompletionsModel]


@pytest.fixture
def run_app(server: EmbeddedServer) -> Running:
    """With the workflow cache off. What is told apart here is in the steps, which know nothing of a cache."""
    return partial(running, server=server, max_cached_workflows=0)


@function_tool
def look(order: str) -> str:
    return f"seen {order}"


def agent(api: OpenAIAPI, kind: Any = OpenAIResponsesModel, name: str = "support", **options: Any) -> Agent[Any]:
    """An agent whose model has its name; but that of `support` is the one that scripts are of by default."""
    model = kind("scripted" if name == "support" else name, api.client())
    return Agent(name, **{"model": model, "tools": [look], **options})


async def end_of(
    run_app: Running, one: Agent[Any], prompt: Any = "go", config: RunConfig | None = None, **options: Any
) -> RunOutput | RunFailedError:
    """How the run ends: in seconds, without a workflow task that fails."""
    (end,) = await ends_of(run_app, [one], [{"prompt": prompt, **options}], config)
    return end


async def ends_of(
    run_app: Running, agents: Sequence[Agent[Any]], given: Sequence[dict[str, Any]], config: RunConfig | None = None
) -> list[RunOutput | RunFailedError]:
    """How runs of the agents end, of each with each of what is given, all at once."""

    async def end(name: str, options: dict[str, Any]) -> RunOutput | RunFailedError:
        run = await app.client.start(name, **{"prompt": "go", "stuck_seconds": 0, **options})
        try:
            async with asyncio.timeout(60):
                return await run.result()
        except RunFailedError as failed:
            return failed
        finally:
            history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()
            assert failed_tasks(history) == []

    async with run_app(Interlock(agents, retries=TWICE, run_config=config)) as app:
        return await asyncio.gather(*(end(one.name, options) for one in agents for options in given))


NO_ANSWERS: dict[str, Turn] = {
    "no JSON": malformed(),
    "an empty body": reply(""),
    "null": reply("null"),
    "a list": reply([]),
    "an object": reply({"id": "x"}),
    "a page": reply("<html></html>", 200, "text/html"),
    "output that is none": reply({"id": "x", "object": "response", "output": 7, "choices": 7}),
    "items that are none": reply({"id": "x", "output": [{"type": "nonsense"}, 7, None], "choices": "none"}),
    "a call that is none": reply({"id": "x", "output": [{"type": "function_call"}], "choices": {"message": 7}}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_answer_ends_the_run(run_app: Running, openai_api: OpenAIAPI, kind: Any, stream: bool) -> None:
    scripts = {name: openai_api.script(turn, "done", model=name) for name, turn in NO_ANSWERS.items()}
    ends = await ends_of(run_app, [agent(openai_api, kind, name) for name in scripts], [{"stream": stream}])

    failed = [isinstance(end, RunFailedError) and end.status == "failed" and bool(end.error_type) for end in ends]
    assert dict(zip(scripts, failed, strict=True)) == dict.fromkeys(scripts, True)
    assert max(script.calls for script in scripts.values()) <= 2


@pytest.mark.parametrize(
    ("model", "error"), [("nobody", "NotFoundError"), ("nobody/knows", "UserError"), ("", "NotFoundError")]
)
@pytest.mark.parametrize("of_run", [True, False], ids=["of the run", "of the agent"])
async def test_a_model_that_nobody_knows_ends_the_run(
    run_app: Running, openai_api: OpenAIAPI, model: str, error: str, of_run: bool
) -> None:
    config = RunConfig(model_provider=MultiProvider(openai_client=openai_api.client()))
    one = agent(openai_api, model=None if of_run else model)
    end = await end_of(run_app, one, config=config, model=model if of_run else None)

    assert isinstance(end, RunFailedError)
    assert end.error_type == error
    assert len(openai_api.requests) <= 1


@pytest.mark.parametrize("call_id", ["same", ""], ids=["repeated", "empty"])
async def test_calls_without_ids_of_their_own_get_some(run_app: Running, openai_api: OpenAIAPI, call_id: str) -> None:
    def asks(order: str) -> dict[str, Any]:
        return {"type": "function_call", "name": "look", "call_id": call_id, "arguments": f'{{"order": "{order}"}}'}

    script = openai_api.script([asks("A-1"), asks("A-2")], [asks("A-3")], "done")
    end = await end_of(run_app, agent(openai_api))

    assert isinstance(end, RunOutput)
    assert sorted(script.requests[-1].results.values()) == ["seen A-1", "seen A-2", "seen A-3"]
    assert len(script.requests[-1].results) == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_arguments_that_are_none_are_told_to_the_model(
    run_app: Running, openai_api: OpenAIAPI, kind: Any
) -> None:
    odd = ["", "{", "[]", "null", '"A-1"', '{"order": NaN}', '{"order": 1}']
    scripts = [openai_api.script([Call("look", one, "a")], "done", model=f"odd {n}") for n, one in enumerate(odd)]
    ends = await ends_of(run_app, [agent(openai_api, kind, f"odd {n}") for n in range(len(odd))], [{}])

    assert {type(end) for end in ends} == {RunOutput}
    told = {one: script.requests[-1].results["a"] for one, script in zip(odd, scripts, strict=True)}
    assert [one for one, text in told.items() if "Invalid JSON input for tool look" not in text] == []


async def test_arguments_that_are_none_end_the_run_where_the_tool_tells_nothing(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    strict = function_tool(lambda order: order, name_override="look", strict_mode=False, failure_error_function=None)
    openai_api.script([Call("look", "{", "a")], "done")
    end = await end_of(run_app, agent(openai_api, tools=[strict]))

    assert isinstance(end, RunFailedError)
    assert end.error_type == "ModelBehaviorError"


async def test_a_tool_that_nobody_has_ends_the_run(run_app: Running, openai_api: OpenAIAPI) -> None:
    openai_api.script([call("nobody", "a")], "done")
    end = await end_of(run_app, agent(openai_api))

    assert isinstance(end, RunFailedError)
    assert end.error_type == "ModelBehaviorError"


class Order(BaseModel):
    number: int


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"number": "many"}'])
async def test_an_output_that_does_not_fit_ends_the_run(run_app: Running, openai_api: OpenAIAPI, text: str) -> None:
    openai_api.script(text, text)
    end = await end_of(run_app, agent(openai_api, output_type=Order))

    assert isinstance(end, RunFailedError)
    assert end.error_type == "ModelBehaviorError"


@dataclass
class Visit:
    notes: list[Any] = field(default_factory=list)


@function_tool(failure_error_function=None)
def note(ctx: RunContextWrapper[Visit]) -> str:
    ctx.context.notes.append(object())
    return "noted"


@function_tool
def note_told(ctx: RunContextWrapper[Visit]) -> str:
    ctx.context.notes.append(object())
    return "noted"


class Noting(AgentHooks[Visit]):
    async def on_start(self, context: Any, agent: Any) -> None:
        context.context.notes.append(object())


@pytest.mark.parametrize("how", ["a tool", "a tool that tells of errors", "a hook"])
async def test_a_context_that_cannot_be_written_ends_the_run(run_app: Running, openai_api: OpenAIAPI, how: str) -> None:
    tool = note_told if how == "a tool that tells of errors" else note
    script = openai_api.script([call(tool.name, "a")], "done")
    hooks = Noting() if how == "a hook" else None
    end = await end_of(run_app, agent(openai_api, tools=[tool], hooks=hooks), deps={"notes": []})

    assert isinstance(end, RunFailedError)
    assert end.error_type == "PydanticSerializationError"
    assert "context cannot be written as JSON" in str(end)
    assert script.calls <= 1


NO_INPUTS: list[dict[str, Any]] = [
    {"prompt": [7]},
    {"prompt": ["text"]},
    {"prompt": [{"role": 7, "content": None}]},
    {"message_history": [7]},
    {"message_history": [None, {"type": "nonsense"}]},
    {"message_history": [{"type": "function_call"}]},
    {"model_settings": {"temperature": "hot"}},
    {"model_settings": {"nonsense": 1}},
    {"model_settings": {"retry": {"backoff": {"multiplier": 0.1}}}},
    {"usage_limits": {"max_turns": "many"}},
    {"deps": {"notes": 7}},
    {"deps": 7},
]


async def test_an_input_that_is_none_ends_the_run(run_app: Running, openai_api: OpenAIAPI) -> None:
    script = openai_api.script([call("note", "a")], "done")
    ends = await ends_of(run_app, [agent(openai_api, tools=[note])], NO_INPUTS)

    ended = [
        (given, isinstance(end, RunFailedError) and bool(end.error_type))
        for given, end in zip(NO_INPUTS, ends, strict=True)
    ]
    assert ended == [(given, True) for given in NO_INPUTS]
    assert script.calls <= len(NO_INPUTS)
