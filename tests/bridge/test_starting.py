"""A task starts its run once, and finds it again: what a retry, a clear, another Dag run and a changed input do."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries
from interlock.bridge.endings import ending_of
from interlock.bridge.errors import ForeignRunError, InputChangedError
from interlock.bridge.identity import Note, TaskIdentity
from interlock.bridge.starting import AgentJob, Begun, Policies, attaches, begin, plan_for
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.workflows.scripts import Script, agent, call, prompt_of

FIRST = TaskIdentity("tickets", "manual__1", "handle", -1, try_number=1, clears=0)
RETRY = replace(FIRST, try_number=2)
CLEARED = replace(FIRST, try_number=2, clears=1)
NEXT_DAG_RUN = replace(FIRST, run_id="manual__2")
RESCHEDULED = replace(FIRST, try_number=2, rescheduled=True)
ONCE = Retries(tool=RetryPolicy(maximum_attempts=1))
NOTE = Note.by(FIRST, {"prompt": "1"})

OPEN = {"is_closed": False, "is_complete": False}
COMPLETE = {"is_closed": True, "is_complete": True}
FAILED = {"is_closed": True, "is_complete": False}


@pytest.mark.parametrize(
    ("task", "policies", "stands", "plan"),
    [
        (RETRY, {}, OPEN, "attach"),
        (RETRY, {}, COMPLETE, "attach"),
        (RETRY, {}, FAILED, "go_on"),
        (RETRY, {"on_retry": "new"}, OPEN, "start_over"),
        (RETRY, {"on_retry": "new"}, COMPLETE, "start_over"),
        (FIRST, {"on_retry": "new"}, OPEN, "attach"),  # The same try again: its worker was lost before it could wait.
        (FIRST, {}, FAILED, "attach"),
        (RESCHEDULED, {"on_retry": "new"}, OPEN, "attach"),
        (RESCHEDULED, {}, FAILED, "attach"),
        (CLEARED, {}, OPEN, "attach"),
        (CLEARED, {}, COMPLETE, "start_over"),
        (CLEARED, {}, FAILED, "start_over"),
        (CLEARED, {"on_clear": "attach"}, COMPLETE, "attach"),
        (CLEARED, {"on_clear": "attach"}, FAILED, "go_on"),
        (CLEARED, {"on_clear": "new"}, OPEN, "start_over"),
        (CLEARED, {"on_retry": "new"}, OPEN, "attach"),
        (NEXT_DAG_RUN, {}, COMPLETE, "start_over"),
        (NEXT_DAG_RUN, {}, OPEN, "busy"),
        (NEXT_DAG_RUN, {"on_new_dag_run": "attach"}, OPEN, "attach"),
        (NEXT_DAG_RUN, {"on_new_dag_run": "attach"}, COMPLETE, "attach"),
    ],
)
def test_what_a_task_does_with_the_run_it_finds(
    task: TaskIdentity, policies: dict[str, Any], stands: dict[str, bool], plan: str
) -> None:
    assert plan_for(Policies(**policies), task, NOTE, **stands, has_changed=False) == plan


@pytest.mark.parametrize("known", [True, None])
@pytest.mark.parametrize(("stands", "plan"), [(OPEN, "attach"), (COMPLETE, "attach"), (FAILED, "go_on")])
def test_a_retry_of_a_task_that_went_on_after_a_clear_is_a_retry(
    stands: dict[str, bool], plan: str, known: bool | None
) -> None:
    """What the run did since would happen twice if it were taken for one more clear."""
    retry = replace(CLEARED, try_number=3)
    assert plan_for(Policies(), retry, NOTE, **stands, has_changed=False, known=known) == plan
    # Unless no try has gone by the clear: the first one after it had failed before it could look for its run.
    assert plan_for(Policies(), retry, NOTE, **COMPLETE, has_changed=False, known=False) == "start_over"


def test_a_retry_is_no_clear_when_the_tasks_retries_were_lowered_in_between() -> None:
    note = Note.by(replace(FIRST, max_tries=3), {})
    lowered = replace(RETRY, max_tries=3, clears=2)
    assert plan_for(Policies(), lowered, note, **FAILED, has_changed=False, known=True) == "go_on"
    assert plan_for(Policies(), lowered, note, **COMPLETE, has_changed=False) == "attach"
    cleared = replace(lowered, max_tries=2, clears=1)
    assert plan_for(Policies(), cleared, note, **COMPLETE, has_changed=False, known=False) == "start_over"


@pytest.mark.parametrize(("policy", "plan"), [("fail", "changed"), ("attach", "attach"), ("new", "start_over")])
def test_a_changed_input_is_never_taken_in_silence(policy: Any, plan: str) -> None:
    assert plan_for(Policies(on_changed_input=policy), RETRY, NOTE, **OPEN, has_changed=True) == plan


def test_the_workflow_id_of_a_task_fits_and_tells_it_from_others() -> None:
    assert FIRST.workflow_id == RETRY.workflow_id == CLEARED.workflow_id == "airflow/tickets/manual__1/handle"
    assert replace(FIRST, map_index=3).workflow_id == "airflow/tickets/manual__1/handle/3"
    long = [replace(FIRST, run_id="é" * 600, map_index=number).workflow_id for number in (1, 2)]
    assert all(len(one.encode()) <= 1_000 for one in long)
    assert long[0] != long[1]


def job(app: RunningApp, prompt: str = "help", *, stuck_seconds: float = 0) -> AgentJob:
    return AgentJob(lambda: app.client.input("support", prompt, stuck_seconds=stuck_seconds), eager=True)


async def begun(app: RunningApp, task: TaskIdentity, prompt: str = "help", **policies: Any) -> Begun:
    return await begin(app.client, job(app, prompt), task, Policies(**policies))


async def test_asking_again_is_the_same_run(server: EmbeddedServer) -> None:
    script = Script([call("look_up", "l", order="A-1")], "done")
    looked_up: list[str] = []

    def look_up(order: str) -> str:
        looked_up.append(order)
        return "broken"

    async with running(Interlock([agent(script, tools=[look_up])]), server) as app:
        first = await begun(app, FIRST)
        same = await begun(app, FIRST)
        await app.client.attach(first.workflow_id).result()
        retry = await begun(app, RETRY)
        rescheduled = await begun(app, replace(FIRST, rescheduled=True))  # It has started the run before.
        found = await begun(app, RESCHEDULED)

        hows = [one.how for one in (first, same, retry, rescheduled, found)]
        assert hows == ["started", "attached", "attached", "started", "attached"]
        assert {one.run_id for one in (same, retry, rescheduled, found)} == {first.run_id}
        assert (retry.reused, retry.used.requests) == (3, 2)

        with pytest.raises(InputChangedError, match=r"another input: prompt changed"):
            await begun(app, RETRY, "something else")
        assert await attaches(app.client, RETRY, Policies())
        assert not await attaches(app.client, CLEARED, Policies())
        over = await begun(app, CLEARED, "something else")
        assert (over.how, over.run_id != first.run_id) == ("started", True)
        await app.client.attach(over.workflow_id).result()
    assert looked_up == ["A-1", "A-1"]


async def test_a_workflow_of_somebody_else_is_left_alone(server: EmbeddedServer) -> None:
    async with running(Interlock([agent(Script("done", "done"))]), server) as app:
        run = await app.client.start("support", "help", id=NEXT_DAG_RUN.workflow_id)
        await run.result()

        with pytest.raises(ForeignRunError, match=r"belongs to an ended 'AgentWorkflow' that somebody outside of Air"):
            await begun(app, NEXT_DAG_RUN)
        other = replace(NEXT_DAG_RUN, task_id="other")
        mine = await begin(app.client, job(app), other, Policies(), workflow_id="ticket-7")
        await app.client.attach(mine.workflow_id).result()
        with pytest.raises(ForeignRunError, match=r"task 'other' of Dag 'tickets'"):
            await begin(app.client, job(app), NEXT_DAG_RUN, Policies(), workflow_id="ticket-7")


async def test_a_task_keeps_to_its_run_when_the_next_dag_run_has_taken_its_id(server: EmbeddedServer) -> None:
    """Its triggerer was away when the run ended, say: what it waits for has another one's id by now."""
    async with running(Interlock([agent(Script(prompt_of))]), server) as app:

        async def found(task: TaskIdentity, prompt: str, **had: Any) -> tuple[Begun, Any]:
            it = await begin(app.client, job(app, prompt), task, Policies(), workflow_id="customer-7", **had)
            await app.client.attach("customer-7").result()
            ending = await ending_of(app.client, "customer-7", run_id=it.run_id)
            assert ending
            return it, ending.output

        first, _ = await found(FIRST, "first")
        second, output = await found(NEXT_DAG_RUN, "second")
        assert (second.how, output) == ("started", "second")

        retry, output = await found(RETRY, "first", known=True, run_id=first.run_id)
        assert (retry.how, retry.run_id, output) == ("attached", first.run_id, "first")


