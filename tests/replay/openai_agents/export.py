"""Makes the stored histories of agents of the OpenAI Agents SDK, as `tests.replay.export` does for pydantic-ai.

`python -m tests.replay.openai_agents.export` adds the histories that are missing; `--force` makes all of them anew,
which is only right before their release.
"""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from interlock import Run
from interlock.testing import RunningApp
from tests.replay.export import Ending, approve_and_be_asked, asks_after, ended, export, sent_back, start, stuck
from tests.replay.openai_agents.agents import make_app, repair

HISTORIES = Path(__file__).parent / "histories"
ENDINGS: dict[str, Ending] = {}
LONG: dict[str, Ending] = {}
"""Endings on a server that takes a short history for a long one."""
_SHORT = {"limit.historyCount.suggestContinueAsNew": "90"}


def ending(function: Ending, endings: dict[str, Ending] = ENDINGS) -> Ending:
    """See `tests.replay.export`."""
    endings[function.__name__.replace("_", "-")] = function
    return function


@ending
async def completed_parallel(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "support", "Where are they?"))}


@ending
async def completed_decisions(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Refund everything.")
    first, second, third = await app.requests(run, 3)
    await run.decide(third.request_id, "approve", arguments={"order": "A-1003", "amount": 30.0}, by="ann")
    await run.decide(second.request_id, "reject", reason="too late", by="bob")
    await run.decide(first.request_id, "approve", digest=first.digest, by="ann")
    return {name: await ended(run)}


@ending
async def completed_predicate(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Move the money.")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_nested(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_reviewed(app: RunningApp, name: str) -> dict[str, Run]:
    run = await sent_back(app, await start(app, name, "writer", "Write the letter."))
    await run.decide("2", "approve", arguments={"output": "Dear Ann, it comes on Friday."}, by="bob")
    return {name: await ended(run)}


@ending
async def open_awaiting_review(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await sent_back(app, await start(app, name, "support", "Write the letter.", review=2))}


@ending
async def completed_handoff(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Ask billing.")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_limits(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "hurrying", "Hurry.")
    await app.state(run, lambda state: bool(state.settled) and bool(state.requests[0].escalated_at))
    await run.decide("2", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def failed_limit(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "hurrying", "Hurry or fail."))}


@ending
async def completed_guarded(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "guarded", "Check it."))}


@ending
async def completed_output_retried(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await stuck(app, await start(app, name, "guarded", "Say something secret.", stuck_seconds=600))
    repair.set()
    await run.retry(by="ann")
    return {name: await ended(run)}


@ending
async def completed_context(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "counting", "Count.", deps={"count": 0, "order": ""}))}


@ending
async def completed_server(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "shelved", "Take the book.")
    await app.requests(run, 2)
    await run.decide("1", "approve", by="ann", arguments={"thing": "map"})
    await run.decide("2", "reject", by="ann")
    return {name: await ended(run)}


@ending
async def completed_happened(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    await run.decide("2", "happened", result="done by hand", by="ann")
    return {name: await ended(run)}


@ending
async def completed_retried(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await stuck(app, await start(app, name, "support", "Wobble.", stuck_seconds=600))
    repair.set()
    await run.retry(by="ann")
    return {name: await ended(run)}


@ending
async def completed_new_limits(app: RunningApp, name: str) -> dict[str, Run]:
    options = {"usage_limits": {"max_turns": 1}, "stuck_seconds": 600}
    run = await stuck(app, await start(app, name, "support", "Where are they?", **options))
    await run.retry(usage_limits={"max_turns": 9}, by="ann")
    return {name: await ended(run)}


@ending
async def completed_fork(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, f"{name}-source", "support", "Refund two.")
    for settled in (0, 1):
        await app.state(run, partial(asks_after, settled))
        await run.decide(str(settled + 1), "approve", by="ann")
    await ended(run)
    _, second = [step.position for step in await run.steps() if step.kind == "tool"]
    plan = await app.client.plan_fork(run.id, at=second - 1)  # Where its reviewer is told of it.
    fork = await app.client.fork(plan, id=name, requested_by="ann")
    (request,) = await app.requests(fork, 1)
    await fork.decide(request.request_id, "reject", by="bob")
    return {name: await ended(fork)}


@ending
async def completed_turn(app: RunningApp, name: str) -> dict[str, Run]:
    first = await start(app, f"{name}-first", "support", "Refund, then greet.", session=name)
    await app.requests(first, 1)
    await first.decide("1", "approve", by="ann")
    await ended(first)
    return {name: await ended(await start(app, name, "support", "Again.", session=name))}


@ending
async def completed_sub_run(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "delegating", "Tell the teller.")
    (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
    child = app.client.attach(sub_run.workflow_id)
    await app.requests(child, 1)
    await child.decide("1", "approve", by="ann")
    return {name: await ended(run), f"{name}-child": await ended(child)}


@ending
async def failed_input_guardrail(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "guarded", "Say something forbidden."))}


@ending
async def failed_model(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "broken", "Hello."))}


@ending
async def failed_approved_tool(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    await run.decide("2", "give_up", by="ann")
    return {name: await ended(run)}


@ending
async def cancelled_waiting(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.")
    await app.requests(run, 1)
    await run.cancel()
    return {name: await ended(run)}


@ending
async def open_awaiting_approval(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Refund everything.")
    await app.requests(run, 3)
    await run.decide("2", "approve", by="ann")
    await app.state(run, lambda state: len(state.requests) == 2)
    return {name: run}


@ending
async def open_awaiting_nested(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.")
    await app.requests(run, 1)
    return {name: run}


@ending
async def open_stuck(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    return {name: await stuck(app, await start(app, name, "support", "Wobble.", stuck_seconds=600))}


@partial(ending, endings=LONG)
async def completed_long(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Where is each?", usage_limits={"max_turns": 20})
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


async def export_all(*, force: bool) -> None:
    """Write the histories of the endings that have none, or of all."""
    await export(force=force, endings=ENDINGS, folder=HISTORIES, make=make_app)
    await export(force=force, endings=LONG, folder=HISTORIES, make=make_app, config=_SHORT)


if __name__ == "__main__":
    asyncio.run(export_all(force="--force" in sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # A process that used a Temporal client may abort at its exit.
