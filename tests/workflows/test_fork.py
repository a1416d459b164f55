"""A fork takes over what another run did before a step, runs none of it again, and goes on from there by itself."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import CallDeferred
from pydantic_ai.messages import ModelMessage, ModelResponsePart
from temporalio.common import RetryPolicy

from interlock import Interlock, RefusedError, Run, RunFailedError
from interlock.adapters.pydantic_ai import idempotency_key
from interlock.contracts.payloads import RunOutput
from interlock.fork import decision_for
from interlock.journal import Step
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call, user_texts


class Shop:
    """Tools that count what they do."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.paid: list[int] = []
        self.keys: list[str] = []

    def look_up(self, order: str) -> str:
        self.looked_up.append(order)
        return f"{order} is broken"

    def pay(self, ctx: RunContext[None], amount: int) -> str:
        self.paid.append(amount)
        self.keys.append(idempotency_key(ctx))
        return f"paid {amount}"

    @property
    def tools(self) -> list[Any]:
        return [self.look_up, Tool(self.pay, requires_approval=True)]


def last_result(messages: list[ModelMessage]) -> str:
    return f"done: {getattr(messages[-1].parts[0], 'content', '')}"


def story() -> Script:
    return Script([call("look_up", "l", order="A-1")], [call("pay", "p", amount=5)], last_result)


async def finished(app: RunningApp) -> Run:
    run = await app.client.start("support", "help")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    await run.result()
    return run


async def position(run: Run, kind: str, nth: int = 1) -> int:
    found = [step for step in (await run.journal()).steps if step.kind == kind]
    return found[nth - 1].position


async def forked(app: RunningApp, run: Run, **plan: Any) -> Run:
    return await app.client.fork(await app.client.plan_fork(run.id, **plan))


async def reused(run: Run) -> list[str]:
    return [step.kind for step in (await run.journal()).steps if step.reused]


async def test_a_fork_at_the_end_runs_nothing_again(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        steps = (await run.journal()).steps
        fork = await forked(app, run, at=len(steps) + 1)
        output = await fork.result()

        assert output.output == (await run.result()).output == "done: paid 5"
        assert (shop.looked_up, shop.paid, script.calls) == (["A-1"], [5], 3)
        assert await reused(fork) == [step.kind for step in steps]
        assert output.messages is not None
        history = await app.client.temporal.get_workflow_handle(fork.id).fetch_history()
        scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
        assert {one.heartbeat_timeout.seconds for one in scheduled if one.activity_id} == {8}  # Lost workers show.


async def test_from_the_step_on_everything_runs_and_is_asked_about_again(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        fork = await forked(app, run, at=await position(run, "tool", 2))
        (request,) = await app.requests(fork, 1)
        assert shop.paid == [5]
        await fork.decide(request.request_id, "approve")
        await fork.result()

        assert (shop.looked_up, shop.paid) == (["A-1"], [5, 5])
        assert script.calls == 4
        assert await reused(fork) == ["model", "tool", "model", "description"]


async def test_a_fork_that_changes_nothing_has_the_keys_of_the_run_it_came_from(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        same = await forked(app, run, at=await position(run, "tool", 2))
        other = await forked(app, run, at=await position(run, "model", 2), message="Be quick.")
        for fork in (same, other):
            await app.requests(fork, 1)
            await fork.decide("1", "approve")
            await fork.result()

        assert shop.keys[0] == shop.keys[1] != shop.keys[2]


async def test_a_rejection_is_taken_over(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "reject", reason="too much", by="ann")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 3))
        output = await fork.result()
        (request,) = (await fork.journal()).requests

        assert output.output == "done: too much"
        assert shop.paid == []
        assert (request.outcome, request.answer and request.answer.by, request.answer and request.answer.via) == (
            "rejected",
            "ann",
            "fork",
        )


async def test_an_edited_approval_is_taken_over_with_what_ran(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"amount": 3})
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 3))
        output = await fork.result()

        assert output.output == "done: paid 3"
        assert shop.paid == [3]