async def test_a_retry_goes_on_where_a_failed_run_stopped_and_repeats_nothing(server: EmbeddedServer) -> None:
    task = replace(FIRST, run_id="manual__goes_on")
    paid: list[int] = []
    broken, begun_by_all = [True], asyncio.Event()

    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    async def post() -> str:
        if broken[0]:
            raise ValueError("the post office is closed")
        await begun_by_all.wait()
        return "posted"

    script = Script([call("pay", "p", amount=5), call("post", "q")], "done")
    async with running(Interlock([agent(script, tools=[pay, post])], retries=ONCE), server) as app:
        first = await begun(app, task)
        report = await app.client.attach(first.workflow_id).report()
        while report.status == "running":
            report = await app.client.attach(first.workflow_id).report()
        assert report.status == "failed"
        broken[0] = False
        # Airflow may take a try for lost that still runs.
        both = await asyncio.gather(*(begun(app, replace(task, try_number=2)) for _ in range(2)))
        begun_by_all.set()
        second, other = sorted(both, key=lambda one: one.how, reverse=True)
        result = await app.client.attach(second.workflow_id).result()

    assert (second.how, result.output) == ("continued", "done")
    assert (other.how, other.run_id) == ("attached", second.run_id)
    assert second.reused == 2  # The model's answer and the payment.
    assert paid == [5]
    assert script.calls == 2


async def test_a_retry_runs_what_is_stuck_again_in_place(server: EmbeddedServer) -> None:
    task = replace(FIRST, run_id="manual__stuck")
    broken = [True]

    def post() -> str:
        if broken[0]:
            raise ValueError("the post office is closed")
        return "posted"

    support = agent(Script([call("post", "q")], "done"), tools=[post])
    async with running(Interlock([support], retries=ONCE), server) as app:
        first = await begin(app.client, job(app, stuck_seconds=3_600), task, Policies())
        run = app.client.attach(first.workflow_id)
        await app.state(run, lambda state: state.status == "stuck")
        broken[0] = False
        retry = replace(task, try_number=2)
        second = await begin(app.client, job(app, stuck_seconds=3_600), retry, Policies())

        assert (second.how, second.run_id, second.retried) == ("attached", first.run_id, ("1",))
        assert (await run.result()).output == "done"
