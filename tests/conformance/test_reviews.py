"""Review of a run's output: a person sees it first, and may change it, send it back or give up on it."""

from functools import partial

import pytest
from pydantic import BaseModel

from interlock import RefusedError, RunFailedError
from interlock.contracts.payloads import Decision, RunState
from interlock.worker import make_replayer
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Desk, Framework, Inner, Script, Tool, app_of, ask, call

SECRET = "sk-live-0123456789abcdefghij"


class Letter(BaseModel):
    subject: str
    pages: int = 1
    api_key: str = ""


def asks(request_id: str, state: RunState) -> bool:
    return [one.request_id for one in state.requests] == [request_id]


async def test_an_output_is_the_runs_once_somebody_has_approved_it(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script([call("refund", "r", "A-1", 1.0)], f"done, with {SECRET}")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go", review=True)
        await app.requests(run, 1)
        await run.decide("1", "approve")
        state = await app.state(run, partial(asks, "2"))
        (request,) = state.requests
        assert (state.status, request.kind, request.agent_path) == ("awaiting_approval", "output", ("support",))
        assert request.arguments == {"output": "done, with [masked]"}
        assert "4 more times" in request.question
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide("2", "approve", digest="another")
        with pytest.raises(RefusedError, match="whether this is the run's output"):
            await run.decide("2", "happened")
        await run.decide("2", "approve", digest=request.digest, by="ann")
        output = await run.result()

    assert (output.output, output.usage.requests, output.usage.tool_calls) == (f"done, with {SECRET}", 2, 1)
    assert (script.calls, desk.orders) == (2, ["A-1"])


async def test_feedback_goes_to_the_model_until_an_output_is_approved(framework: Framework, run_app: RunApp) -> None:
    """Over restarts of the worker, whose app has another opinion of reviews each time; and as turns of a session."""
    desk = Desk()
    script = Script(
        [call("refund", "r", "A-1", 1.0)], "first", [call("refund", "s", "A-2", 2.0)], "second", "third", "4th"
    )
    agent = framework.agent(script, tools=[Tool(body=desk)])
    build, other = app_of(agent, review={"support": 3}), app_of(agent)
    async with run_app(build) as app:
        run = await app.client.start("support", "go", session=f"s-{app.client.task_queue}")
        await app.requests(run, 1)
        for empty in ("", "  "):
            with pytest.raises(RefusedError, match="Say what is to be changed"):
                await run.decide("1", "reject", reason=empty)
        # By signal nobody is told, and nothing changes either.
        handle = app.client.temporal.get_workflow_handle(run.id)
        (request,) = await run.approvals()
        decision = Decision(request_id="1", verdict="reject", decided_at=request.requested_at)
        await handle.signal("decide_approval", decision)
        assert (await app.requests(run, 1))[0].request_id == "1"
    async with run_app(other, queue=app.client.task_queue) as app:
        await run.decide("1", "reject", reason="Pay A-2 too.", by="ann")
        (request,) = (await app.state(run, partial(asks, "2"))).requests
        assert (request.arguments, "once more" in request.question) == ({"output": "second"}, True)
    async with run_app(app_of(agent, review={"support": 1}), queue=app.client.task_queue) as app:
        await run.decide("2", "reject", reason="Shorter.", by="bob")
        (request,) = (await app.state(run, partial(asks, "3"))).requests
        assert "last of 3" in request.question
        await run.decide("3", "approve", by="ann")
        output = await run.result()
        journal = await run.journal()
        told = [event.kind async for event in run.events() if event.kind.startswith("approval_")]
        conversation = await app.client.conversation(f"s-{app.client.task_queue}")

    assert (output.output, output.usage.requests, output.usage.tool_calls) == ("third", 5, 2)
    assert (script.calls, desk.orders) == (5, ["A-1", "A-2"])
    said = [part.text for part in script.asked[-1] if part.kind in ("user", "text")]
    assert said == ["go", "first", "Pay A-2 too.", "second", "Shorter."]
    assert len(conversation) == len(output.messages or [])
    assert output.turn == 1
    assert told == ["approval_asked", "approval_decided"] * 3
    assert [(one.outcome, one.answer and one.answer.by) for one in journal.requests] == [
        ("rejected", "ann"),
        ("rejected", "bob"),
        ("approved", "ann"),
    ]
    assert [one.ignored for one in journal.requests[0].ignored] == ["it does not say what to change"]


async def test_an_output_is_edited_if_the_edit_fits(framework: Framework, run_app: RunApp) -> None:
    said = Letter(subject=f"Refund by {SECRET}", pages=2, api_key=SECRET)
    script = Script(said.model_dump_json())
    async with run_app(app_of(framework.agent(script, output=Letter))) as app:
        run = await app.client.start("support", "go", review=2)
        (request,) = await app.requests(run, 1)
        shown = {"subject": "Refund by [masked]", "pages": 2, "api_key": "[masked]"}
        assert request.arguments == {"output": shown}
        for unfit in ({"output": {"subject": "Refund", "pages": "many"}}, {"output": "text"}, {"output": None}):
            with pytest.raises(RefusedError, match=r"edited output does not fit agent 'support': .*stays open"):
                await run.decide("1", "approve", arguments=unfit)
        with pytest.raises(RefusedError, match="is to be given as"):
            await run.decide("1", "approve", arguments={"subject": "Refund"})
        edited = {"output": {"subject": "Paid by [masked].", "api_key": "[masked]"}}
        await run.decide("1", "approve", arguments=edited, by="ann")
        output = await run.result()
        (asked,) = (await run.journal()).requests
        (settled,) = (await run.state()).settled

    assert output.output == {"subject": f"Paid by {SECRET}.", "pages": 1, "api_key": SECRET}
    assert "Paid" not in str(output.messages)
    assert (asked.outcome, asked.edited, asked.proposed) == ("approved", True, {"output": shown})
    assert asked.executed == edited
    assert (settled.edited, settled.by, SECRET in settled.label) == (True, "ann", False)


async def test_giving_up_on_an_output_ends_the_run(framework: Framework, run_app: RunApp) -> None:
    script = Script("done")
    async with run_app(app_of(framework.agent(script), stuck_seconds=600)) as app:
        run = await app.client.start("support", "go", review=True)
        await app.requests(run, 1)
        await run.decide("1", "give_up", reason="It will never be good.", by="ann")
        with pytest.raises(RunFailedError, match=r"ann has given up on the output: It will never be good\.") as failed:
            await run.result()

    assert (failed.value.error_type, failed.value.status, script.calls) == ("OutputRejectedError", "failed", 1)


@pytest.mark.parametrize("stuck_seconds", [0, 600], ids=["ends", "stuck"])
async def test_no_output_is_lost_when_the_rounds_are_used_up(
    framework: Framework, run_app: RunApp, stuck_seconds: float
) -> None:
    script = Script("first", "second", "third", "fourth")
    async with run_app(app_of(framework.agent(script), stuck_seconds=stuck_seconds)) as app:
        run = await app.client.start("support", "go", review=2)
        for number in ("1", "2"):
            await app.state(run, partial(asks, number))
            await run.decide(number, "reject", reason=f"Not {number}.", by="ann")
        if not stuck_seconds:
            with pytest.raises(RunFailedError, match=r"ann wants the output changed.* last of 2 .*: Not 2\.") as failed:
                await run.result()
            assert (failed.value.error_type, script.calls) == ("ReviewRoundsUsedUpError", 2)
            return
        (step,) = (await app.state(run, lambda state: bool(state.stuck))).stuck
        assert (step.kind, step.error_type, script.calls) == ("model", "ReviewRoundsUsedUpError", 2)
        await run.retry()
        await app.state(run, partial(asks, "3"))
        await run.decide("3", "reject", reason="Once more.")
        await app.state(run, partial(asks, "4"))
        # A fork before the last step takes over what was decided, and that somebody had the model asked again.
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=len((await run.journal()).steps)))
        (request,) = (await app.state(fork, partial(asks, "4"))).requests
        assert (request.arguments, script.calls) == ({"output": "fourth"}, 4)
        await fork.decide("4", "approve")
        assert (await fork.result()).output == "fourth"
        await run.decide("4", "approve")
        output = await run.result()

    assert (output.output, output.usage.requests, script.calls) == ("fourth", 4, 4)
    assert [part.text for part in script.asked[2] if part.kind == "user"] == ["go", "Not 1.", "Not 2."]


