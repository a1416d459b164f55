"""A step that has failed for good keeps its run, and exactly that step runs again when somebody asks for it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext, Tool
from pydantic_ai.capabilities import Hooks
from pydantic_ai.exceptions import ModelHTTPError, ModelRequestRejectedError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.common import RetryPolicy

from interlock import Interlock, RefusedError, Retries, Run, RunFailedError, Settings
from interlock.adapters.pydantic_ai import Durable, idempotency_key
from interlock.contracts import names
from interlock.contracts.payloads import Retry, StuckStep
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

ONCE = Retries(model=RetryPolicy(maximum_attempts=1), tool=RetryPolicy(maximum_attempts=1))
HOUR = Settings(stuck_seconds=3_600)


def stuck_app(*agents: Agent[Any, Any], retries: Retries = ONCE, settings: Settings = HOUR) -> Interlock:
    return Interlock(list(agents), settings=settings, retries=retries)


async def stuck(app: RunningApp, run: Run, count: int = 1) -> Sequence[StuckStep]:
    state = await app.state(run, lambda state: len(state.stuck) == count)
    assert state.status == "stuck"
    return state.stuck


def shapes(messages: list[ModelMessage]) -> list[tuple[str, str]]:
    """What a conversation says, without ids and times."""
    return [(part.part_kind, str(getattr(part, "content", ""))) for message in messages for part in message.parts]


class Down:
    """A tool that fails until it is mended, and notes what it is called with."""

    def __init__(self) -> None:
        self.down = True
        self.calls: list[int] = []
        self.keys: list[str] = []

    def send(self, ctx: RunContext[None], number: int) -> str:
        self.calls.append(number)
        self.keys.append(idempotency_key(ctx))
        if self.down and number == 2:
            raise ConnectionError("the post office is closed, password=hunter2")
        return f"sent {number}"


async def test_one_of_several_stuck_steps_is_retried_alone(run_app: Running) -> None:
    sent: list[int] = []
    broken = {1, 2}

    def send(number: int) -> str:
        if number in broken:
            raise ConnectionError
        sent.append(number)
        return "sent"

    script = Script([call("send", "a", number=1), call("send", "b", number=2)], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(send)]))) as app:
        run = await app.client.start("support", "go")
        steps = await stuck(app, run, 2)
        broken.clear()
        (second,) = [step for step in steps if step.label == "send: number 2"]
        await run.retry(step=second.step_id)
        await stuck(app, run, 1)
        assert sent == [2]
        await run.retry()
        await run.result()

        assert sent == [2, 1]


async def test_a_step_that_fails_again_is_stuck_again_under_another_number(run_app: Running) -> None:
    post = Down()
    script = Script([call("send", "2", number=2)], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(post.send)]))) as app:
        run = await app.client.start("support", "go")
        (first,) = await stuck(app, run)
        await run.retry()
        state = await app.state(run, lambda state: [one.step_id for one in state.stuck] not in ([], ["1"]))
        (second,) = state.stuck
        with pytest.raises(RefusedError, match="Step '1' is not stuck; stuck: 2"):
            await run.retry(step=first.step_id)
        post.down = False
        await run.retry(step=second.step_id)
        await run.result()

        assert (first.step_id, second.step_id) == ("1", "2")


async def test_other_calls_go_on_and_are_decided_while_one_is_stuck(run_app: Running) -> None:
    post = Down()
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    script = Script([call("send", "2", number=2), call("pay", "p", amount=5)], "done")
    tools = [Tool(post.send), Tool(pay, requires_approval=True)]
    async with run_app(stuck_app(agent(script, tools=tools))) as app:
        run = await app.client.start("support", "go")
        await app.state(run, lambda state: len(state.stuck) == 1 and len(state.requests) == 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: not state.requests and paid == [5])
        post.down = False
        await run.retry()
        await run.result()

        assert paid == [5]
        assert script.results() == {"2": "sent 2", "p": "paid"}


async def test_how_long_a_run_may_be_stuck_is_fixed_at_its_start(run_app: Running) -> None:
    post = Down()
    script = Script([call("send", "2", number=2)], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(post.send)]))) as app:
        run = await app.client.start("support", "go", stuck_seconds=0)
        with pytest.raises(RunFailedError, match="the post office is closed"):
            await run.result()


async def test_a_signal_retries_too(run_app: Running) -> None:
    post = Down()
    script = Script([call("send", "2", number=2)], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(post.send)]))) as app:
        run = await app.client.start("support", "go")
        await stuck(app, run)
        post.down = False
        await app.client.temporal.get_workflow_handle(run.id).signal(
            names.RETRY_RUN, Retry(requested_at=datetime.now(UTC))
        )

        assert (await run.result()).output == "done"


async def test_a_model_whose_answers_did_not_fit_is_asked_again_from_its_last_request(run_app: Running) -> None:
    good = False

    def answer(messages: list[ModelMessage]) -> Sequence[ModelResponsePart] | str:
        return [call("final_result", response=5)] if good else "not a number"

    script = Script([call("note", "n", text="one")], answer, answer, answer)
    ran: list[str] = []
    numbers = agent(script, output_type=int, retries=1, tools=[Tool(lambda text: ran.append(text), name="note")])
    async with run_app(stuck_app(numbers)) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        good = True
        await run.retry()
        output = await run.result()

        assert step.error_type == "UnexpectedModelBehavior"
        assert output.output == 5
        assert ran == ["one"]
        assert script.calls == 4
        # The answer that failed the run is gone; the one before, and what was wrong with it, is still there.
        assert shapes(script.asked[3]) == shapes(script.asked[2])


async def test_a_model_that_refused_is_asked_again_from_its_last_request(run_app: Running) -> None:
    refuses, ran, asked = True, list[str](), list[int]()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        if len(messages) == 1:
            return ModelResponse(parts=[call("note", "n", text="one")])
        return ModelResponse(parts=[], finish_reason="content_filter") if refuses else ModelResponse([TextPart("done")])

    careful = Agent(
        FunctionModel(answer),
        name="support",
        tools=[Tool(lambda text: ran.append(text), name="note")],
        capabilities=[Durable()],
    )
    async with run_app(stuck_app(careful)) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        refuses = False
        await run.retry()

        assert (await run.result()).output == "done"
        assert step.error_type == "ContentFilterError"
        assert (ran, asked) == (["one"], [1, 3, 3])


async def test_calls_that_ran_stay_when_a_call_beside_them_fails_the_run(run_app: Running) -> None:
    ran: list[int] = []
    good = False

    def picky(number: int) -> str:
        if not good:
            raise ModelRetry("another one")
        return "fine"

    def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    def third_turn(messages: list[ModelMessage]) -> Sequence[ModelResponsePart] | str:
        return "done"

    script = Script([call("pay", "p", amount=5), call("picky", "q", number=1)], third_turn, third_turn)
    tools = [Tool(pay), Tool(picky, max_retries=0, sequential=True)]
    async with run_app(stuck_app(agent(script, tools=tools))) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        await run.retry()
        output = await run.result()

        assert step.error_type == "UnexpectedModelBehavior"
        assert output.output == "done"
        assert ran == [5]
        assert script.results()["p"] == "paid"
        assert script.outcomes()["q"] == "interrupted"


async def test_hooks_that_take_the_errors_of_tools_come_first(run_app: Running) -> None:
    hooks: Hooks[None] = Hooks()

    @hooks.on.tool_execute_error
    async def mended(ctx: Any, **_: Any) -> str:
        return "nobody at home"

    post = Down()
    script = Script([call("send", "2", number=2)], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(post.send)], capabilities=[hooks]))) as app:
        run = await app.client.start("support", "go")
        await run.result()

        assert script.results() == {"2": "nobody at home"}


def quickly(attempts: int) -> RetryPolicy:
    return RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=attempts)


@pytest.mark.parametrize(
    ("of_tool", "of_agent", "of_app", "attempts"),
    [
        ({}, {}, Retries(tool=quickly(2)), 2),
        ({}, {}, Retries(tool=quickly(2), tools={"send": quickly(3)}), 3),
        ({}, {"retry_policy": quickly(4)}, Retries(tools={"send": quickly(3)}), 4),
        ({"retry_policy": quickly(1)}, {"retry_policy": quickly(4)}, Retries(tools={"send": quickly(3)}), 1),
    ],
    ids=["the app's", "the app's for the tool", "the agent's", "the tool's own"],
)
async def test_the_policy_nearest_to_a_tool_counts(
    server: EmbeddedServer, of_tool: dict[str, Any], of_agent: dict[str, Any], of_app: Retries, attempts: int
) -> None:
    post = Down()
    script = Script([call("send", "2", number=2)], "done")
    tool = Tool(post.send, metadata={"temporal": of_tool} if of_tool else None)
    sender = agent(script, tools=[tool], durable={"activity_config": of_agent} if of_agent else {})
    async with running(stuck_app(sender, retries=of_app), server) as app:
        run = await app.client.start("support", "go")
        await stuck(app, run)
        await run.cancel()

        assert len(post.calls) == attempts


async def test_a_provider_that_asks_for_time_gets_it_and_a_refused_request_is_not_repeated(run_app: Running) -> None:
    """The wait is read from the history: the server keeps the time that the provider asked for."""
    asked = 0

    def busy(messages: list[ModelMessage]) -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ModelHTTPError(429, "scripted", headers={"retry-after": "2"})
        if asked == 2:
            raise ModelHTTPError.for_category(
                ModelRequestRejectedError, status_code=400, model_name="scripted", body="no such parameter"
            )
        return "done"

    patient = Retries(
        model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_interval=timedelta(minutes=1))
    )
    async with run_app(stuck_app(agent(Script(busy)), retries=patient)) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        (only,) = await run.steps()
        await run.retry()
        await run.result()

        assert only.attempts == 2
        assert only.ended_at is not None
        assert only.ended_at - only.scheduled_at >= timedelta(seconds=2)
        assert "no such parameter" in step.message
        assert asked == 3


async def test_a_model_that_is_set_up_wrong_is_not_asked_again_whatever_the_policy_says(run_app: Running) -> None:
    def wrong(messages: list[ModelMessage]) -> str:
        raise UserError("no such setting")

    script = Script(wrong)
    async with run_app(stuck_app(agent(script), retries=Retries(model=quickly(3)))) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        await run.cancel()

        assert step.error_type == "UserError"
        assert script.calls == 1


async def test_a_stuck_agent_of_a_tool_is_retried_by_its_own_id(run_app: Running) -> None:
    post = Down()
    inner_script = Script([call("send", "2", number=2)], "inner done")
    inner = agent(inner_script, name="inner", tools=[Tool(post.send)])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], "done")
    async with run_app(stuck_app(agent(script, tools=[delegate]), inner)) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        below = app.client.attach(sub_run.workflow_id)
        (step,) = await stuck(app, below)
        with pytest.raises(RefusedError, match="No step of this run is stuck"):
            await run.retry()
        post.down = False
        await below.retry()
        await run.result()

        assert step.agent_path == ("support", "inner")
        assert script.results() == {"d": "inner done"}
        assert post.calls == [2, 2]
        assert inner_script.calls == 2


async def test_an_agent_of_a_tool_that_failed_is_started_over_when_its_tool_is_retried(run_app: Running) -> None:
    down = True

    def answer(messages: list[ModelMessage]) -> str:
        if down:
            raise ModelHTTPError(401, "scripted")
        return "inner done"

    inner = agent(Script(answer), name="inner")

    async def delegate() -> Any:
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], "done")
    async with run_app(stuck_app(agent(script, tools=[delegate]), inner)) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        await stuck(app, app.client.attach(sub_run.workflow_id))
        await app.client.attach(sub_run.workflow_id).cancel()
        await stuck(app, run)
        down = False
        await run.retry()
        await run.result()

        assert script.results() == {"d": "inner done"}
        assert len((await run.state()).sub_runs) == 1
        # Two of the run's own, and the one of the agent that was started over: the failed one had no answer.
        assert (await run.result()).usage.requests == 3


async def test_a_step_that_is_retried_does_not_repeat_an_agent_that_has_finished(run_app: Running) -> None:
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")
    broken = True

    async def delegate() -> Any:
        result = (await inner.run("go")).output
        if broken:
            raise ConnectionError
        return result

    script = Script([call("delegate", "d")], "done")
    async with run_app(stuck_app(agent(script, tools=[delegate]), inner)) as app:
        run = await app.client.start("support", "go")
        await stuck(app, run)
        broken = False
        await run.retry()
        await run.result()

        assert script.results() == {"d": "inner done"}
        assert inner_script.calls == 1


@pytest.mark.parametrize("error", [ValueError("down"), ModelHTTPError(401, "scripted", "no such key")], ids=str)
async def test_the_model_of_an_agent_in_the_workflow_is_asked_again_and_its_calls_stay(
    run_app: Running, error: Exception
) -> None:
    down = True
    ran: list[str] = []

    def second_turn(messages: list[ModelMessage]) -> str:
        if down:
            raise error
        return "inner done"

    inner_script = Script([call("note", "n", text="one")], second_turn)
    inner = agent(inner_script, name="inner", tools=[Tool(lambda text: ran.append(text), name="note")])

    async def local() -> str:
        return str((await inner.run("go")).output)

    script = Script([call("local", "l")], "done")
    tools = [Tool(local, metadata={"temporal": False})]
    async with run_app(stuck_app(agent(script, tools=tools), inner)) as app:
        run = await app.client.start("support", "go")
        (step,) = await stuck(app, run)
        down = False
        await run.retry()
        output = await run.result()

        assert (step.kind, step.label, step.agent_path) == ("model", "model of inner, request 2", ("support", "inner"))
        assert ran == ["one"]
        assert inner_script.calls == 3
        assert script.results() == {"l": "inner done"}
        assert output.usage.requests == 4


async def test_a_failure_in_an_agent_in_the_workflow_is_kept_once(run_app: Running) -> None:
    post = Down()
    inner = agent(Script([call("send", "2", number=2)], "inner done"), name="inner", tools=[Tool(post.send)])

    async def local() -> str:
        return str((await inner.run("go")).output)

    tools = [Tool(local, metadata={"temporal": False})]
    app_of = stuck_app(
        agent(Script([call("local", "l")], "done"), tools=tools), inner, settings=Settings(stuck_seconds=0.5)
    )
    async with run_app(app_of) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="the post office is closed"):
            await run.result()
        history = await app.client.temporal.get_workflow_handle(run.id).fetch_history()

        assert [event.HasField("timer_fired_event_attributes") for event in history.events].count(True) == 1


USED_UP: list[tuple[dict[str, Any], str]] = [
    ({"request_limit": -1}, "request_limit is -1; it has to be a number of at least 3"),
    ({"request_limit": True}, "request_limit is true; it has to be a number of at least 3"),
    ({"request_limit": 2}, "request_limit is 2; it has to be a number of at least 3"),
    ({"input_tokens_limit": 1_000}, "request_limit is 2; it has to be a number of at least 3"),
    ({"request_limit": 9, "tool_calls_limit": 1}, "tool_calls_limit is 1; it has to be a number of at least 2"),
    ({"request_limit": 9, "total_tokens_limit": 1}, "total_tokens_limit is 1; it has to be a number of at least"),
]


async def test_new_limits_that_are_used_up_already_are_refused(run_app: Running) -> None:
    script = Script([call("note", "n1", text="one")], [call("note", "n2", text="two")], "done")
    async with run_app(stuck_app(agent(script, tools=[Tool(lambda text: text, name="note")]))) as app:
        run = await app.client.start("support", "go", usage_limits={"request_limit": 2})
        await stuck(app, run)
        for limits, why in USED_UP:
            with pytest.raises(RefusedError, match=f"The new limits do not fit: {why}"):
                await run.retry(usage_limits=limits)
            await app.client.temporal.get_workflow_handle(run.id).signal(
                names.RETRY_RUN, Retry(requested_at=datetime.now(UTC), usage_limits=limits)
            )
        await run.retry(usage_limits={"request_limit": 3, "tool_calls_limit": 2})
        await run.result()

        assert script.calls == 3
