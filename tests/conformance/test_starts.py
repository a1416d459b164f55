"""Starting a run: under one id it is one run, with one input, until it is started over."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client as TemporalClient
from temporalio.converter import DataConverter

from interlock import RefusedError, Run, RunFailedError
from interlock.testing import eventually
from tests.conformance.conftest import RunApp
from tests.conformance.frameworks import Desk, Framework, Script, Tool, app_of, call

PAY = [call("refund", "a", "A-1", 1.0)]


async def test_a_finished_run_is_read_again_or_started_over(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run_id = f"over-{app.client.task_queue}"
        run = await app.client.start("support", "go", id=run_id)
        (first,) = await app.requests(run, 1)
        await run.decide("1", "approve", digest=first.digest)
        await run.result()
        again = await app.client.start("support", "go", id=run_id)
        assert (await again.result()).output == "done"
        assert (desk.orders, script.calls) == (["A-1"], 2)

        over = await app.client.start("support", "go", id=run_id, restart=True)
        (second,) = await app.requests(over, 1)
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await over.decide("1", "approve", digest=first.digest)
        await over.decide("1", "approve", digest=second.digest)
        await over.result()
        found = app.client.temporal.list_workflows(f"WorkflowId = '{run_id}'")
        assert len([execution async for execution in found]) == 2

    assert (desk.orders, script.calls) == (["A-1", "A-1"], 4)
    assert desk.made[0].key != desk.made[1].key


async def test_the_same_id_with_another_input_is_an_error_that_names_what_differs(
    framework: Framework, run_app: RunApp
) -> None:
    desk, script = Desk(), Script(PAY, "done")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        run = await app.client.start("support", "go")
        with pytest.raises(RefusedError, match="another input: prompt, usage_limits differ"):
            await app.client.start("support", "stop", id=run.id, usage_limits=framework.turns(9))
        await app.requests(run, 1)
        await run.decide("1", "approve")
        await run.result()

    assert (desk.orders, script.calls) == (["A-1"], 2)


async def test_starts_at_once_are_one_run(framework: Framework, run_app: RunApp) -> None:
    script = Script("done")
    async with run_app(app_of(framework.agent(script))) as app:
        run_id = f"at-once-{app.client.task_queue}"
        runs = await asyncio.gather(*(app.client.start("support", "go", id=run_id) for _ in range(8)))
        ends = await asyncio.gather(*(run.result() for run in runs))

    assert ({end.output for end in ends}, script.calls) == ({"done"}, 1)


async def test_an_approval_in_a_turn_of_a_session_holds_that_turn(framework: Framework, run_app: RunApp) -> None:
    desk, script = Desk(), Script(PAY, "first", "second")
    async with run_app(app_of(framework.agent(script, tools=[Tool(body=desk, gated=True)]))) as app:
        session = f"ann-{app.client.task_queue}"
        run = await app.client.start("support", "one", session=session)
        await app.requests(run, 1)
        following = await app.client.start("support", "two", session=session)
        await eventually(lambda: waits_for_its_turn(following))
        assert script.calls == 1
        await run.decide("1", "approve")

        assert [(await one.result()).output for one in (run, following)] == ["first", "second"]

    assert (desk.orders, script.calls) == (["A-1"], 3)
    assert [part.text for part in script.asked[-1] if part.kind == "user"] == ["one", "two"]
    assert script.results() == {"a": "done A-1"}


async def waits_for_its_turn(run: Run) -> bool:
    place = (await run.state()).session
    return place is not None and place.state == "waiting"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ([], "takes one input, and none was given"),
        ([None], "cannot be read: value"),
        (["text"], "cannot be read: value"),
        ([{}], "agent: Field required; prompt: Field required"),
        ([{"agent": "support", "prompt": ""}], "prompt: Value error, must not be empty"),
        ([{"agent": ["x"], "prompt": 1}], "agent: "),
    ],
    ids=str,
)
async def test_a_run_started_with_any_input_ends_and_says_what_is_wrong(
    framework: Framework, run_app: RunApp, args: list[Any], what: str
) -> None:
    script = Script("done")
    async with run_app(app_of(framework.agent(script))) as app:
        queue = app.client.task_queue
        config = app.client.temporal.config()
        config["data_converter"] = DataConverter.default
        handle = await TemporalClient(**config).start_workflow(
            "AgentWorkflow", args=args, id=f"odd-{queue}", task_queue=queue
        )
        with pytest.raises(RunFailedError, match=what) as failed:
            await asyncio.wait_for(app.client.attach(handle.id).result(), 60)

    assert failed.value.error_type == "InvalidInputError"
    assert script.calls == 0
