"""Whatever of an agent of the OpenAI Agents SDK fails, its run ends or is stuck, with the type of what failed."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    InputGuardrail,
    OutputGuardrail,
    ToolInputGuardrail,
    function_tool,
)
from temporalio.common import RetryPolicy

from interlock import Interlock, Retries, Run, RunFailedError, Settings
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from tests.conformance.conftest import failed_tasks
from tests.conftest import Running
from tests.openai_agents.failing import CALL, IN_WORKFLOW, PLACES, Shelf, look, run_config, run_hooks
from tests.openai_agents.scripts import Script, agent
from tests.workflows.failing import KINDS
from tests.workflows.test_failures_end_runs import CACHED, ENDING, Outcome, failure, result_from_elsewhere

ONCE = Retries(model=RetryPolicy(maximum_attempts=1), tool=RetryPolicy(maximum_attempts=1))
PLACE = " fail of tests.workflows.failing, line "


def rows(*, all_kinds: bool) -> list[tuple[str, str]]:
    """Every place with one kind of error, and every kind in one place of each sort; or, in every place in the workflow,
    the kinds that mean an end."""
    if not all_kinds:
        return [(place, kind) for place in IN_WORKFLOW for kind in ("new", *ENDING)]
    kinds = [kind for kind in KINDS if kind != "new"]
    return [
        *((place, "new") for place in PLACES),
        *((place, kind) for place in ("call model input filter", "async tool") for kind in kinds),
    ]


def expected(place: str, kind: str) -> Outcome:
    # The SDK writes the error into its trace, in words that these do not have.
    if place == "call model input filter" and kind in ("mute", "quitting"):
        return Outcome("failed", {"mute": "ValueError", "quitting": "SystemExit"}[kind], tells=False, failed_tasks=0)
    if place == "call of a server":  # What the SDK makes of every error there.
        return Outcome("failed", "AgentsException", tells=True, failed_tasks=0)
    tells = (place, kind) != ("custom output extractor", "cancelled")  # The SDK gives up its task.
    return Outcome("failed", KINDS[kind][1], tells, failed_tasks=0)


def app_of_all(agents: dict[str, Agent[Any]], **settings: Any) -> Interlock:
    options: dict[str, Any] = {"run_config": run_config(), "run_hooks": run_hooks()}
    return Interlock(list(agents.values()), retries=ONCE, settings=Settings(**settings), **options)


def all_agents() -> dict[str, Agent[Any]]:
    return {place: make(place.replace(" ", "_").replace("'", "_")) for place, make in PLACES.items()}


async def start(app: RunningApp, agent: str, place: str, kind: str) -> Run:
    model = f"fails-{kind}" if place == "model provider" else None
    return await app.client.start(agent, kind, deps={"place": place, "kind": kind}, model=model)


async def tasks(app: RunningApp, run: Run) -> list[str]:
    return failed_tasks(await app.client.temporal.get_workflow_handle(run.id).fetch_history())


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
async def test_whatever_the_users_code_raises_ends_the_run_with_its_type_and_place(
    server: EmbeddedServer, cached: bool
) -> None:
    agents, table, slots = all_agents(), rows(all_kinds=cached), asyncio.Semaphore(8)

    async def outcome(place: str, kind: str) -> Outcome:
        async with slots:
            run = await start(app, agents[place].name, place, kind)
            try:
                error = await failure(run)
            except (TimeoutError, pytest.fail.Exception):
                return Outcome((await run.report()).status, "", False, len(await tasks(app, run)))
        return Outcome(error.status, error.error_type, PLACE in str(error), len(await tasks(app, run)))

    build = app_of_all(agents, stuck_seconds=0)
    async with running(build, server, max_cached_workflows=CACHED if cached else 0) as app:
        ended = await asyncio.gather(*(outcome(*row) for row in table))

    different = {row: one for row, one in zip(table, ended, strict=True) if one != expected(*row)}
    assert different == {}


async def test_whatever_fails_in_a_step_keeps_the_run_until_somebody_has_mended_it(server: EmbeddedServer) -> None:
    agents, slots = all_agents(), asyncio.Semaphore(8)
    places = [place for place in PLACES if place not in IN_WORKFLOW]

    async def stuck(place: str) -> list[tuple[str, bool]]:
        async with slots:
            run = await start(app, agents[place].name, place, "new")
            state = await app.state(run, lambda state: bool(state.stuck))
            await run.cancel()
            with pytest.raises(RunFailedError):
                await run.result()
        return [(one.error_type, PLACE in one.message) for one in state.stuck]

    async with running(app_of_all(agents, stuck_seconds=60), server) as app:
        found = await asyncio.gather(*(stuck(place) for place in places))

    assert dict(zip(places, found, strict=True)) == {place: [("NewError", True)] for place in places}


async def nonsense(*_: Any) -> Any:
    return "nonsense"


ODD: dict[str, dict[str, Any]] = {
    "input": {"input_guardrails": [InputGuardrail(nonsense, name="odd")]},
    "output": {"output_guardrails": [OutputGuardrail(nonsense, name="odd")]},
    "tool": {"tools": [look(tool_input_guardrails=[ToolInputGuardrail(nonsense, name="odd")])]},
}


@pytest.mark.parametrize("place", ODD)
async def test_a_guardrail_that_gives_no_verdict_ends_the_run_by_its_name(run_app: Running, place: str) -> None:
    script = Script(CALL, "done") if place == "tool" else Script("done")
    async with run_app(Interlock([agent(script, **ODD[place])], retries=ONCE)) as app:
        run = await app.client.start("support", "go")
        error = await failure(run)

        assert error.error_type == "UserError"
        assert re.search(r"Guardrail 'odd' returned str, not (Tool)?GuardrailFunctionOutput", str(error))
        assert await tasks(app, run) == []


async def forever(*_: Any, **__: Any) -> Any:
    """Work until the worker stops."""
    await asyncio.Event().wait()


SLOW: dict[str, Callable[[], Agent[Any]]] = {
    "model_request": lambda: agent(Slow("done")),
    "call_tool": lambda: agent(Script(CALL, "done"), tools=[function_tool(forever_tool, name_override="look")]),
    "guardrail": lambda: agent(Script("done"), input_guardrails=[InputGuardrail(forever)]),
    "predicate": lambda: agent(Script(CALL, "done"), tools=[look(needs_approval=forever)]),
    "instructions": lambda: agent(Script("done"), instructions=forever_instructions),
    "hook": lambda: agent(Script("done"), hooks=Sits()),
    "list_tools": lambda: agent(Script("done"), mcp_servers=[Sitting("shelf", "none")]),
}
"""Agents that come to wait in an activity, by how its type ends."""


class Slow(Script):
    get_response = forever


class Sits(AgentHooks[Any]):
    on_start = forever


class Sitting(Shelf):
    list_tools = forever


async def forever_tool(order: str) -> str:
    return str(await forever())


async def forever_instructions(ctx: Any, agent: Any) -> str:
    return str(await forever())


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "uncached"])
async def test_a_result_that_cannot_be_read_ends_the_run_with_the_step(server: EmbeddedServer, cached: bool) -> None:
    async def ended(step: str) -> tuple[str, bool, bool, int]:
        settings = Settings(stuck_seconds=0)
        build = Interlock([SLOW[step]()], retries=ONCE, settings=settings)
        async with running(build, server, max_cached_workflows=CACHED if cached else 0) as app:
            run = await app.client.start("support", "go")
            await result_from_elsewhere(app, run, step, "secret-kind")
            error = await failure(run)
            tells = "has run, but its result cannot be read" in str(error)
            return error.error_type, tells, "secret-kind" in str(error), len(await tasks(app, run))

    found = await asyncio.gather(*(ended(step) for step in SLOW))
    assert dict(zip(SLOW, found, strict=True)) == dict.fromkeys(SLOW, ("UnreadableResultError", True, False, 0))
