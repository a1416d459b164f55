"""Calls that fail: what runs again and what does not, and who is asked."""

import asyncio
import re
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy

from interlock import RefusedError, Retries, Run, RunFailedError
from interlock.contracts.payloads import ApprovalRequest, StuckStep
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Answer, Desk, Framework, Inner, Made, Said, Script, Tool, app_of, ask, call

PAY = [call("refund", "p", "A-1", 5.0)]
THRICE = Retries(tool=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3))


async def stuck(app: RunningApp, run: Run) -> StuckStep:
    (step,) = (await app.state(run, lambda state: len(state.stuck) == 1 and state.status == "stuck")).stuck
    return step


async def test_of_parallel_calls_only_the_one_that_failed_runs_again(framework: Framework, run_app: RunApp) -> None:
    desk, broken = Desk(), Desk([ConnectionError("unplugged, password=hunter2")])
    script = Script([call("look", "a", "A-1"), call("refund", "b", "A-2"), call("look", "c", "A-3")], "done")
    tools = [Tool(name="look", body=desk), Tool(body=broken)]
    async with run_app(app_of(framework.agent(script, tools=tools), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        step = await stuck(app, run)
        assert (step.kind, step.error_type, step.agent_path) == ("tool", "ConnectionError", ("support",))
        assert step.label.startswith("refund: order A-2")
        assert step.message.startswith("unplugged, password=[masked] (in ")
        assert step.ends_at - step.since == timedelta(seconds=60)
        with pytest.raises(RefusedError, match="New limits are no help"):
            await run.retry(usage_limits=framework.turns(9))
        assert (await run.retry()).steps == (step.step_id,)
        output = await run.result()

    assert script.results() == {"a": "done A-1", "b": "done A-2", "c": "done A-3"}
    assert len({made.key for made in broken.made}) == 1
    assert (sorted(desk.orders), broken.orders) == (["A-1", "A-3"], ["A-2", "A-2"])
    assert (script.calls, output.usage.tool_calls) == (2, 3)


async def test_a_stuck_run_ends_by_itself_with_the_failure(framework: Framework, run_app: RunApp) -> None:
    script = Script(PAY, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=Desk([ConnectionError("unplugged")]))]), stuck_seconds=0.3)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="unplugged") as failed:
            await run.result()
        with pytest.raises(RefusedError, match="waits for nothing any more"):
            await run.retry()

    assert failed.value.error_type == "ConnectionError"


async def test_a_function_that_raises_the_end_of_an_iterator_fails_its_call(
    framework: Framework, run_app: RunApp
) -> None:
    """No Future takes it: before Python 3.12 whoever waits for such a function waits for ever."""

    def first_of_none(made: Made) -> str:
        return next(iter([]))

    tool = Tool(body=first_of_none, plain=True)
    async with run_app(app_of(framework.agent(Script(PAY, "done"), tools=[tool]))) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RunFailedError, match="StopIteration") as failed:
            await asyncio.wait_for(run.result(), 60)

    assert failed.value.error_type == "RuntimeError"


async def test_a_failing_call_has_the_attempts_of_its_policy_with_one_key(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk([ConnectionError(), ConnectionError()]), Script(PAY, [call("refund", "p", "A-1", 5.0)], "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk)]), retries=THRICE)) as app:
        run = await app.client.start("support", "go")
        await run.result()
        attempts = [(step.kind, step.attempts) for step in await run.steps()]

    assert attempts == [("model", 1), ("tool", 3), ("model", 1), ("tool", 1), ("model", 1)]
    keys = [made.key for made in desk.made]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert all(re.fullmatch(r"[0-9a-f]{32}", key) for key in keys)
    assert keys[3] != keys[0]
    assert script.calls == 3


async def test_a_failure_that_the_model_is_told_of_shows_as_failed(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk([ConnectionError("no such order")]), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, tells=True)]))) as app:
        run = await app.client.start("support", "go")
        output = await run.result()
        (step,) = [step for step in (await run.journal()).steps if step.kind == "tool"]

    assert "no such order" in script.results()["p"]
    assert step.status == "failed"
    assert output.usage.tool_calls == 0


async def test_a_model_that_failed_for_good_is_asked_again(framework: Framework, run_app: RunApp) -> None:
    down = True

    def second(said: list[Said]) -> Answer:
        if down:
            raise framework.http_error(401)
        return "done"

    desk, script = Desk(), Script(PAY, second)
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk)]), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        step = await stuck(app, run)
        down = False
        await run.retry()
        output = await run.result()

    assert step.kind == "model"
    assert (desk.orders, script.calls, output.usage.requests) == (["A-1"], 3, 2)
    assert script.asked[1] == script.asked[2]