async def test_a_message_reaches_the_model_at_the_step(run_app: Running) -> None:
    def second(messages: list[ModelMessage]) -> Sequence[ModelResponsePart] | str:
        said = user_texts(messages)
        return f"heard {said[-1]}" if said else [call("pay", "p", amount=5)]

    shop = Shop()
    script = Script([call("look_up", "l", order="A-1")], second, last_result)
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        fork = await forked(app, run, at=await position(run, "model", 2), message="Do not pay.")
        output = await fork.result()

        assert output.output == "heard Do not pay."
        assert shop.looked_up == ["A-1"]
        assert shop.paid == [5]
        assert "Do not pay." in str(output.messages)


async def test_a_call_gets_the_result_it_is_given_and_does_not_run(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        fork = await forked(app, run, at=await position(run, "tool", 2), result={"paid": 0})
        output = await fork.result()

        assert output.output == "done: {'paid': 0}"
        assert shop.paid == [5]
        assert (await fork.state()).settled == []


@pytest.mark.parametrize(
    ("verdict", "arguments", "output", "paid"),
    [("reject", None, "done: no", [5]), ("approve", {"amount": 1}, "done: paid 1", [5, 1])],
    ids=["reject", "approve"],
)
async def test_a_decision_is_taken_another_way(
    run_app: Running, verdict: str, arguments: dict[str, Any] | None, output: str, paid: list[int]
) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        decision = decision_for(verdict, reason="no", arguments=arguments, by="bob")
        fork = await forked(app, run, at=await position(run, "tool", 2), decision=decision)
        result = await fork.result()
        (settled,) = (await fork.state()).settled

        assert result.output == output
        assert shop.paid == paid
        assert settled.by == "bob"


async def test_a_failed_run_goes_on_from_before_its_failure(run_app: Running) -> None:
    """The way out when code of the agent's own failed the run: mend it, and fork."""
    broken = True

    def validator(output: str) -> str:
        if broken:
            raise RuntimeError("a bug")
        return output

    shop, script = Shop(), story()
    mended: Agent[Any, Any] = agent(script, tools=shop.tools)
    mended.output_validator(validator)
    async with run_app(Interlock([mended])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        with pytest.raises(RunFailedError, match="a bug"):
            await run.result()
        broken = False
        fork = await forked(app, run, at=len((await run.journal()).steps) + 1)
        output = await fork.result()

        assert output.output == "done: paid 5"
        assert (shop.looked_up, shop.paid, script.calls) == (["A-1"], [5], 3)


async def test_a_step_that_was_retried_is_taken_over_once(run_app: Running) -> None:
    broken = True

    def flaky() -> str:
        if broken:
            raise RuntimeError("not now")
        return "fine"

    script = Script([call("flaky", "f")], last_result)
    own = {"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}}
    async with run_app(Interlock([agent(script, tools=[Tool(flaky, metadata=own)])])) as app:
        run = await app.client.start("support", "help", stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        broken = False
        await run.retry()
        await run.result()
        broken = True
        fork = await forked(app, run, at=4)
        output = await fork.result()

        assert output.output == "done: fine"


async def test_what_a_person_said_happened_is_taken_over(run_app: Running) -> None:
    ran: list[int] = []

    def pay(amount: int) -> str:
        ran.append(amount)
        raise ConnectionError

    script = Script([call("pay", "p", amount=5)], last_result)
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await run.decide("2", "happened", result="paid 5, says the bank")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 2))
        output = await fork.result()

        assert output.output == "done: paid 5, says the bank"
        assert ran == [5]


async def test_a_call_that_ran_once_a_person_said_it_had_not_happened_is_taken_over(run_app: Running) -> None:
    fails = [ConnectionError()]

    def pay(amount: int) -> str:
        if fails:
            raise fails.pop()
        return f"paid {amount}"

    script = Script([call("pay", "p", amount=5)], last_result)
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])
        await run.decide("2", "not_happened")
        await run.result()
        plan = await app.client.plan_fork(run.id, at=await position(run, "model", 2))
        output = await (await app.client.fork(plan)).result()

        assert plan.run.fork is not None
        assert [one.decision and one.decision.verdict for one in plan.run.fork.rulings] == ["approve"]
        assert output.output == "done: paid 5"


