"""Approval of tool calls: who is asked what, what runs, and what the model is told."""

import asyncio
from functools import partial
from typing import Any

import pytest

from interlock import Interlock, RefusedError, RunFailedError
from interlock.contracts.payloads import RunState
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Call, Desk, Framework, Script, Tool, app_of, call

PAY = [call("refund", "a", "A-1", 10.0)]


def two_refunds() -> list[Call]:
    return [call("refund", "a", "A-1", 10.0), call("refund", "b", "A-2", 20.0)]


def one_app(framework: Framework, script: Script, *tools: Tool) -> Interlock:
    return app_of(framework.agent(script, tools=tools))


def asks_for(request_id: str, state: RunState) -> bool:
    return [request.request_id for request in state.requests] == [request_id]


async def test_an_approved_call_runs_once_and_no_model_call_is_repeated(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1")
        (request,) = await app.requests(run, 1)
        assert (request.kind, request.tool, request.call_id) == ("approval", "refund", "a")
        assert (request.agent_path, request.description) == (("support",), "Pay money back.")
        assert request.arguments == {"order": "A-1", "amount": 10.0}
        await run.decide(request.request_id, "approve", digest=request.digest)
        output = await run.result()

        assert output.output == "done"
        assert await app.client.attach(run.id).result() == output
        assert desk.orders == ["A-1"]
        assert script.calls == 2
        assert script.results() == {"a": "done A-1"}
        assert (output.usage.requests, output.usage.tool_calls) == (2, 1)
        assert (output.usage.input_tokens, output.usage.output_tokens) == (10, 4)


@pytest.mark.parametrize("reason", ["too much", "", "  "])
async def test_the_model_reads_why_a_call_was_rejected(framework: Framework, run_app: RunApp, reason: str) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1")
        await app.requests(run, 1)
        await run.decide("1", "reject", reason=reason)
        output = await run.result()

        assert desk.made == []
        assert script.results() == {"a": reason.strip() or framework.denied}
        assert output.usage.tool_calls == 0


async def test_a_run_can_ask_any_number_of_times(framework: Framework, run_app: RunApp) -> None:
    desk = Desk()
    turns = [[call("refund", "same", f"A-{n}", 1.0)] for n in range(1, 5)]
    script = Script(*turns, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund all")
        for n in range(1, 5):
            await app.state(run, partial(asks_for, str(n)))
            await run.decide(str(n), "approve")

        assert (await run.result()).output == "done"
        assert desk.orders == ["A-1", "A-2", "A-3", "A-4"]
        assert script.calls == 5


async def test_each_call_starts_at_its_own_answer_and_ungated_calls_never_wait(
    framework: Framework, run_app: RunApp
) -> None:
    desk, looked = Desk(), Desk()
    script = Script([*two_refunds(), call("look", "c", "A-3")], "done")
    tools = [Tool(body=desk, gated=True), Tool(name="look", body=looked)]
    async with run_app(one_app(framework, script, *tools)) as app:
        run = await app.client.start("support", "refund both")
        await app.requests(run, 2)
        await app.state(run, lambda _: looked.orders == ["A-3"])
        await run.decide("2", "approve")
        await app.state(run, lambda _: desk.orders == ["A-2"])
        assert [request.request_id for request in await run.approvals()] == ["1"]
        await run.decide("1", "approve")
        await run.result()

        assert script.results() == {"a": "done A-1", "b": "done A-2", "c": "done A-3"}


async def test_edited_arguments_are_what_runs_and_the_model_is_told(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1")
        await app.requests(run, 1)
        with pytest.raises(RefusedError, match=r"do not fit 'refund': amount: .*The request stays open"):
            await run.decide("1", "approve", arguments={"order": "A-1", "amount": "lots"})
        with pytest.raises(RefusedError, match="extra"):
            await run.decide("1", "approve", arguments={"order": "A-1", "amount": 1.0, "extra": True})
        await run.decide("1", "approve", arguments={"order": "A-1", "amount": 4.0})
        await run.result()

        assert [made.amount for made in desk.made] == [4.0]
        assert any('{"order":"A-1","amount":4.0}' in part.text for part in script.asked[-1])
        (settled,) = (await run.state()).settled
        assert (settled.outcome, settled.edited) == ("approved", True)


async def test_the_word_of_an_approval_predicate_is_recorded(framework: Framework, run_app: RunApp) -> None:
    desk, said = Desk(), set[float]()

    def over_limit(arguments: dict[str, float]) -> bool:
        """Says the truth once for each amount, and when a replay asks again, the contrary."""
        first = arguments["amount"] not in said
        said.add(arguments["amount"])
        return bool(arguments["amount"] > 15) is first

    script = Script(two_refunds(), "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=over_limit))) as app:
        run = await app.client.start("support", "refund both")
        (request,) = await app.requests(run, 1)
        assert request.arguments == {"order": "A-2", "amount": 20.0}
        await app.state(run, lambda _: desk.orders == ["A-1"])
        await run.decide("1", "approve")
        await run.result()

        assert sorted(desk.orders) == ["A-1", "A-2"]
        assert sum("approval" in step.summary for step in await run.steps()) == 2


async def test_two_requests_for_the_same_call_have_an_answer_each(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script([*PAY, *PAY], PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund")
        first, second = await app.requests(run, 2)
        assert first.digest != second.digest
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide("1", "approve", digest=second.digest)
        await run.decide("1", "approve", digest=first.digest)
        await run.decide("2", "reject", reason="once is enough", digest=second.digest)
        await app.state(run, partial(asks_for, "3"))
        with pytest.raises(RefusedError, match="already approved"):
            await run.decide("1", "approve", digest=first.digest)
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide("3", "approve", digest=first.digest)
        await run.decide("3", "approve")
        await run.result()

        assert desk.orders == ["A-1", "A-1"]
        told = list(script.results(1).values())
        assert told == ["done A-1", "once is enough"]
        assert len(script.results()) == 3


async def test_secrets_are_masked_for_reviewers_and_reach_the_tool(framework: Framework, run_app: RunApp) -> None:
    desk, secret = Desk(), "sk-live-0123456789abcdef0123"
    script = Script([call("refund", "a", f"A-1 {secret}", 1.0)], "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1")
        (request,) = await app.requests(run, 1)
        assert secret not in str(request)
        await run.decide("1", "approve")
        await run.result()

        assert desk.orders == [f"A-1 {secret}"]
        assert secret not in str(await run.journal())


async def test_an_approved_call_of_a_tool_that_changed_since_is_asked_about_again(
    framework: Framework, run_app: RunApp
) -> None:
    before, after, script = Desk(), Desk(), Script(PAY, "done")
    old = one_app(framework, script, Tool(body=before, gated=True))
    new = one_app(framework, script, Tool(body=after, gated=True, description="Pay all of it back, twice."))
    async with run_app(old) as app:
        run = await app.client.start("support", "refund A-1")
        (earlier,) = await app.requests(run, 1)
    async with run_app(new, queue=app.client.task_queue) as app:
        await run.decide("1", "approve", digest=earlier.digest)
        (request,) = (await app.state(run, partial(asks_for, "2"))).requests
        assert request.description == "Pay all of it back, twice."
        assert request.digest != earlier.digest
        await run.decide("2", "approve", digest=request.digest)
        await run.result()

        assert (before.made, after.orders, script.calls) == ([], ["A-1"], 2)


WRONG: dict[str, Any] = {
    "wrong type": {"order": "A-1", "amount": "lots"},
    "missing": {"order": "A-1"},
    "not finite": '{"order": "A-1", "amount": Infinity}',
    "no object": "[1, 2]",
    "no JSON": '{"order": "A-1", "amo',
    "null": "null",
    "empty": "",
}


async def test_calls_with_arguments_that_do_not_fit_are_not_asked_about(framework: Framework, run_app: RunApp) -> None:
    desk, wrong = Desk(), [Call("refund", name, arguments) for name, arguments in WRONG.items()]
    script = Script(wrong, [call("refund", "right", "A-1", 10.0)], "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True, tells=True))) as app:
        run = await app.client.start("support", "refund A-1")
        (request,) = await app.requests(run, 1)
        assert (request.request_id, request.call_id) == ("1", "right")
        assert request.arguments == {"order": "A-1", "amount": 10.0}
        await run.decide("1", "approve")
        await run.result()

        assert desk.orders == ["A-1"]
        told = script.results(1)
        assert list(told) == list(WRONG)
        assert all("done" not in text for text in told.values())
        assert "amount" in told["wrong type"]
        assert [one.call_id for one in (await run.journal()).requests] == ["right"]


async def test_waiting_for_a_person_is_not_a_failure(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1")
        await app.requests(run, 1)
        report = await run.report()
        assert (report.status, report.error) == ("awaiting_approval", None)
        assert {step.status for step in await run.steps()} == {"completed"}
        attributes = (await app.client.temporal.get_workflow_handle(run.id).describe()).search_attributes
        assert attributes["InterlockStatus"] == ["awaiting_approval"]
        assert attributes["InterlockPendingApprovals"] == [1]
        assert attributes["InterlockLatestRequest"] == ["1"]
        await run.decide("1", "approve")
        await run.result()

        report = await run.report()
        assert (report.status, report.error) == ("completed", None)


async def test_limits_cover_both_sides_of_a_pause(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, [call("refund", "b", "A-2", 10.0)], "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "refund A-1", usage_limits=framework.turns(2))
        for n in range(1, 3):
            await app.state(run, partial(asks_for, str(n)))
            await run.decide(str(n), "approve")
        with pytest.raises(RunFailedError) as failed:
            await run.result()

        assert failed.value.error_type == framework.out_of_turns
        assert (desk.orders, script.calls) == (["A-1", "A-2"], 2)


async def test_strangers_and_nonsense_change_nothing(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run, other = await app.client.start("support", "go"), await app.client.start("support", "go")
        (request,), (foreign,) = await app.requests(run, 1), await app.requests(other, 1)
        with pytest.raises(RefusedError, match="'7' is not open; open: 1"):
            await run.decide("7", "approve")
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide("1", "approve", digest=foreign.digest)
        with pytest.raises(RefusedError, match="waits for an approval, not for a result"):
            await run.complete_tool_call("1", result="done")
        handle = app.client.temporal.get_workflow_handle(run.id)
        for nonsense in ({"request_id": "nonsense", "verdict": "approve"}, {"request_id": "1"}, 5):
            await handle.signal("decide_approval", nonsense)
        assert (await app.requests(run, 1)) == [request]
        await run.decide("1", "reject")
        await other.decide("1", "reject")
        await run.result()
        await other.result()

        assert desk.made == []


async def test_of_twenty_answers_at_once_one_counts(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(one_app(framework, script, Tool(body=desk, gated=True))) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        answers = [
            run.decide("1", "approve" if n % 2 else "reject", digest=request.digest, by=f"person {n}")
            for n in range(20)
        ]
        ends = await asyncio.gather(*answers, return_exceptions=True)
        await run.result()

        (counted,) = [end for end in ends if not isinstance(end, BaseException)]
        assert sum(isinstance(end, RefusedError) for end in ends) == 19
        assert desk.orders == (["A-1"] if counted.outcome == "approved" else [])