async def test_a_model_call_that_failed_at_first_counts_once(framework: Framework, run_app: RunApp) -> None:
    failures = [framework.http_error(500), framework.http_error(503)]

    def first(said: list[Said]) -> Answer:
        if failures:
            raise failures.pop()
        return "done"

    script = Script(first)
    quick = Retries(model=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=5))
    async with run_app(app_of(framework.agent(script), retries=quick)) as app:
        run = await app.client.start("support", "go")
        output = await run.result()

        assert [step.attempts for step in await run.steps() if step.kind == "model"] == [3]

    assert (output.usage.requests, output.usage.input_tokens, script.calls) == (1, 5, 3)


async def test_an_error_of_the_models_that_a_tool_raises_is_the_tools(framework: Framework, run_app: RunApp) -> None:
    """The tool runs again; the answer that asked for it is not asked for again."""
    desk, script = Desk([framework.misbehaved("an agent inside this tool made no sense")]), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk)]), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        step = await stuck(app, run)
        await run.retry()
        await run.result()

    assert (step.kind, step.error_type) == ("tool", type(framework.misbehaved("")).__name__)
    assert "made no sense" in step.message
    assert (desk.orders, script.calls) == (["A-1", "A-1"], 2)


async def test_a_retry_after_an_approved_call_neither_asks_nor_runs_it_again(
    framework: Framework, run_app: RunApp
) -> None:
    desk, broken = Desk(), Desk([ConnectionError("unplugged")])
    script = Script([*PAY, call("look", "l", "A-2")], [call("look", "l", "A-3")], "done")
    tools = [Tool(body=desk, gated=True), Tool(name="look", body=broken)]
    async with run_app(app_of(framework.agent(script, tools=tools), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await app.state(run, lambda state: bool(state.stuck))
        await run.decide("1", "approve")
        await app.state(run, lambda _: desk.orders == ["A-1"])
        broken.errors.append(ConnectionError("unplugged again"))
        await run.retry()
        await app.state(run, lambda state: [one.step_id for one in state.stuck] == ["2"])
        await run.retry()
        await run.result()
        settled = (await run.state()).settled

    assert (desk.orders, broken.orders) == (["A-1"], ["A-2", "A-2", "A-2", "A-3"])
    assert [(one.request_id, one.outcome) for one in settled] == [("1", "approved")]
    assert script.calls == 3


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("call_tool", {"kind": "secret-kind", "result": 1}),
        ("call_tool", "secret-kind"),
        ("model_request", "secret-kind"),
    ],
    ids=["record", "text", "answer"],
)
async def test_a_result_that_cannot_be_read_ends_the_run_by_its_step_and_runs_nothing_again(
    framework: Framework, run_app: RunApp, kind: str, result: object
) -> None:
    ran: list[str] = []
    over = asyncio.Event()

    async def work(made: Made) -> str:
        ran.append(made.order)
        await over.wait()
        return "done"

    async def first(said: list[Said]) -> Answer:
        if kind == "model_request":
            await over.wait()
        return PAY

    script = Script(first, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=work)]))) as app:
        run = await app.client.start("support", "go")
        await end_from_elsewhere(app, run, kind, result)
        with pytest.raises(RunFailedError, match=r"Step '.*' has run, but its result cannot be read") as failed:
            await run.result()
        over.set()

    assert failed.value.error_type == "UnreadableResultError"
    assert "secret-kind" not in str(failed.value)
    assert (len(ran), script.calls) == (kind == "call_tool", 1)


async def end_from_elsewhere(app: RunningApp, run: Run, kind: str, result: object) -> None:
    """End the activity of a kind that is under way with a result that is not its own."""
    handle = app.client.temporal.get_workflow_handle(run.id)

    async def under_way() -> list[str]:
        pending = (await handle.describe()).raw_description.pending_activities
        return [one.activity_id for one in pending if kind in one.activity_type.name and one.state == 2]

    (activity_id,) = await eventually(under_way)
    elsewhere = app.client.temporal.get_async_activity_handle(workflow_id=run.id, run_id=None, activity_id=activity_id)
    await elsewhere.complete(result)