async def test_a_result_from_outside_is_taken_over(run_app: Running) -> None:
    def render() -> str:
        raise CallDeferred

    script = Script([call("render", "r")], last_result)
    async with run_app(Interlock([agent(script, tools=[render])])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.complete_tool_call("r", result="a picture")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 2))

        assert (await fork.result()).output == "done: a picture"


async def test_agents_of_tools_are_taken_over_with_their_tool(run_app: Running) -> None:
    inner_script = Script("inner done")
    inner = agent(inner_script, name="inner")

    async def delegate() -> Any:
        return (await inner.run("go")).output

    script = Script([call("delegate", "d")], last_result)
    async with run_app(Interlock([agent(script, tools=[delegate]), inner])) as app:
        run = await app.client.start("support", "help")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 2))
        output = await fork.result()

        assert output.output == "done: inner done"
        assert inner_script.calls == 1


async def test_a_fork_of_a_fork_takes_over_what_the_first_one_took_over(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        first = await forked(app, run, at=await position(run, "model", 3))
        await first.result()
        second = await forked(app, first, at=await position(first, "model", 3))
        output = await second.result()

        assert output.output == "done: paid 5"
        assert shop.paid == [5]
        assert (await second.journal()).forked_from == first.id


async def test_a_fork_of_a_fork_keeps_what_was_changed_before_its_step(run_app: Running) -> None:
    def second(messages: list[ModelMessage]) -> Sequence[ModelResponsePart] | str:
        return [call("pay", "p", amount=len(user_texts(messages)))]

    shop = Shop()
    script = Script([call("look_up", "l", order="A-1")], second, lambda messages: f"done: {user_texts(messages)}")
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        first = await forked(app, run, at=await position(run, "model", 2), message="One.")
        (request,) = await app.requests(first, 1)
        assert request.arguments == {"amount": 1}
        await first.cancel()
        second_fork = await forked(app, first, at=await position(first, "description"), result="given")
        await second_fork.result()
        third = await forked(app, second_fork, at=await position(second_fork, "model", 3), message="Two.")
        output = await third.result()

        assert output.output == "done: ['Two.']"
        assert [text in str(output.messages) for text in ("One.", "given", "Two.")] == [True, True, True]
        assert shop.paid == [0]


async def test_parallel_calls_keep_their_results_and_their_rulings(run_app: Running) -> None:
    ran: list[int] = []

    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    script = Script([call("pay", f"p{number}", amount=number) for number in (1, 2, 3)], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 3)
        await run.decide("3", "approve")
        await run.decide("1", "approve", arguments={"amount": 10})
        await run.decide("2", "reject", reason="no")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 2))
        await fork.result()

        assert script.results(-1) == {"p1": "paid 10", "p2": "no", "p3": "paid 3"}
        assert sorted(ran) == [3, 10]


