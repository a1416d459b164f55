"""What a journal tells of a run, and forks of it at a step."""

from typing import Any

from interlock import Run
from interlock.testing import RunningApp
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Answer, Desk, Framework, Inner, Said, Script, Tool, app_of, ask, call


def last_result(said: list[Said]) -> Answer:
    return f"done: {[part.text for part in said if part.kind == 'result'][-1]}"


async def test_a_journal_tells_each_step_by_kind_name_path_tokens_and_outcome(
    framework: Framework, run_app: RunApp
) -> None:
    looked, desk = Desk(), Desk()
    inner_script = Script([call("refund", "r", "A-1", 5.0)], "inner")
    inner = framework.agent(inner_script, name="inner", tools=[Tool(body=desk, gated=True)])
    script = Script([call("look", "l", "A-1")], [ask("inner", "i")], "done")
    tools: list[Tool | Inner] = [Tool(name="look", body=looked), Inner("inner", inner)]
    async with run_app(app_of(framework.agent(script, tools=tools), inner)) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve", arguments={"order": "A-1", "amount": 4.0}, by="ann")
        await run.result()
        journal = await run.journal()

    steps = [step for step in journal.steps if step.kind in ("model", "tool", "description")]
    top, below = ("support",), ("support", "inner")
    assert [(step.kind, step.agent_path, step.status) for step in steps] == [
        ("model", top, "completed"),
        ("tool", top, "completed"),
        ("model", top, "completed"),
        ("model", below, "completed"),
        ("description", below, "completed"),
        ("tool", below, "completed"),
        ("model", below, "completed"),
        ("model", top, "completed"),
    ]
    assert [(step.name, step.outcome) for step in steps if step.kind == "tool"] == [
        ("look", "returned"),
        ("refund", "returned"),
    ]
    models = [step for step in steps if step.kind == "model"]
    assert models[0].outcome == "calls look"
    assert [step.usage and (step.usage.input_tokens, step.usage.output_tokens) for step in models] == [(5, 2)] * 5
    assert (journal.totals.model_calls, journal.totals.tool_calls) == (5, 2)
    (request,) = journal.requests
    assert (request.outcome, request.edited, request.answer and request.answer.by) == ("approved", True, "ann")
    assert (request.proposed or {})["amount"] == 5.0
    assert (request.executed or {})["amount"] == 4.0


async def position(app: RunningApp, run: Run, kind: str, number: int) -> int:
    return [step.position for step in (await run.journal()).steps if step.kind == kind][number - 1]


async def test_a_call_that_a_fork_makes_again_has_the_key_that_it_had(framework: Framework, run_app: RunApp) -> None:
    looked, desk = Desk(), Desk()
    script = Script([call("look", "l", "A-1")], [call("refund", "r", "A-1", 5.0)], last_result)
    tools = [Tool(name="look", body=looked), Tool(body=desk, gated=True)]
    async with run_app(app_of(framework.agent(script, tools=tools))) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()
        for arguments in (None, {"order": "A-2", "amount": 5.0}):
            at = await position(app, run, "tool", 2)
            fork = await app.client.fork(await app.client.plan_fork(run.id, at=at))
            await app.requests(fork, 1)
            await fork.decide("1", "approve", arguments=arguments)
            await fork.result()

    first, again, another = (made.key for made in desk.made)
    assert (again, len(looked.made)) == (first, 1)
    assert another != first


async def test_a_fork_takes_over_what_came_before_its_step(framework: Framework, run_app: RunApp) -> None:
    looked, desk = Desk(), Desk()
    script = Script([call("look", "l", "A-1")], [call("refund", "r", "A-1", 5.0)], last_result)
    tools = [Tool(name="look", body=looked), Tool(body=desk, gated=True)]
    async with run_app(app_of(framework.agent(script, tools=tools))) as app:
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()
        at: dict[str, Any] = {"at": await position(app, run, "model", 3)}
        fork = await app.client.fork(await app.client.plan_fork(run.id, **at))
        assert (await fork.result()).output == "done: done A-1"
        assert (looked.orders, desk.orders, script.calls) == (["A-1"], ["A-1"], 4)

        at = {"at": await position(app, run, "model", 2)}
        fork = await app.client.fork(await app.client.plan_fork(run.id, **at))
        await app.requests(fork, 1)
        await fork.decide("1", "reject", reason="not again")
        assert (await fork.result()).output == "done: not again"

        at = {"at": await position(app, run, "tool", 2), "result": "given"}
        fork = await app.client.fork(await app.client.plan_fork(run.id, **at))
        assert (await fork.result()).output == "done: given"

    assert (looked.orders, desk.orders) == (["A-1"], ["A-1"])
