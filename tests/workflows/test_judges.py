"""Judges: handlers of deferred calls that are asked before a person is."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import RunContext, Tool
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import CallDeferred, ToolFailed
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved, ToolDenied

from interlock import Interlock
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

Rule = Callable[[DeferredToolRequests], DeferredToolResults | None]


class Judge:
    """A judge that rules by amount, and remembers each call it was asked about."""

    def __init__(self, rule: Rule) -> None:
        self.asked: list[str] = []
        self._rule = rule

    def __call__(self, ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
        (one,) = [*requests.approvals, *requests.calls]
        self.asked.append(one.tool_call_id)
        return self._rule(requests)


def refund(order: str, amount: float) -> str:
    return f"refunded {order} {amount:g}"


CALLS = [
    call("refund", name, order=name, amount=amount) for name, amount in (("low", 5.0), ("mid", 50.0), ("top", 500.0))
]


def by_amount(requests: DeferredToolRequests) -> DeferredToolResults | None:
    (one,) = requests.approvals
    amount = one.args_as_dict()["amount"]
    if amount > 100:
        return DeferredToolResults(approvals={one.tool_call_id: ToolDenied("over the limit")})
    return DeferredToolResults(approvals={one.tool_call_id: True}) if amount < 10 else None


async def test_a_judge_settles_what_it_is_sure_of_and_a_person_the_rest(run_app: Running) -> None:
    judge, script = Judge(by_amount), Script(CALLS, "done")
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=[HandleDeferredToolCalls(judge)])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "refund")
        (request,) = await app.requests(run, 1)
        assert request.call_id == "mid"
        await run.decide(request.request_id, "approve")
        await run.result()

        assert script.results() == {"low": "refunded low 5", "mid": "refunded mid 50", "top": "over the limit"}
        assert sorted(judge.asked) == ["low", "mid", "top"]
        settled = {one.by.partition("@")[0] or "nobody": one.outcome for one in (await run.state()).settled}
        assert settled["judge"] in ("approved", "rejected")


def raises(requests: DeferredToolRequests) -> DeferredToolResults | None:
    raise LookupError("no rule")


def answers_another(requests: DeferredToolRequests) -> DeferredToolResults | None:
    return DeferredToolResults(approvals={"somebody-else": True})


def edits_badly(requests: DeferredToolRequests) -> DeferredToolResults | None:
    (one,) = requests.approvals
    return DeferredToolResults(approvals={one.tool_call_id: ToolApproved(override_args={"order": 7})})


@pytest.mark.parametrize("rule", [raises, answers_another, edits_badly, lambda requests: None])
async def test_a_judge_that_fails_or_is_unsure_sends_the_call_to_a_person(run_app: Running, rule: Rule) -> None:
    judge, script = Judge(rule), Script(CALLS[:1], "done")
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=[HandleDeferredToolCalls(judge)])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "refund")
        await app.requests(run, 1)
        await run.decide("1", "reject", reason="no")
        await run.result()

        # Asked once: not again on a replay, and not after the person has answered, whose word stands.
        assert judge.asked == ["low"]
        assert script.results() == {"low": "no"}


def approves(requests: DeferredToolRequests) -> DeferredToolResults | None:
    return DeferredToolResults(approvals={one.tool_call_id: True for one in requests.approvals})


def denies(requests: DeferredToolRequests) -> DeferredToolResults | None:
    return DeferredToolResults(approvals={one.tool_call_id: ToolDenied("no") for one in requests.approvals})


@pytest.mark.parametrize(
    ("rules", "told", "asked"),
    [
        ([lambda requests: None, denies, approves], "no", [1, 1, 0]),
        ([approves, denies], "refunded low 5", [1, 0]),
        ([approves, raises], "refunded low 5", [1, 0]),
    ],
    ids=["unsure", "approves first", "fails after"],
)
async def test_of_several_judges_the_first_who_is_sure_counts(
    run_app: Running, rules: list[Rule], told: str, asked: list[int]
) -> None:
    judges, script = [Judge(rule) for rule in rules], Script(CALLS[:1], "done")
    handlers = [HandleDeferredToolCalls(judge) for judge in judges]
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=handlers)
    async with run_app(Interlock([durable])) as app:
        await (await app.client.start("support", "refund")).result()

        assert script.results() == {"low": told}
        assert [len(judge.asked) for judge in judges] == asked


def by_table(table: dict[str, bool | ToolDenied]) -> Rule:
    """Says the same whatever it is asked, also of calls that it is not asked about."""
    return lambda requests: DeferredToolResults(approvals=dict(table))


async def test_judges_who_also_settle_what_they_were_not_asked_settle_each_call_once(run_app: Running) -> None:
    calls = [*CALLS, call("refund", "odd", order="odd", amount=7.0)]
    first = Judge(by_table({"low": True, "mid": ToolDenied("the first says no")}))
    second = Judge(by_table({"mid": True, "top": True, "unheard-of": True}))
    script = Script(calls, "done")
    handlers = [HandleDeferredToolCalls(first), HandleDeferredToolCalls(second)]
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=handlers)
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "refund")
        (request,) = await app.requests(run, 1)
        assert request.call_id == "odd"
        await run.decide(request.request_id, "reject", reason="a person says no")
        await run.result()

    assert script.results() == {
        "low": "refunded low 5",
        "mid": "the first says no",
        "top": "refunded top 500",
        "odd": "a person says no",
    }
    assert (sorted(first.asked), sorted(second.asked)) == (["low", "mid", "odd", "top"], ["odd", "top"])


async def test_a_judge_can_edit_what_runs(run_app: Running) -> None:
    def halves(requests: DeferredToolRequests) -> DeferredToolResults | None:
        (one,) = requests.approvals
        edited = {**one.args_as_dict(), "amount": 1.0}
        return DeferredToolResults(approvals={one.tool_call_id: ToolApproved(override_args=edited)})

    judge, script = Judge(halves), Script(CALLS[:1], "done")
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=[HandleDeferredToolCalls(judge)])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "refund")
        await run.result()

        assert script.results() == {"low": "refunded low 1"}


async def test_a_judge_can_give_the_result_of_a_deferred_call(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    def answers(requests: DeferredToolRequests) -> DeferredToolResults | None:
        (one,) = requests.calls
        return DeferredToolResults(calls={one.tool_call_id: {"url": "x"}})

    judge, script = Judge(answers), Script([call("render", "a")], "done")
    async with run_app(
        Interlock([agent(script, tools=[render], capabilities=[HandleDeferredToolCalls(judge)])])
    ) as app:
        run = await app.client.start("support", "render")
        await run.result()

        assert script.results() == {"a": {"url": "x"}}


async def test_a_judge_can_fail_a_deferred_call(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    def fails(requests: DeferredToolRequests) -> DeferredToolResults | None:
        (one,) = requests.calls
        return DeferredToolResults(calls={one.tool_call_id: ToolFailed("no GPU left")})

    script = Script([call("render", "a")], "done")
    durable = agent(script, tools=[render], capabilities=[HandleDeferredToolCalls(Judge(fails))])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "render")
        await run.result()

        assert script.results() == {"a": "no GPU left"}
        assert script.outcomes() == {"a": "failed"}


async def test_a_judge_that_is_not_loaded_yet_is_not_asked(run_app: Running) -> None:
    judge, script = Judge(by_amount), Script(CALLS[:1], "done")
    handler = HandleDeferredToolCalls(judge)
    handler.id, handler.defer_loading, handler.description = "judge", True, "Judges refunds."
    durable = agent(script, tools=[Tool(refund, requires_approval=True)], capabilities=[handler])
    async with run_app(Interlock([durable])) as app:
        run = await app.client.start("support", "refund")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()

        assert judge.asked == []
