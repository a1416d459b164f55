"""Time limits of requests: what follows when nobody answers, for how long, and that it is never an approval."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from interlock import Interlock, RefusedError, Run, RunFailedError, Settings
from interlock.contracts import names
from interlock.contracts.payloads import Decision, RunState
from interlock.journal import Request
from interlock.testing import RunningApp, eventually
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import ONCE, Desk, Framework, Inner, Script, Tool, app_of, ask, call

PAY = [call("refund", "a", "A-1", 10.0)]
SOON, HOUR = 0.4, 3_600


def deny(after_seconds: float) -> dict[str, Any]:
    return {"after_seconds": after_seconds, "then": "deny"}


def escalate(after_seconds: float, *to: str) -> dict[str, Any]:
    return {"after_seconds": after_seconds, "then": "escalate", "to": list(to)}


def refund(limit: Any, desk: Desk | None = None, name: str = "refund") -> Tool:
    return Tool(name=name, body=desk or Desk(), gated=True, limit=limit)


def settled(state: RunState) -> list[tuple[str, str]]:
    return [(one.request_id, one.outcome) for one in state.settled]


def has_settled(count: int, state: RunState) -> bool:
    return len(state.settled) == count


def came_by(request: Request) -> tuple[str, str]:
    """The answer that counted, and how it came."""
    assert request.answer is not None
    return request.answer.verdict, request.answer.via


async def fired_timers(app: RunningApp, run: Run) -> int:
    """How many timers of the run have fired, as the server says: it needs no worker."""
    events = (await app.client.temporal.get_workflow_handle(run.id).fetch_history()).events
    return sum(event.HasField("timer_fired_event_attributes") for event in events)


async def test_a_call_that_nobody_answers_is_denied_and_the_model_reads_that(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[refund(deny(SOON), desk)]))) as app:
        run = await app.client.start("support", "refund A-1")
        output = await run.result()
        journal, state = await run.journal(), await run.state()
        events = [event async for event in run.events()]

        told = (
            "Nobody answered the request to approve this call within 400 ms. "
            "The call was not made; nobody has refused it."
        )
        assert (output.output, script.results(), desk.made) == ("done", {"a": told}, [])
        assert output.usage.tool_calls == 0
        assert settled(state) == [("1", "timed_out")]
        assert (state.settled[0].by, state.settled[0].reason) == ("", told)
        (request,) = journal.requests
        assert (request.outcome, request.then, request.executed) == ("timed_out", "deny", None)
        assert came_by(request) == ("deny", "limit")
        assert request.expires_at
        assert request.settled_at
        assert request.expires_at <= request.settled_at
        assert [event.status for event in events if event.kind.startswith("approval_")] == ["", "timed_out"]


async def test_what_comes_after_the_limit_is_refused_with_what_became_of_the_request(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script([*PAY, call("hold", "b", "A-2")], "done")
    tools = [refund(deny(SOON), desk), refund(None, name="hold")]
    async with run_app(app_of(framework.agent(script, tools=tools))) as app:
        run = await app.client.start("support", "refund A-1")
        await app.state(run, lambda state: settled(state) == [("1", "timed_out")])
        with pytest.raises(RefusedError, match=r"'1' was not answered in time, at .* UTC: Nobody answered"):
            await run.decide("1", "approve")
        await run.decide("2", "reject")
        await run.result()

        assert desk.made == []
        assert [request.outcome for request in (await run.journal()).requests] == ["timed_out", "rejected"]


async def test_a_limit_that_fails_ends_the_run_and_withdraws_what_else_is_open(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script([*PAY, call("hold", "b", "A-2")], "done")
    tools = [refund({"after_seconds": SOON, "then": "fail"}, desk), refund(None, desk, "hold")]
    async with run_app(app_of(framework.agent(script, tools=tools), stuck_seconds=60)) as app:
        run = await app.client.start("support", "refund A-1")
        about = r"Request 1, about a call of 'refund', was open from .* within 400 ms, so the run ends"
        with pytest.raises(RunFailedError, match=about) as failed:
            await run.result()
        journal = await run.journal()

        assert (failed.value.error_type, failed.value.status) == (names.APPROVAL_TIMED_OUT, "failed")
        assert [(one.outcome, one.then) for one in journal.requests] == [("timed_out", "fail"), ("withdrawn", None)]
        assert (desk.made, script.calls) == ([], 1)


async def test_a_request_that_is_escalated_stays_open_and_says_to_whom(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    limit = [escalate(0.1, "ops-lead"), escalate(SOON, "cto", "ops-lead")]
    async with run_app(app_of(framework.agent(script, tools=[refund(limit, desk)]))) as app:
        run = await app.client.start("support", "refund A-1")
        state = await app.state(run, lambda state: any("cto" in one.escalated_to for one in state.requests))
        (request,) = state.requests
        assert (request.escalated_to, request.escalates_at, request.expires_at) == (("ops-lead", "cto"), None, None)
        assert state.status == "awaiting_approval"
        (listed,) = await run.approvals()
        assert (listed.digest, listed.escalated_to) == (request.digest, request.escalated_to)
        assert listed.escalated_at is not None
        (open_one,) = (await run.journal()).requests
        assert (open_one.outcome, open_one.escalated_to) == ("open", ("ops-lead", "cto"))
        assert open_one.escalated_at is not None
        assert open_one.escalated_at >= listed.requested_at + timedelta(seconds=SOON)
        await run.decide("1", "approve", digest=request.digest, by="ann")
        await run.result()

        (decided,) = (await run.journal()).requests
        assert (decided.outcome, decided.escalated_to) == ("approved", ("ops-lead", "cto"))
        told = [event.text for event in [one async for one in run.events()] if event.kind == "approval_escalated"]
        assert told == ["ops-lead", "ops-lead, cto"]
        assert desk.orders == ["A-1"]


async def test_after_an_escalation_another_limit_follows(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    limit = [escalate(0.1, "ops-lead"), deny(SOON)]
    async with run_app(app_of(framework.agent(script, tools=[refund(limit, desk)]))) as app:
        run = await app.client.start("support", "refund A-1")
        await run.result()
        (request,) = (await run.journal()).requests

        assert (request.outcome, request.escalated_to) == ("timed_out", ("ops-lead",))
        assert request.escalated_at
        assert request.settled_at
        assert request.escalated_at < request.settled_at
        assert "within 400 ms" in script.results()["a"]
        assert desk.made == []


async def test_each_of_several_calls_has_its_own_limit_and_an_answer_ends_it(
    framework: Framework, run_app: RunApp
) -> None:
    desk = Desk()
    calls = [*PAY, call("later", "b", "A-2"), call("never", "c", "A-3")]
    tools = [refund(deny(SOON), desk), refund([escalate(HOUR, "ops"), deny(2 * HOUR)], desk, "later")]
    script = Script(calls, "done")
    async with run_app(app_of(framework.agent(script, tools=[*tools, refund(None, desk, "never")]))) as app:
        run = await app.client.start("support", "refund all")
        state = await app.state(run, partial(has_settled, 1))
        later, never = state.requests
        assert (later.then, later.escalates_to) == ("deny", ("ops",))
        assert later.escalates_at == later.requested_at + timedelta(seconds=HOUR)
        assert later.expires_at == later.requested_at + timedelta(seconds=2 * HOUR)
        assert (never.then, never.expires_at, never.escalates_at) == (None, None, None)
        await run.decide("2", "approve")
        await run.decide("3", "approve")
        await run.result()

        assert settled(await run.state()) == [("1", "timed_out"), ("2", "approved"), ("3", "approved")]
        assert (sorted(desk.orders), await fired_timers(app, run)) == (["A-2", "A-3"], 1)
        assert [one.outcome for one in (await run.journal()).requests] == ["timed_out", "approved", "approved"]


@pytest.mark.parametrize("in_body", [False, True], ids=["in the run", "in the body"])
async def test_a_call_of_a_nested_agent_is_denied_by_its_limit(
    framework: Framework, run_app: RunApp, in_body: bool
) -> None:
    desk, inner_script = Desk(), Script(PAY, "inner done")
    inner = framework.agent(inner_script, name="payer", tools=[refund(deny(SOON), desk)])
    script = Script([ask("payer", "d")], "outer done")
    outer = framework.agent(script, tools=[Inner("payer", inner, in_body=in_body)])
    async with run_app(app_of(outer, inner)) as app:
        run = await app.client.start("support", "help")
        output = await run.result()

        assert (output.output, script.results(), desk.made) == ("outer done", {"d": "inner done"}, [])
        assert "Nobody answered" in inner_script.results()["a"]


async def test_a_limit_that_ends_an_agent_in_a_body_fails_the_call_and_a_retry_has_it_asked_again(
    framework: Framework, run_app: RunApp
) -> None:
    desk, inner_script, script = Desk(), Script(PAY, "inner done"), Script([ask("payer", "d")], "outer done")

    def build(limit: Any) -> Interlock:
        inner = framework.agent(inner_script, name="payer", tools=[refund(limit, desk)])
        outer = framework.agent(script, tools=[Inner("payer", inner, in_body=True)])
        return app_of(outer, inner, stuck_seconds=600)

    async with run_app(build({"after_seconds": SOON, "then": "fail"})) as app:
        run = await app.client.start("support", "help")
        state = await app.state(run, lambda state: bool(state.stuck))
        assert [(one.kind, one.error_type) for one in state.stuck] == [("tool", names.APPROVAL_TIMED_OUT)]
        (sub_run,) = state.sub_runs
        payer = app.client.attach(sub_run.workflow_id)
        with pytest.raises(RunFailedError, match="Nobody answered the request") as failed:
            await payer.result()
        assert failed.value.error_type == names.APPROVAL_TIMED_OUT
    async with run_app(build(None), queue=app.client.task_queue) as app:
        await run.retry()
        await app.requests(payer, 1)
        await payer.decide("1", "approve")
        output = await run.result()

    assert (output.output, script.results(), desk.orders) == ("outer done", {"d": "inner done"}, ["A-1"])


async def test_a_limit_that_passes_without_a_worker_holds_when_one_is_back(
    framework: Framework, run_app: RunApp
) -> None:
    """Answers that come meanwhile are judged by when they were given."""
    calls = [call("refund", one, f"A-{number}") for number, one in enumerate("abcd", 1)]
    for seconds in (2.0, 8.0, 32.0):  # Longer where the worker did not leave in time.
        desk, script = Desk(), Script(calls, "done")
        limit = [escalate(seconds * 0.9, "ops"), deny(seconds)]
        build = app_of(framework.agent(script, tools=[refund(limit, desk)]))
        async with run_app(build) as app:
            run = await app.client.start("support", "refund all")
            requests = await app.requests(run, 4)
        if await fired_timers(app, run) == 0:
            break
        await run.cancel()
    over = max(request.expires_at for request in requests if request.expires_at)

    async def is_over() -> bool:
        return datetime.now(UTC) > over and await fired_timers(app, run) == 4

    await eventually(is_over)

    def approval(request_id: str, decided_at: datetime) -> Decision:
        return Decision(request_id=request_id, verdict="approve", decided_by="ann", decided_at=decided_at)

    handle: WorkflowHandle[Any, Any] = app.client.temporal.get_workflow_handle(run.id)
    await handle.signal(names.DECIDE_APPROVAL, approval("1", requests[0].requested_at))
    await handle.signal(names.DECIDE_APPROVAL, approval("2", datetime.now(UTC)))
    updated = handle.execute_update(names.SUBMIT_DECISION, approval("4", requests[0].requested_at))
    update: asyncio.Future[Any] = asyncio.ensure_future(
        updated
    )  # It waits for the worker, or comes right after it: then it is refused.
    async with run_app(build, queue=app.client.task_queue) as app:
        await asyncio.wait([update])
        await run.result()
        journal = await run.journal()

    taken = update.exception() is None
    assert sorted(desk.orders) == ["A-1", *(["A-4"] if taken else [])]
    assert ["Nobody answered" in script.results()[call_id] for call_id in "abcd"] == [False, True, True, not taken]
    assert [(one.outcome, one.escalated_to) for one in journal.requests[:3]] == [
        ("approved", ()),
        ("timed_out", ("ops",)),
        ("timed_out", ("ops",)),
    ]
    assert journal.requests[3].outcome == ("approved" if taken else "timed_out")
    assert [one.ignored for one in journal.requests[1].ignored] == ["the time for an answer was over"]


async def test_a_fork_takes_a_denial_by_the_limit_over_and_asks_again_where_it_begins_before(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script(PAY, "done", "again")
    async with run_app(app_of(framework.agent(script, tools=[refund(deny(SOON), desk)]))) as app:
        run = await app.client.start("support", "refund A-1")
        await run.result()
        steps = (await run.journal()).steps
        asked = next(step.position for step in steps if step.kind == "description")
        told = script.results()
        for at, via in ((len(steps), "fork"), (len(steps), "fork"), (asked, "limit")):
            run = await app.client.fork(await app.client.plan_fork(run.id, at=at))
            await run.result()
            (request,) = (await run.journal()).requests
            assert (request.outcome, came_by(request)) == ("timed_out", ("deny", via))
            assert script.results() == told
            assert settled(await run.state()) == [("1", "timed_out")]

        assert desk.made == []


async def test_a_fork_asks_again_about_what_ended_the_run(framework: Framework, run_app: RunApp) -> None:
    limit = {"after_seconds": SOON, "then": "fail"}
    async with run_app(app_of(framework.agent(Script(PAY, "done"), tools=[refund(limit)]))) as app:
        run = await app.client.start("support", "refund A-1")
        with pytest.raises(RunFailedError):
            await run.result()
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=len((await run.journal()).steps) + 1))
        with pytest.raises(RunFailedError):
            await fork.result()

        (request,) = (await fork.journal()).requests
        assert came_by(request) == ("fail", "limit")


async def test_code_that_has_changed_does_not_change_the_limit_of_an_open_request(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script([*PAY, call("refund", "b", "A-2")], "done")

    def build(limit: Any) -> Interlock:
        return app_of(framework.agent(script, tools=[refund(limit, desk)]))

    async with run_app(build(deny(HOUR))) as app:
        run = await app.client.start("support", "refund both")
        before, _ = await app.requests(run, 2)
    for limit in ({"after_seconds": 0.01, "then": "fail"}, None):
        async with run_app(build(limit), queue=app.client.task_queue) as app:
            assert (await app.requests(run, 2))[0] == before
    async with run_app(build([]), queue=app.client.task_queue) as app:
        await run.decide("1", "approve", digest=before.digest)
        await run.decide("2", "approve")
        await run.result()

    assert sorted(desk.orders) == ["A-1", "A-2"]


async def test_an_app_has_a_limit_for_tools_that_have_none(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script([*PAY, call("waits", "b", "A-2")], "done")
    agent = framework.agent(script, tools=[refund(None, desk), refund([], desk, "waits")])
    app_wide = Interlock([agent], settings=Settings(stuck_seconds=0), retries=ONCE, approvals=deny(SOON))
    async with run_app(app_wide) as app:
        run = await app.client.start("support", "refund both")
        state = await app.state(run, partial(has_settled, 1))
        assert settled(state) == [("1", "timed_out")]
        (request,) = state.requests
        assert (request.tool, request.expires_at) == ("waits", None)
        await run.decide("2", "approve")
        await run.result()

    assert desk.orders == ["A-2"]


async def test_cancelling_a_run_withdraws_a_request_with_a_limit(framework: Framework, run_app: RunApp) -> None:
    script = Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[refund([escalate(0.1, "ops"), deny(HOUR)])]))) as app:
        run = await app.client.start("support", "refund A-1")
        await app.state(run, lambda state: any(one.escalated_at for one in state.requests))
        await run.cancel()
        with pytest.raises(RunFailedError, match="ancelled"):
            await run.result()

        assert [one.outcome for one in (await run.journal()).requests] == ["withdrawn"]