async def test_a_fork_takes_over_a_review_or_decides_it_otherwise(framework: Framework, run_app: RunApp) -> None:
    first = "Dear Ann. " * 300  # More than a journal shows of it.
    script = Script(first, "second")
    async with run_app(app_of(framework.agent(script))) as app:
        run = await app.client.start("support", "go", review=2)
        await app.requests(run, 1)
        await run.decide("1", "reject", reason="Longer.")
        await app.state(run, partial(asks, "2"))
        await run.decide("2", "approve")
        await run.result()
        journal = await run.journal()
        assert [step.kind for step in journal.steps] == ["model", "description", "model", "description"]
        whole = await app.client.fork(await app.client.plan_fork(run.id, at=5))
        assert (await whole.result()).output == "second"
        asked = await app.client.fork(await app.client.plan_fork(run.id, at=4))
        (request,) = (await app.state(asked, partial(asks, "2"))).requests
        assert request.arguments == {"output": "second"}
        await asked.cancel()
        with pytest.raises(RunFailedError):
            await asked.result()
        assert [one.outcome for one in (await asked.journal()).requests] == ["rejected", "withdrawn"]
        edited = f"{first[:-1]}!"
        decision = Decision(
            request_id="", verdict="approve", arguments={"output": edited}, decided_at=request.requested_at
        )
        other = await app.client.fork(await app.client.plan_fork(run.id, at=2, decision=decision))
        assert (await other.result()).output == edited
        assert [(one.outcome, one.edited) for one in (await other.journal()).requests] == [("approved", True)]

    assert script.calls == 2


