"""How often a model is asked, over HTTP: each attempt is one request, and the settings of the SDK say how many."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from agents import (
    Agent,
    ModelRetrySettings,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RetryDecision,
    RunConfig,
    function_tool,
    retry_policies,
)
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, RunFailedError
from interlock.contracts.payloads import RunOutput
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.conftest import Running
from tests.openai_api import OpenAIAPI, Request, Script, attempts, call, error, slow

TWICE = Retries(model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2))
DOWN = error(503)
QUICK = {"initial_delay": 0.01, "max_delay": 0.01}


@pytest.fixture
def run_app(server: EmbeddedServer) -> Running:
    """With the workflow cache off. What is told apart here is in the steps, which know nothing of a cache."""
    return partial(running, server=server, max_cached_workflows=0)


def of_agent(api: OpenAIAPI, **settings: Any) -> Agent[Any]:
    return Agent(
        "support",
        model=OpenAIResponsesModel("scripted", api.client()),
        model_settings=ModelSettings(**settings),
    )


async def outcome(run_app: Running, app: Interlock, **options: Any) -> RunOutput | RunFailedError:
    async with run_app(app) as running:
        run = await running.client.start("support", "go", **options)
        try:
            return await run.result()
        except RunFailedError as failed:
            return failed


def waits(script: Script) -> list[float]:
    """The seconds between the requests."""
    return [after.at - before.at for before, after in zip(script.requests, script.requests[1:], strict=False)]


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_the_providers_client_tries_nothing_again_by_itself(
    run_app: Running, openai_api: OpenAIAPI, kind: Any, stream: bool
) -> None:
    script = openai_api.script(error(503, retry_after_ms=1))
    one = Agent("support", model=kind("scripted", openai_api.client(max_retries=3)))
    end = await outcome(run_app, Interlock([one], retries=TWICE), stream=stream)

    assert isinstance(end, RunFailedError)
    assert script.calls == 2


async def test_the_settings_of_an_agent_say_how_often_and_after_how_long(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    script = openai_api.script(attempts(DOWN, DOWN, DOWN, "done"))
    backoff = {"initial_delay": 0.2, "multiplier": 3.0, "max_delay": 0.7}
    retry = ModelRetrySettings(max_retries=3, backoff=backoff, policy=retry_policies.http_status([503]))
    end = await outcome(run_app, Interlock([of_agent(openai_api, retry=retry)], retries=TWICE))

    assert isinstance(end, RunOutput)
    assert end.usage.requests == 1
    first, second, third = waits(script)
    assert first >= 0.2
    assert second >= 0.6
    assert third >= 0.7


@pytest.mark.parametrize(
    ("of_run", "requests"), [({"max_retries": 1}, 2), ({"max_retries": 0}, 1), ({"backoff": QUICK}, 4)]
)
async def test_the_settings_of_a_run_go_before_those_of_its_agent(
    run_app: Running, openai_api: OpenAIAPI, of_run: dict[str, Any], requests: int
) -> None:
    script = openai_api.script(DOWN)
    retry = ModelRetrySettings(max_retries=3, backoff=QUICK, policy=retry_policies.http_status([503]))
    app = Interlock([of_agent(openai_api, retry=retry)], retries=TWICE)
    end = await outcome(run_app, app, model_settings={"retry": of_run})

    assert isinstance(end, RunFailedError)
    assert script.calls == requests


@pytest.mark.parametrize(
    ("policy", "status", "requests"),
    [
        (retry_policies.never(), 503, 1),
        (retry_policies.http_status([400]), 400, 3),
        (retry_policies.any(retry_policies.network_error(), retry_policies.retry_after()), 429, 1),
        (lambda about: about.attempt < 2, 503, 2),
    ],
    ids=["never", "refused", "none of them", "by attempt"],
)
async def test_a_policy_of_the_users_has_the_last_word(
    run_app: Running, openai_api: OpenAIAPI, policy: Any, status: int, requests: int
) -> None:
    script = openai_api.script(error(status))
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, backoff=QUICK, policy=policy))
    one = Agent("support", model=OpenAIResponsesModel("scripted", openai_api.client()))
    end = await outcome(run_app, Interlock([one], run_config=RunConfig(model_settings=settings)))

    assert isinstance(end, RunFailedError)
    assert f"status {status}" in str(end)
    assert script.calls == requests


@pytest.mark.parametrize(
    ("policy", "headers"),
    [
        (lambda about: RetryDecision(retry=True, delay=0.8), {}),
        (retry_policies.http_status([503]), {"retry_after_ms": 800}),
    ],
    ids=["policy", "provider"],
)
async def test_a_policy_and_a_provider_may_say_when(
    run_app: Running, openai_api: OpenAIAPI, policy: Any, headers: dict[str, Any]
) -> None:
    script = openai_api.script(attempts(error(503, **headers), "done"))
    retry = ModelRetrySettings(max_retries=1, backoff=QUICK, policy=policy)
    await outcome(run_app, Interlock([of_agent(openai_api, retry=retry)]))

    assert waits(script)[0] >= 0.8


async def test_the_time_of_an_attempt_is_limited_and_not_that_of_the_run(
    run_app: Running, openai_api: OpenAIAPI
) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    script = openai_api.script([call("look", "l")], attempts(slow(60, "late"), "done"))
    one = of_agent(openai_api, timeout=6)
    one.tools = [look]
    async with run_app(Interlock([one], retries=TWICE)) as app:
        run = await app.client.start("support", "go", budget={"requests": 1})
        (request,) = await app.requests(run, 1)
        await run.decide(request.request_id, "approve", arguments={"requests": 5})
        output = await run.result()
        history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()

    assert (output.output, script.calls) == ("done", 3)
    assert "timeout" not in str(script.requests[0].body)
    assert not [event for event in history.events if event.HasField("timer_started_event_attributes")]


async def test_a_request_of_a_chain_is_made_again_as_any_other(run_app: Running, openai_api: OpenAIAPI) -> None:
    def second(request: Request) -> str:
        return "done"

    @function_tool
    def look() -> str:
        return "seen"

    script = openai_api.script([call("look", "l")], attempts(DOWN, second))
    retry = ModelRetrySettings(max_retries=1, backoff=QUICK, policy=retry_policies.http_status([503]))
    one = of_agent(openai_api, retry=retry)
    one.tools = [look]
    end = await outcome(run_app, Interlock([one]), auto_previous_response_id=True)

    assert isinstance(end, RunOutput)
    assert [request.body.get("previous_response_id") for request in script.requests] == [None, "resp_1", "resp_1"]
