"""A budget holds over all agents of a run: each model call counts once, and none begins that it has no room for."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.usage import RequestUsage, RunUsage
from temporalio.common import RetryPolicy

from interlock import Interlock, MisconfiguredError, Price, RefusedError, Retries, Run, RunFailedError
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts.payloads import RunState
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, eventually, running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

PRICES = {"scripted": Price(call_usd="0.10")}


def look(n: int) -> str:
    return f"saw {n}"


def looks(count: int) -> Script:
    """A model that looks so many times before it answers."""
    return Script(*([call("look", f"l{n}", n=n)] for n in range(count)), "done")


async def waiting(app: RunningApp, run: Run) -> RunState:
    """Wait until the run asks about its budget."""
    return await app.state(run, lambda state: [one.kind for one in state.requests] == ["budget"])


async def test_the_run_ends_before_the_call_that_would_go_over_the_limit(run_app: Running) -> None:
    script = looks(5)
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"requests": 3, "when_used_up": "end"}, stuck_seconds=600)
        with pytest.raises(RunFailedError, match=r"used up: 3 of 3 model calls are used") as ended:
            await run.result()

        assert ended.value.error_type == "BudgetUsedUpError"
        assert script.calls == 3


async def test_the_run_asks_and_goes_on_with_what_it_is_given(run_app: Running) -> None:
    script = looks(5)
    async with run_app(Interlock([agent(script, tools=[look])], prices=PRICES)) as app:
        run = await app.client.start("support", "go", budget={"requests": 2})
        state = await waiting(app, run)
        (request,) = state.requests
        assert (request.arguments, request.agent_path, script.calls) == ({"requests": 2}, ("support",), 2)
        assert "2 of 2 model calls are used" in request.question
        assert state.budget
        assert (state.budget.spent.requests, state.budget.waiting, state.budget.lacks) == (2, 1, ("requests",))
        assert state.status == "awaiting_approval"
        await run.decide("1", "approve", digest=request.digest, by="ann")
        state = await waiting(app, run)
        assert state.budget
        assert (state.budget.limits.requests, script.calls) == (4, 4)
        await run.decide("2", "approve", arguments={"requests": 9}, by="ann")
        output = await run.result()

        assert output.usage.requests == script.calls == 6
        assert str(output.usage.cost_usd) == "0.60"
        settled = (await run.state()).settled
        assert [(one.outcome, one.label, one.edited) for one in settled] == [
            ("approved", "budget: requests 2", False),
            ("approved", "budget: requests 9", True),
        ]


async def test_a_refused_extension_ends_the_run_by_name(run_app: Running) -> None:
    async with run_app(Interlock([agent(looks(5), tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"requests": 1}, stuck_seconds=600)
        await waiting(app, run)
        await run.decide("1", "reject", reason="too dear", by="ann")
        with pytest.raises(RunFailedError, match="ann has refused to extend it: too dear") as ended:
            await run.result()

        assert ended.value.error_type == "BudgetUsedUpError"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"requests": 0}, "requests: Input should be greater than 0"),
        ({"requests": -5}, "greater than 0"),
        ({"requests": 10**13}, "less than or equal to 1000000000000"),
        ({"requests": "many"}, "valid integer"),
        ({"tokens": 5}, "the budget has no limit tokens; it has requests"),
        ({"unpriced": True}, "the budget has no limit unpriced; it has requests"),
        ({"when_used_up": "end"}, "no limit when_used_up"),
        ({}, "name at least one of requests"),
    ],
    ids=str,
)
async def test_an_extension_that_is_none_is_refused_and_the_request_stays_open(
    server: Any, arguments: dict[str, Any], why: str
) -> None:
    async with running(Interlock([agent(looks(1), tools=[look])]), server) as app:
        run = await app.client.start("support", "go", budget={"requests": 1})
        await waiting(app, run)
        with pytest.raises(RefusedError, match=why):
            await run.decide("1", "approve", arguments=arguments)
        with pytest.raises(RefusedError, match="asks whether to extend the budget"):
            await run.decide("1", "happened", result=1)
        await run.decide("1", "approve")
        await run.result()


async def test_nobody_answers_in_time(run_app: Running) -> None:
    async with run_app(Interlock([agent(looks(3), tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"requests": 1, "ask_seconds": 0.3}, stuck_seconds=600)
        with pytest.raises(RunFailedError, match=r"nobody has extended it in 0.3 s"):
            await run.result()

        assert [one.outcome for one in (await run.state()).settled] == ["withdrawn"]


def tree(workers: int, turns: int) -> tuple[Interlock, Script, Script]:
    """An agent with one tool that runs so many agents at once, each with so many model calls."""
    inner_script = looks(turns - 1)
    inner = agent(inner_script, name="worker", tools=[look])

    async def all_at_once() -> list[str]:
        results = await asyncio.gather(*(inner.run(f"part {n}") for n in range(workers)))
        return [result.output for result in results]

    outer_script = Script([call("all_at_once", "a")], "all done")
    outer = agent(outer_script, tools=[all_at_once])
    return Interlock([outer, inner], prices=PRICES), outer_script, inner_script


async def sub_runs(app: RunningApp, run: Run, count: int) -> list[Run]:
    state = await app.state(run, lambda state: len(state.sub_runs) == count)
    return [app.client.attach(one.workflow_id) for one in state.sub_runs]


async def test_agents_that_tools_run_at_once_cannot_go_over_the_limit_together(run_app: Running) -> None:
    app_of_tree, outer, inner = tree(workers=4, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 8, "when_used_up": "end"}, stuck_seconds=600)
        with pytest.raises(RunFailedError, match="8 of 8 model calls are used") as ended:
            await run.result()

        assert ended.value.error_type == "BudgetUsedUpError"
        assert inner.calls + outer.calls == 8


async def test_a_tree_of_runs_within_its_budget_is_counted_once(run_app: Running) -> None:
    app_of_tree, _, _ = tree(workers=3, turns=2)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 8, "cost_usd": "0.81"})
        output = await run.result()
        state = await run.state()

        assert output.usage.requests == 8
        assert str(output.usage.cost_usd) == "0.80"
        assert state.budget
        assert state.budget.spent == output.usage.model_copy(update={"tool_calls": state.budget.spent.tool_calls})


async def test_one_answer_lets_every_run_of_the_tree_go_on(run_app: Running) -> None:
    app_of_tree, outer, inner = tree(workers=2, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 3})
        runs = await sub_runs(app, run, 2)
        states = [await waiting(app, one) for one in runs]
        assert {state.requests[0].agent_path for state in states} == {("support", "worker")}
        parent = (await run.state()).budget
        assert parent
        assert (parent.waiting, parent.spent.requests, outer.calls + inner.calls) == (2, 3, 3)
        await runs[0].decide("1", "approve", arguments={"requests": 20}, by="ann")
        output = await run.result()

        assert output.usage.requests == outer.calls + inner.calls == 8
        outcomes = [[one.outcome for one in (await one.state()).settled] for one in runs]
        assert outcomes == [["approved"], ["withdrawn"]]


async def test_a_refusal_in_one_run_ends_the_whole_tree(run_app: Running) -> None:
    app_of_tree, outer, inner = tree(workers=2, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 3}, stuck_seconds=600)
        runs = await sub_runs(app, run, 2)
        for one in runs:
            await waiting(app, one)
        await runs[1].decide("1", "reject", by="ann")
        with pytest.raises(RunFailedError, match="ann has refused to extend it") as ended:
            await run.result()

        assert ended.value.error_type == "BudgetUsedUpError"
        assert outer.calls + inner.calls == 3


async def test_agents_three_deep_share_one_budget(run_app: Running) -> None:
    c = agent(looks(1), name="c", tools=[look])

    async def to_c() -> Any:
        return (await c.run("go")).output

    b = agent(Script([call("to_c", "c")], "b done"), name="b", tools=[to_c])

    async def to_b() -> Any:
        return (await b.run("go")).output

    a = agent(Script([call("to_b", "b")], "a done"), name="a", tools=[to_b])
    async with run_app(Interlock([a, b, c])) as app:
        run = await app.client.start("a", "go", budget={"requests": 3})
        (middle,) = await sub_runs(app, run, 1)
        (deep,) = await sub_runs(app, middle, 1)
        request = (await waiting(app, deep)).requests[0]
        assert request.agent_path == ("a", "b", "c")
        await deep.decide("1", "approve", by="ann")
        output = await run.result()

        assert output.usage.requests == 6


async def test_an_agent_that_a_tool_runs_in_the_workflow_is_in_the_budget(run_app: Running) -> None:
    inner_script = looks(2)
    inner = agent(inner_script, name="worker", tools=[look])

    async def delegate() -> Any:
        return (await inner.run("part")).output

    outer = agent(Script([call("delegate", "d")], "done"), tools=[Tool(delegate, metadata={"temporal": False})])
    async with run_app(Interlock([outer, inner])) as app:
        run = await app.client.start("support", "go", budget={"requests": 2})
        request = (await waiting(app, run)).requests[0]
        assert (request.agent_path, inner_script.calls) == (("support", "worker"), 1)
        await run.decide("1", "approve", arguments={"requests": 3})
        output = await run.result()

        assert output.usage.requests == 5


async def test_tokens_go_over_by_no_more_than_the_call_that_reached_them(run_app: Running) -> None:
    script = looks(5)
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"tokens": 60})
        state = await waiting(app, run)
        assert state.budget
        spent = state.budget.spent
        assert spent.input_tokens + spent.output_tokens >= 60
        assert script.calls == 2
        over = spent.input_tokens + spent.output_tokens - 60
        assert state.requests[0].arguments == {"tokens": 60 + over}
        await run.decide("1", "approve", arguments={"tokens": 10_000})
        await run.result()


async def test_parallel_agents_go_over_the_tokens_by_no_more_than_what_was_under_way(run_app: Running) -> None:
    app_of_tree, outer, inner = tree(workers=4, turns=4)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"tokens": 300, "when_used_up": "end"}, stuck_seconds=600)
        with pytest.raises(RunFailedError, match="of 300 tokens are used"):
            await run.result()
        journal = await run.journal(deep=True)
        below = [one.journal for one in journal.sub_runs if one.journal]
        used = [step.usage for one in (journal, *below) for step in one.steps if step.kind == "model" and step.usage]
        tokens = [one.input_tokens + one.output_tokens for one in used]

        assert len(tokens) == outer.calls + inner.calls < 1 + 4 * 4
        assert 300 <= sum(tokens) < 300 + 4 * max(tokens)


async def test_a_cost_limit_counts_by_the_prices_that_were_given(run_app: Running) -> None:
    script = looks(5)
    async with run_app(Interlock([agent(script, tools=[look])], prices=PRICES)) as app:
        run = await app.client.start("support", "go", budget={"cost_usd": 0.3})
        request = (await waiting(app, run)).requests[0]
        assert (request.arguments, script.calls) == ({"cost_usd": "0.30"}, 3)
        await run.decide("1", "approve", arguments={"cost_usd": "5.00"})
        output = await run.result()

        assert str(output.usage.cost_usd) == "0.60"


@pytest.mark.parametrize("answer", ["approve", "reject"])
async def test_under_a_cost_limit_a_call_without_a_price_is_asked_about(run_app: Running, answer: Any) -> None:
    script = looks(2)
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"cost_usd": 1})
        request = (await waiting(app, run)).requests[0]
        assert (request.arguments, script.calls) == ({"unpriced": True}, 1)
        assert "of 1 model calls nobody knows the price" in request.question
        await run.decide("1", answer)
        if answer == "approve":
            output = await run.result()
            assert (output.usage.unpriced, script.calls) == (3, 3)
        else:
            with pytest.raises(RunFailedError, match="has refused to extend it"):
                await run.result()
            assert script.calls == 1


@pytest.mark.parametrize(("unpriced", "calls"), [("end", 1), ("ignore", 3)])
async def test_what_follows_a_call_without_a_price_is_said_at_the_start(
    run_app: Running, unpriced: str, calls: int
) -> None:
    script = looks(2)
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"cost_usd": 1, "unpriced": unpriced})
        if unpriced == "ignore":
            await run.result()
        else:
            with pytest.raises(RunFailedError, match="of 1 model calls nobody knows the price"):
                await run.result()
        assert script.calls == calls


async def test_what_judges_use_is_in_the_budget_and_they_wait_for_it_too(run_app: Running) -> None:
    judged: list[str] = []
    verdicts = Agent(Script("approve").model, name="verdicts")

    async def judge(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        result = await verdicts.run("Is it all right?", usage=ctx.usage)
        judged.append(result.output)
        return DeferredToolResults(approvals={one.tool_call_id: ToolApproved() for one in requests.approvals})

    script = Script([call("look", "l", n=1)], "done")
    support = agent(script, tools=[Tool(look, requires_approval=True)], capabilities=[HandleDeferredToolCalls(judge)])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go", budget={"requests": 1})
        state = await waiting(app, run)
        assert (judged, state.requests[0].agent_path) == ([], ("support",))
        await run.decide(state.requests[0].request_id, "approve")
        state = await waiting(app, run)
        assert state.budget
        assert (judged, state.budget.spent.requests) == (["approve"], 2)
        await run.decide(state.requests[0].request_id, "approve")
        output = await run.result()

        assert output.usage.requests == 3


async def test_a_judge_that_fails_has_spent_what_it_spent(run_app: Running) -> None:
    async def judge(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        ctx.usage.incr(RunUsage(requests=2, input_tokens=70, cost=Decimal("0.25")))
        raise ValueError("no idea")

    support = agent(
        Script([call("look", "l", n=1)], "done"),
        tools=[Tool(look, requires_approval=True)],
        capabilities=[HandleDeferredToolCalls(judge)],
    )
    async with run_app(Interlock([support], prices=PRICES)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        output = await run.result()

        assert (output.usage.requests, str(output.usage.cost_usd)) == (4, "0.45")
        assert (await run.journal()).totals.usage == output.usage


async def test_attempts_that_a_provider_was_paid_for_count_by_what_they_used(run_app: Running) -> None:
    def refuses(response: ModelResponse) -> bool:
        return response.model_name == "first"

    def answers(text: str) -> Any:
        return lambda messages, info: ModelResponse(
            parts=[TextPart(text)], usage=RequestUsage(input_tokens=100, output_tokens=10)
        )

    first, second = (
        FunctionModel(answers("bad"), model_name="first"),
        FunctionModel(answers("good"), model_name="second"),
    )
    support = Agent(FallbackModel(first, second, fallback_on=refuses), name="support", capabilities=[Durable()])
    prices = {"first": Price(input_usd=1_000), "second": Price(input_usd=2_000, output_usd=3_000)}
    async with run_app(Interlock([support], prices=prices)) as app:
        run = await app.client.start("support", "go", budget={"cost_usd": 1})
        output = await run.result()

        assert (output.usage.requests, output.usage.input_tokens, output.usage.unpriced) == (1, 200, 0)
        assert output.usage.cost_usd == Decimal("0.1") + Decimal("0.23")
        assert (await run.journal()).totals.usage == output.usage


async def test_a_model_that_fails_uses_nothing_and_its_retry_counts_once(run_app: Running) -> None:
    failing = [True]

    def answer(messages: list[ModelMessage]) -> str:
        if failing:
            failing.pop()
            raise ModelHTTPError(400, "scripted")
        return "done"

    once = Retries(model=RetryPolicy(maximum_attempts=1))
    async with run_app(Interlock([agent(Script(answer))], retries=once)) as app:
        run = await app.client.start("support", "go", budget={"requests": 1}, stuck_seconds=60)
        state = await app.state(run, lambda state: bool(state.stuck))
        assert state.budget
        assert (state.budget.spent.requests, state.budget.under_way) == (0, 0)
        await run.retry()

        assert (await run.result()).usage.requests == 1


async def test_a_cancelled_run_withdraws_its_question(run_app: Running) -> None:
    app_of_tree, _, _ = tree(workers=2, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 3})
        runs = await sub_runs(app, run, 2)
        for one in runs:
            await waiting(app, one)
        await run.cancel()
        with pytest.raises(RunFailedError) as ended:
            await run.result()

        assert ended.value.status == "cancelled"
        for one in runs:
            with pytest.raises(RunFailedError):
                await one.result()
            assert [settled.outcome for settled in (await one.state()).settled] == ["withdrawn"]


async def test_an_answer_for_another_budget_or_given_twice_changes_nothing(run_app: Running) -> None:
    async with run_app(Interlock([agent(looks(3), tools=[look])])) as app:
        run = await app.client.start("support", "go", budget={"requests": 1})
        await waiting(app, run)
        with pytest.raises(RefusedError, match="is not the one this answer was given for"):
            await run.decide("1", "approve", digest="of another")
        answers = [run.decide("1", "approve", by=f"reviewer {n}") for n in range(5)]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert sum(not isinstance(one, Exception) for one in results) == 1
        state = await waiting(app, run)

        assert state.budget
        assert state.budget.limits.requests == 2
        await run.cancel()


async def test_what_strangers_and_repeats_claim_changes_nothing(run_app: Running) -> None:
    app_of_tree, outer, inner = tree(workers=1, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 2})
        (below,) = await sub_runs(app, run, 1)
        await waiting(app, below)
        handle = app.client.temporal.get_workflow_handle(run.id)
        state = (await run.state()).budget
        extension = {"run_id": "x", "request_id": "1", "requests": 100}
        for claim in (
            {"workflow_id": "stranger", "run_id": "x", "sequence": 1, "extensions": [extension], "calls": [1]},
            {"workflow_id": f"{run.id}/x", "run_id": "x", "sequence": "soon"},
            {"workflow_id": f"{run.id}/x", "run_id": "x", "sequence": 1, "used": {"requests": -5}},
            {},
        ):
            await handle.signal("claim_budget", claim)
        grant = {
            "run_id": "x",
            "sequence": 99,
            "answers": 99,
            "calls": [1, 2, 3, 4],
            "state": {"limits": {"requests": 9}},
        }
        await app.client.temporal.get_workflow_handle(below.id).signal("grant_budget", grant)
        assert (await app.state(run, lambda state: True)).budget == state
        assert (await app.state(below, lambda state: True)).requests
        claims = [
            event.workflow_execution_signaled_event_attributes.input
            async for event in handle.fetch_history_events()
            if event.workflow_execution_signaled_event_attributes.signal_name == "claim_budget"
        ]
        await below.decide("1", "approve", arguments={"requests": 9})
        await run.result()
        assert claims
        assert outer.calls + inner.calls == 5


async def test_a_run_with_a_budget_is_another_input(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script("done"))])) as app:
        run = await app.client.start("support", "go", budget={"requests": 5})
        await run.result()
        assert (await app.client.start("support", "go", id=run.id, budget={"requests": 5})).id == run.id
        with pytest.raises(RefusedError, match="another input: budget differs"):
            await app.client.start("support", "go", id=run.id, budget={"requests": 6})
        with pytest.raises(MisconfiguredError, match="requests: Input should be greater than 0"):
            await app.client.start("support", "go", budget={"requests": 0})


async def test_a_fork_starts_with_what_it_takes_over_and_with_its_extensions(run_app: Running) -> None:
    script = looks(4)
    async with run_app(Interlock([agent(script, tools=[look])], prices=PRICES)) as app:
        run = await app.client.start("support", "go", budget={"requests": 2})
        await waiting(app, run)
        await run.decide("1", "approve", arguments={"requests": 1}, by="ann")
        await waiting(app, run)
        await run.decide("2", "reject", by="ann")
        with pytest.raises(RunFailedError):
            await run.result()
        steps = (await run.journal()).steps
        fork = await app.client.fork(await app.client.plan_fork(run.id, at=len(steps) + 1))
        state = await waiting(app, fork)
        assert state.budget
        assert (state.budget.spent.requests, state.budget.limits.requests, script.calls) == (3, 3, 3)
        assert [(one.outcome, one.by) for one in state.settled] == [("approved", "ann")]
        await fork.cancel()
        plan = await app.client.plan_fork(run.id, at=len(steps) + 1)
        larger = await app.client.fork(plan, budget={"requests": 9})
        output = await larger.result()

        assert (output.usage.requests, str(output.usage.cost_usd), script.calls) == (5, "0.50", 5)


async def test_the_journal_tells_who_extended_the_budget_and_how_it_stands(run_app: Running) -> None:
    app_of_tree, _, _ = tree(workers=2, turns=3)
    async with run_app(app_of_tree) as app:
        run = await app.client.start("support", "go", budget={"requests": 3, "cost_usd": "2.00"})
        runs = await sub_runs(app, run, 2)
        for one in runs:
            await waiting(app, one)
        await runs[0].decide("1", "approve", arguments={"requests": 20}, by="ann")
        output = await run.result()
        journal = await run.journal(deep=True)
        below = next(one.journal for one in journal.sub_runs if one.workflow_id == runs[0].id)

        assert journal.budget
        assert (journal.budget.requests, journal.totals.usage) == (23, output.usage)
        assert below
        (request,) = below.requests
        assert (request.kind, request.outcome, request.edited) == ("budget", "approved", True)
        assert request.answer
        assert (request.answer.by, request.answer.arguments) == ("ann", {"requests": 20})


@pytest.mark.parametrize("cached_runs", [1_000, 0])
@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_an_answer_that_comes_with_the_end_of_the_time_has_one_outcome(
    server: EmbeddedServer, cached_runs: int, verdict: Any
) -> None:
    """The worker is away when the time is over; it finds the answer and the timer together."""
    script = looks(2)
    app_of_looks = Interlock([agent(script, tools=[look])])
    async with running(app_of_looks, server, max_cached_workflows=cached_runs) as first:
        run = await first.client.start("support", "go", budget={"requests": 1, "ask_seconds": 1.5})
        (request,) = (await waiting(first, run)).requests
    handle = first.client.temporal.get_workflow_handle(run.id)
    await handle.signal(
        "decide_approval",
        {"request_id": "1", "verdict": verdict, "decided_at": "2026-11-01T12:00:00Z", "decided_by": "ann"},
    )

    async def is_over() -> bool:
        return any([event.HasField("timer_fired_event_attributes") async for event in handle.fetch_history_events()])

    await eventually(is_over)
    queue = first.client.task_queue
    async with running(app_of_looks, server, task_queue=queue, max_cached_workflows=cached_runs) as second:
        if verdict == "approve":
            (later,) = (await waiting(second, run)).requests
            assert (later.request_id, script.calls, later.digest != request.digest) == ("2", 2, True)
            await run.decide("2", "approve", arguments={"requests": 9})
            assert (await run.result()).usage.requests == 3
        else:
            with pytest.raises(RunFailedError, match="ann has refused to extend it"):
                await run.result()
        outcomes = [one.outcome for one in (await run.state()).settled]
        assert outcomes == (["approved", "approved"] if verdict == "approve" else ["rejected"])
