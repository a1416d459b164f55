"""A fork has the idempotency keys of the run it came from for the calls that are the same, and for no others."""

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio.common import RetryPolicy

from interlock import Interlock, Run
from interlock.adapters.pydantic_ai import Durable, idempotency_key
from interlock.testing import RunningApp, eventually
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


class Bank:
    """A tool that remembers what was paid under which key."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []

    def pay(self, ctx: RunContext[None], amount: int) -> str:
        self.paid.append((amount, idempotency_key(ctx)))
        return f"paid {amount}"

    @property
    def gated(self) -> Tool[Any]:
        return Tool(self.pay, requires_approval=True)

    def keys(self, amount: int) -> list[str]:
        return [key for paid, key in self.paid if paid == amount]


class Otherwise:
    """A model that pays the amounts of each turn. amounts: may be changed between two runs."""

    def __init__(self, *amounts: list[int]) -> None:
        self.amounts = list(amounts)
        self.model = FunctionModel(self._answer, model_name="scripted")

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn == len(self.amounts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[call("pay", f"p{turn}-{amount}", amount=amount) for amount in self.amounts[turn]])


async def forked(app: RunningApp, run: Run, at: int, **change: Any) -> Run:
    return await app.client.fork(await app.client.plan_fork(run.id, at=at, **change))


async def test_a_call_that_the_model_makes_otherwise_and_those_after_it_have_other_keys(run_app: Running) -> None:
    bank, model = Bank(), Otherwise([1, 2], [3])
    support = Agent(model.model, name="support", capabilities=[Durable()], tools=[bank.pay])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        model.amounts = [[1, 20], [3]]
        await (await forked(app, run, 1)).result()

        first, again = bank.keys(1)
        assert first == again
        assert len({*bank.keys(2), *bank.keys(20)}) == 2
        before, after = bank.keys(3)
        assert before != after


async def test_a_call_that_a_reviewer_edits_in_the_fork_has_another_key(run_app: Running) -> None:
    bank, script = Bank(), Script([call("pay", "p", amount=5)], "done")
    async with run_app(Interlock([agent(script, tools=[bank.gated])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"amount": 6})
        await run.result()
        for amount in (6, 700):
            fork = await forked(app, run, 2)
            await app.requests(fork, 1)
            await fork.decide("1", "approve", arguments={"amount": amount})
            await fork.result()

        first, same = bank.keys(6)
        assert first == same
        assert bank.keys(700) != [first]


async def test_a_call_that_the_other_run_did_not_make_has_a_key_of_the_forks(run_app: Running) -> None:
    """The other run may still make it."""
    bank, script = Bank(), Script([call("pay", "p", amount=5)], "done")
    async with run_app(Interlock([agent(script, tools=[bank.gated])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        fork = await forked(app, run, 2)
        await app.requests(fork, 1)
        for one in (run, fork):
            await one.decide("1", "approve")
            await one.result()

        assert len(set(bank.keys(5))) == 2


async def test_a_fork_of_a_fork_has_the_keys_that_the_fork_had(run_app: Running) -> None:
    bank, model = Bank(), Otherwise([1], [2])
    support = Agent(model.model, name="support", capabilities=[Durable()], tools=[bank.pay])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        model.amounts = [[1], [3]]
        fork = await forked(app, run, 3)
        await fork.result()
        await (await forked(app, fork, 1)).result()

        assert len(set(bank.keys(1))) == 1
        assert len(bank.keys(1)) == 2
        assert len(set(bank.keys(3))) == 1
        assert len(bank.keys(3)) == 2


def delegating(bank: Bank, *inner_turns: Any, inner_tools: Any = ()) -> Interlock:
    inner = agent(Script(*inner_turns, "inner done"), name="inner", tools=[bank.pay, *inner_tools])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    once = {"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}}
    return Interlock([agent(Script([call("delegate", "d")], "done"), tools=[Tool(delegate, metadata=once)]), inner])


async def test_agents_of_tools_have_the_same_keys_in_a_fork_that_changes_nothing(run_app: Running) -> None:
    bank = Bank()
    async with run_app(delegating(bank, [call("pay", "p", amount=5), call("pay", "q", amount=5)])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await (await forked(app, run, 2)).result()
        await (await forked(app, run, 1, message="Hello.")).result()

        first, second, *forks = bank.keys(5)
        assert first != second
        assert set(forks[:2]) == {first, second}
        assert set(forks[2:]).isdisjoint({first, second})


async def test_an_agent_of_a_tool_that_is_started_over_has_the_same_keys_for_the_same_calls(run_app: Running) -> None:
    bank, mended, amounts = Bank(), False, [5, 6]

    def flaky() -> str:
        if not mended:
            raise RuntimeError("not yet")
        return "fine"

    own = Tool(flaky, metadata={"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}})
    app_of = delegating(
        bank,
        [call("pay", "p", amount=5)],
        lambda messages: [call("pay", "q", amount=amounts[0])],
        [call("flaky", "f")],
        inner_tools=[own],
    )
    async with run_app(app_of) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        mended = True
        amounts.pop(0)
        await run.retry()
        await run.result()

        assert [amount for amount, _ in bank.paid] == [5, 5, 5, 6]
        first, other, again = bank.keys(5)
        assert first == again != other
        assert bank.keys(6) != [other]


@pytest.mark.parametrize("at", [2, 4])
async def test_what_agents_of_tools_used_counts_in_a_fork_whether_taken_over_or_not(run_app: Running, at: int) -> None:
    bank = Bank()
    async with run_app(delegating(bank, [call("pay", "p", amount=5)])) as app:
        run = await app.client.start("support", "go")
        usage = (await run.result()).usage
        fork = await forked(app, run, at)

        assert (await fork.result()).usage == usage
        last = len((await fork.journal()).steps) + 1
        assert (await (await forked(app, fork, last)).result()).usage == usage
        assert usage.requests == 4


async def test_an_open_run_of_an_agent_is_named_with_the_call_that_started_it(run_app: Running) -> None:
    bank = Bank()
    inner = agent(Script([call("pay", "p", amount=5)], "inner done"), name="inner", tools=[bank.gated])

    async def delegate() -> Any:
        return (await inner.run("go")).output

    async with run_app(Interlock([agent(Script([call("delegate", "d")], "done"), tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "go")
        (below,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
        plan = await app.client.plan_fork(run.id, at=3)

        assert [(step.summary, step.sub_runs) for step in plan.effects] == [("delegate", (below.workflow_id,))]
        await run.cancel()
        await eventually(lambda: _ended(run))


async def _ended(run: Run) -> bool:
    return (await run.report()).ended_at is not None
