"""Forks of runs that did not go smoothly: what failed, was retried, edited or asked about is taken over as it was."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolApproved
from temporalio.common import RetryPolicy

from interlock import Interlock, RefusedError, Run
from interlock.adapters.pydantic_ai import Durable
from interlock.fork import decision_for
from interlock.testing import RunningApp
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call, user_texts

ONE_ATTEMPT = RetryPolicy(maximum_attempts=1)


class Payments:
    """A tool that has its effect and then fails, as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.paid: list[int] = []
        self._failures = failures

    def pay(self, amount: int) -> str:
        self.paid.append(amount)
        if len(self.paid) <= self._failures:
            raise ConnectionError("lost")
        return f"paid {amount}"

    @property
    def tool(self) -> Tool[Any]:
        return Tool(self.pay, requires_approval=True)


def last_texts(messages: list[ModelMessage]) -> str:
    return "; ".join(str(getattr(part, "content", "")) for part in messages[-1].parts)


async def asked_whether_it_happened(app: RunningApp, run: Run) -> None:
    await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])


async def position(run: Run, kind: str, nth: int = 1) -> int:
    return [step.position for step in (await run.journal()).steps if step.kind == kind][nth - 1]


async def forked(app: RunningApp, run: Run, at: int | None = None, **change: Any) -> Run:
    """A fork; at the end unless another step is named."""
    at = len((await run.journal()).steps) + 1 if at is None else at
    return await app.client.fork(await app.client.plan_fork(run.id, at=at, **change))