async def test_a_call_that_was_approved_and_then_done_elsewhere_is_taken_over(run_app: Running) -> None:
    def render(scene: str) -> str:
        raise CallDeferred

    script = Script([call("render", "r", scene="one")], last_result)
    async with run_app(Interlock([agent(script, tools=[Tool(render, requires_approval=True)])])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await app.state(run, lambda state: [one.kind for one in state.requests] == ["tool_result"])
        await run.complete_tool_call("r", result="a picture")
        await run.result()
        fork = await forked(app, run, at=await position(run, "model", 2))

        assert (await fork.result()).output == "done: a picture"


@pytest.mark.parametrize("gated", [False, True], ids=["ungated", "gated"])
async def test_of_a_call_that_another_build_makes_with_other_arguments_nothing_is_taken_over(
    server: EmbeddedServer, gated: bool
) -> None:
    shop = Shop()

    def build(order: str) -> Interlock:
        class Corrects(AbstractCapability[Any]):
            async def before_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
                return {"order": order}

        tools = [Tool(shop.look_up, requires_approval=gated)]
        script = Script([call("look_up", "l", order="?")], last_result)
        return Interlock([agent(script, tools=tools, capabilities=[Corrects()])])

    async def finished_with(order: str, app: RunningApp, run: Run) -> None:
        if gated:
            (request,) = await app.requests(run, 1)
            assert request.arguments == {"order": order}
            await run.decide("1", "approve")
        assert (await run.result()).output == f"done: {order} is broken"

    async with running(build("A-1"), server) as app:
        run = await app.client.start("support", "help")
        await finished_with("A-1", app, run)
        task_queue = app.client.task_queue
    async with running(build("A-2"), server, task_queue=task_queue) as app:
        app.client.task_queue = task_queue
        fork = await forked(app, app.client.attach(run.id), at=await position(run, "model", 2))
        await finished_with("A-2", app, fork)

        assert shop.looked_up == ["A-1", "A-2"]


async def test_an_open_run_can_be_forked_and_goes_on_by_itself(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await app.client.start("support", "help")
        await app.requests(run, 1)
        fork = await forked(app, run, at=await position(run, "model", 2))
        await app.requests(fork, 1)
        for one in (run, fork):
            await one.decide("1", "approve")
            await one.result()

        assert shop.looked_up == ["A-1"]
        assert shop.paid == [5, 5]


async def test_the_effects_after_the_step_are_named(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)

        def names(steps: Sequence[Step]) -> list[str]:
            return [step.summary for step in steps]

        plan = await app.client.plan_fork(run.id, at=2)
        assert names(plan.effects) == ["look_up: order A-1", "pay: amount 5"]
        assert [step.kind for step in plan.taken_over] == ["model"]
        assert names((await app.client.plan_fork(run.id, at=3)).effects) == ["pay: amount 5"]
        assert names((await app.client.plan_fork(run.id, at=7)).effects) == []


async def test_a_step_or_a_change_that_does_not_fit_is_refused(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        plan = app.client.plan_fork
        with pytest.raises(RefusedError, match="has no step 8; it has 1 to 6, and 7 takes all over"):
            await plan(run.id, at=8)
        with pytest.raises(RefusedError, match="has no step 0"):
            await plan(run.id, at=0)
        with pytest.raises(RefusedError, match=r"Step 2 is no request to the model of 'support'.* these are: 1, 3, 6"):
            await plan(run.id, at=2, message="hello")
        with pytest.raises(
            RefusedError, match="Step 1 is no tool call, so it cannot be given a result; these are: 2, 4, 5"
        ):
            await plan(run.id, at=1, result=1)
        decision = decision_for("approve", reason="", arguments=None, by="bob")
        with pytest.raises(RefusedError, match="Nobody is asked for an approval at step 2; that is so at: 4, 5"):
            await plan(run.id, at=2, decision=decision)
        with pytest.raises(RefusedError, match="changes one thing"):
            await plan(run.id, at=5, decision=decision, result=None)
        with pytest.raises(RefusedError, match="There is no run"):
            await plan("never", at=1)


async def test_the_same_fork_under_the_same_id_is_one_run(run_app: Running) -> None:
    shop, script = Shop(), story()
    async with run_app(Interlock([agent(script, tools=shop.tools)])) as app:
        run = await finished(app)
        plan = await app.client.plan_fork(run.id, at=6)
        name = f"again-{app.client.task_queue}"
        first = await app.client.fork(plan, id=name)
        output: RunOutput = await first.result()
        again = await app.client.fork(plan, id=name)
        with pytest.raises(RefusedError, match="exists with another input: fork differs"):
            await app.client.fork(await app.client.plan_fork(run.id, at=3), id=name)
        with pytest.raises(RefusedError, match="exists with another input: fork differs"):
            await app.client.start("support", "help", id=name)

        assert (await again.result()).output == output.output