async def test_only_the_agent_that_it_is_said_of_is_reviewed(framework: Framework, run_app: RunApp) -> None:
    inner_script, script = Script("inner"), Script([ask("inner", "i")], "outer")
    inner = framework.agent(inner_script, name="inner")
    outer = framework.agent(script, tools=[Inner("inner", inner, in_body=True)])
    async with run_app(app_of(outer, inner, review={"support": 1})) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        assert (request.agent_path, request.arguments) == (("support",), {"output": "outer"})
        await run.decide("1", "approve")
        await run.result()
    async with run_app(app_of(outer, inner, review={"inner": 1})) as app:
        run = await app.client.start("support", "go")
        (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        child = app.client.attach(sub_run.workflow_id)
        (request,) = await app.requests(child, 1)
        assert (request.agent_path, request.arguments) == (("support", "inner"), {"output": "inner"})
        await child.decide("1", "approve", arguments={"output": "edited"})
        assert (await run.result()).output == "outer"
        assert script.results() == {"i": "edited"}


async def test_a_run_that_nobody_reviews_is_not_asked_about_when_its_app_changes(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script([call("refund", "r", "A-1", 1.0)], "done")
    agent = framework.agent(script, tools=[Tool(body=desk, gated=True)])
    later = app_of(agent, review={"support": True})
    async with run_app(app_of(agent)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await make_replayer(later).replay_workflow(
            await app.client.temporal.get_workflow_handle(run.id).fetch_history()
        )
    async with run_app(later, queue=app.client.task_queue):
        await run.decide("1", "approve")
        assert (await run.result()).output == "done"