async def test_a_call_that_had_not_happened_and_was_made_again_is_taken_over(run_app: Running) -> None:
    payments = Payments(failures=2)
    script = Script([call("pay", "p", amount=5)], last_texts)
    async with run_app(Interlock([agent(script, tools=[payments.tool])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"amount": 6})
        for request in ("2", "3"):
            await app.state(run, lambda state, at=request: [one.request_id for one in state.requests] == [at])  # type: ignore[misc]
            await run.decide(request, "not_happened")
        output = (await run.result()).output
        fork = await forked(app, run)

        assert (await fork.result()).output == output
        assert payments.paid == [6, 6, 6]
        assert (await app.client.plan_fork(run.id, at=await position(run, "model", 2))).effects == ()


async def test_an_edited_call_that_happened_keeps_the_note_to_the_model_in_every_fork(run_app: Running) -> None:
    payments = Payments(failures=1)
    script = Script([call("pay", "p", amount=5)], last_texts)
    async with run_app(Interlock([agent(script, tools=[payments.tool])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"amount": 9})
        await asked_whether_it_happened(app, run)
        await run.decide("2", "happened", result="paid 9")
        output = (await run.result()).output
        fork = await forked(app, run, await position(run, "model", 2))
        assert (await fork.result()).output == output
        again = await forked(app, fork, await position(fork, "model", 2))

        assert (await again.result()).output == output
        assert str(output).startswith("paid 9; A reviewer approved this call with other arguments")
        assert payments.paid == [9]


async def test_what_may_have_happened_before_the_step_is_named_too(run_app: Running) -> None:
    payments = Payments(failures=1)
    script = Script([call("pay", "p", amount=5)], last_texts)
    async with run_app(Interlock([agent(script, tools=[payments.tool])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await asked_whether_it_happened(app, run)
        plan = await app.client.plan_fork(run.id, at=5)
        assert [step.summary for step in plan.effects] == ["pay: amount 5"]
        await run.decide("2", "happened", result="paid")
        await run.result()

        assert (await app.client.plan_fork(run.id, at=await position(run, "model", 2))).effects == ()


class Recovers(AbstractCapability[Any]):
    """A hook that answers in the model's stead when that fails."""

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
        return ModelResponse(parts=[call("look", "c", at="first")])


async def test_a_failed_request_whose_error_a_hook_took_is_not_given_the_answer_of_the_next(run_app: Running) -> None:
    looked: list[str] = []
    asked: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        asked.append(turn)
        if turn == 0:
            raise ValueError("refused")
        return ModelResponse(parts=[call("look", "d", at="second")] if turn == 1 else [TextPart(f"turn {turn}")])

    def look(at: str) -> str:
        looked.append(at)
        return at

    durable = Durable(model_activity_config={"retry_policy": ONE_ATTEMPT})
    model = FunctionModel(answer, model_name="scripted")
    support = Agent(model, name="support", capabilities=[durable, Recovers()], tools=[look])
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go")
        output = (await run.result()).output
        asked.clear()
        fork = await forked(app, run)

        assert (await fork.result()).output == output == "turn 2"
        assert looked == ["first", "second"]
        assert asked == [0]
        heard = await forked(app, run, await position(run, "model", 3), message="Hello.")
        assert "Hello." in str((await heard.result()).messages)


async def test_a_fork_does_not_stick_where_the_models_answers_were_retried(run_app: Running) -> None:
    asked: list[int] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        bad = call("nope", f"x{len(asked)}")
        return ModelResponse(parts=[bad] if len(asked) <= 2 else [TextPart("good")])

    model = FunctionModel(answer, model_name="scripted")
    support = Agent(model, name="support", capabilities=[Durable()], retries=1)
    async with run_app(Interlock([support])) as app:
        run = await app.client.start("support", "go", stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        stuck = await forked(app, run)
        await app.client.attach(stuck.id).report()
        await run.retry()
        await run.result()
        fork = await forked(app, run)

        assert (await fork.result()).output == "good"
        again = await forked(app, fork)
        assert (await again.result()).output == "good"
        assert len(asked) == 3
        assert (await stuck.report()).status == "failed"  # Nobody had retried when it was planned.


async def test_a_fork_has_the_limits_as_they_stood_at_the_step(run_app: Running) -> None:
    noted: list[int] = []

    def note(number: int) -> str:
        noted.append(number)
        return "noted"

    script = Script(*([call("note", f"n{number}", number=number)] for number in range(4)), "done")
    async with run_app(Interlock([agent(script, tools=[note])])) as app:
        run = await app.client.start("support", "go", usage_limits={"request_limit": 2}, stuck_seconds=600)
        await app.state(run, lambda state: bool(state.stuck))
        await run.retry(usage_limits={"request_limit": 40})
        await run.result()
        fork = await forked(app, run)

        assert (await fork.result()).output == "done"
        assert noted == [0, 1, 2, 3]
        early = await app.client.plan_fork(run.id, at=3)
        assert early.run.usage_limits == {"request_limit": 2}


async def test_a_decision_taken_another_way_leaves_out_only_its_own_call(run_app: Running) -> None:
    payments, sent = Payments(), list[str]()

    def email(to: str) -> str:
        sent.append(to)
        return "sent"

    script = Script([call("pay", "p", amount=5), call("email", "e", to="ann")], last_texts)
    async with run_app(Interlock([agent(script, tools=[email, payments.tool])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()
        decision = decision_for("reject", reason="no", arguments=None, by="bob")
        at = next(step.position for step in (await run.journal()).steps if step.name == "pay" and step.kind == "tool")
        plan = await app.client.plan_fork(run.id, at=at, decision=decision)
        fork = await app.client.fork(plan)

        assert (await fork.result()).output == "no; sent"
        assert (sent, payments.paid) == (["ann"], [5])
        assert [step.summary for step in plan.effects] == ["pay: amount 5"]


def judged(asked: list[int], payments: Payments) -> Interlock:
    def judge(ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults:
        asked.append(1)
        return DeferredToolResults(approvals={one.tool_call_id: ToolApproved() for one in requests.approvals})

    script = Script([call("pay", "p", amount=5)], last_texts)
    handler = HandleDeferredToolCalls(handler=judge)
    return Interlock([agent(script, tools=[payments.tool], capabilities=[handler])])


async def test_the_judges_are_asked_again_about_a_call_that_is_made_again(run_app: Running) -> None:
    asked, payments = list[int](), Payments()
    async with run_app(judged(asked, payments)) as app:
        run = await app.client.start("support", "go")
        await run.result()
        await (await forked(app, run, await position(run, "model", 2))).result()
        assert (len(asked), payments.paid) == (1, [5])
        await (await forked(app, run, await position(run, "tool"))).result()

        assert (len(asked), payments.paid) == (2, [5, 5])


async def test_a_decision_for_a_fork_comes_before_the_judges(run_app: Running) -> None:
    asked, payments = list[int](), Payments()
    async with run_app(judged(asked, payments)) as app:
        run = await app.client.start("support", "go")
        await run.result()
        decision = decision_for("reject", reason="no", arguments=None, by="bob")
        fork = await forked(app, run, await position(run, "tool"), decision=decision)

        assert (await fork.result()).output == "no"
        assert (len(asked), payments.paid) == (1, [5])


def heard(messages: list[ModelMessage]) -> Sequence[ModelResponsePart] | str:
    return f"heard {user_texts(messages)}"


async def test_a_message_that_nobody_would_hear_is_refused(run_app: Running) -> None:
    async with run_app(Interlock([agent(Script("done"))])) as app:
        run = await app.client.start("support", "go")
        await run.result()

        with pytest.raises(RefusedError, match=r"has completed.* would not hear the message. Add it at one .*: 1\."):
            await app.client.plan_fork(run.id, at=2, message="Hello.")


async def test_a_message_stays_in_a_fork_of_the_fork_at_its_step(run_app: Running) -> None:
    def look() -> str:
        return "seen"

    script = Script([call("look", "l")], heard)
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        run = await app.client.start("support", "go")
        await run.result()
        fork = await forked(app, run, 3, message="Hello.")
        assert (await fork.result()).output == "heard ['Hello.']"
        same, other, before = (
            await forked(app, fork, 3),
            await forked(app, fork, 3, message="Bye."),
            await forked(app, fork, 2),
        )

        assert (await same.result()).output == "heard ['Hello.']"
        assert (await other.result()).output == "heard ['Bye.']"
        assert (await before.result()).output == "heard []"


async def test_a_given_result_stays_beside_a_call_that_is_made_again(run_app: Running) -> None:
    payments = Payments()
    script = Script([call("pay", "a", amount=1), call("pay", "b", amount=2)], last_texts)
    async with run_app(Interlock([agent(script, tools=[payments.tool])])) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 2)
        fork = await forked(app, run, 3, result="given")
        await app.requests(fork, 1)
        await fork.decide("1", "approve")
        assert (await fork.result()).output == "paid 1; given"
        again = await forked(app, fork, await position(fork, "tool"))
        await app.requests(again, 1)
        await again.decide("1", "approve")

        assert (await again.result()).output == "paid 1; given"
        assert payments.paid == [1, 1]
        await run.cancel()