async def test_a_run_that_its_limits_stopped_goes_on_with_new_ones(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, [call("refund", "q", "A-2")], "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk)]), stuck_seconds=60)) as app:
        run = await app.client.start("support", "go", usage_limits=framework.turns(2))
        step = await stuck(app, run)
        with pytest.raises(RefusedError, match="The new limits do not fit: There are no usage limits nonsense"):
            await run.retry(usage_limits={"nonsense": 3})
        with pytest.raises(RefusedError, match="The new limits do not fit"):
            await run.retry(usage_limits=dict.fromkeys(framework.turns(1), "many"))
        await run.retry(usage_limits=framework.turns(3))
        output = await run.result()

    assert (step.kind, step.error_type) == ("model", framework.out_of_turns)
    assert (desk.orders, script.calls, output.usage.requests) == (["A-1", "A-2"], 3, 3)


async def test_a_run_that_is_not_stuck_refuses_a_retry(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        with pytest.raises(RefusedError, match="No step of this run is stuck"):
            await run.retry()
        await run.decide("1", "approve")
        await run.result()


async def test_an_inner_agents_call_is_the_step_that_is_stuck(framework: Framework, run_app: RunApp) -> None:
    desk = Desk([ConnectionError("unplugged")])
    inner_script, script = Script(PAY, "inner"), Script([ask("inner", "i")], "done")
    inner = framework.agent(inner_script, name="inner", tools=[Tool(body=desk)])
    build = app_of(framework.agent(script, tools=[Inner("inner", inner)]), inner, stuck_seconds=60)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        step = await stuck(app, run)
        assert step.agent_path == ("support", "inner")
        await run.retry()
        await run.result()

    assert (desk.orders, script.calls, inner_script.calls) == (["A-1", "A-1"], 2, 2)


async def asked(app: RunningApp, run: Run) -> ApprovalRequest:
    """Approve the call and wait until the run asks whether it happened."""
    (request,) = await app.requests(run, 1)
    await run.decide(request.request_id, "approve", digest=request.digest)
    state = await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
    assert state.status == "awaiting_approval"
    return state.requests[0]


async def test_an_approved_call_that_failed_after_its_effect_is_asked_about(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk([ConnectionError("reset by peer, token=hunter2")]), Script(PAY, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]), retries=THRICE)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        question = await asked(app, run)
        for verdict in ("approve", "reject"):
            with pytest.raises(RefusedError, match="asks whether an approved call happened"):
                await run.decide(question.request_id, verdict)
        await run.decide(question.request_id, "happened", result="paid, receipt 77", digest=question.digest, by="ann")
        await run.result()
        state = await run.state()

    assert desk.orders == ["A-1"]
    assert (question.tool, question.call_id) == ("refund", "p")
    assert question.arguments == {"order": "A-1", "amount": 5.0}
    assert "Request 1 was approved and the call began, but it ended with ConnectionError" in question.question
    assert "hunter2" not in question.question
    assert script.results() == {"p": "paid, receipt 77"}
    assert [(one.outcome, one.by) for one in state.settled][1] == ("happened", "ann")


async def test_a_call_that_did_not_happen_runs_now_with_the_same_key(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk([ConnectionError(), ConnectionError()]), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        question = await asked(app, run)
        await run.decide(question.request_id, "not_happened")
        state = await app.state(run, lambda state: [one.request_id for one in state.requests] == ["3"])
        assert "Request 2 was approved and the call began" in state.requests[0].question
        await run.decide("3", "not_happened")
        await run.result()

    assert desk.orders == ["A-1"] * 3
    assert len({made.key for made in desk.made}) == 1
    assert (script.results(), script.calls) == ({"p": "done A-1"}, 2)


async def test_giving_up_ends_the_run_with_a_type(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk([ConnectionError()]), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        question = await asked(app, run)
        await run.decide(question.request_id, "give_up", reason="cannot tell")
        with pytest.raises(RunFailedError, match="not known whether the approved call of 'refund'") as failed:
            await run.result()

    assert (failed.value.error_type, desk.orders) == ("OutcomeUnknownError", ["A-1"])


async def test_an_idempotent_tool_is_tried_again_once_it_is_approved(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk([ConnectionError(), ConnectionError()]), Script(PAY, "done")
    build = app_of(framework.agent(script, tools=[Tool(body=desk, gated=True, idempotent=True)]), retries=THRICE)
    async with run_app(build) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()

    assert desk.orders == ["A-1"] * 3
    assert len({made.key for made in desk.made}) == 1
    assert script.results() == {"p": "done A-1"}
