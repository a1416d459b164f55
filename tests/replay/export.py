"""Makes the stored histories: runs every ending on a real server, with invented data, and writes what happened.

`python -m tests.replay.export` adds the histories that are missing; `--force` makes all of them anew, which is only
right before their release: afterwards a history is never edited, because runs like it are still waiting somewhere.
"""

import asyncio
import base64
import binascii
import getpass
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter

from interlock import Client, Interlock, Run, RunFailedError
from interlock.contracts import names
from interlock.contracts.payloads import Decision, RunState, ToolCompletion
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp
from interlock.worker import run_worker
from tests.replay.agents import make_app, repair, tool_entered

HISTORIES = Path(__file__).parent / "histories"
RELEASE = version("interlock")
Ending = Callable[[RunningApp, str], Awaitable[dict[str, Run]]]
ENDINGS: dict[str, Ending] = {}
NO_CONFIG: Mapping[str, str] = {}
_AT_ONCE = {"graceful_shutdown_timeout": timedelta(0)}  # One run waits in a tool for a person who never comes.


def ending(function: Ending) -> Ending:
    """A function that brings runs to an ending, under the names of their histories."""
    ENDINGS[function.__name__.replace("_", "-")] = function
    return function


async def start(app: RunningApp, id: str, agent: str, prompt: str, **options: Any) -> Run:
    return await app.client.start(agent, prompt, id=id, requested_by="ann", **options)


async def ended(run: Run) -> Run:
    with suppress(RunFailedError):
        await run.result()
    return run


async def approve_and_be_asked(app: RunningApp, run: Run) -> None:
    """Approve the run's only call, which fails, and wait until the run asks whether it happened."""
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    await app.state(run, lambda state: [one.kind for one in state.requests] == ["outcome"])


async def stuck(app: RunningApp, run: Run) -> Run:
    await app.state(run, lambda state: bool(state.stuck))
    return run


def path_of(name: str, workflow: str = names.AGENT_WORKFLOW, folder: Path = HISTORIES) -> Path:
    return folder / f"{workflow}.{name}.{RELEASE}.json"


def is_there(name: str, folder: Path) -> bool:
    workflows = (names.AGENT_WORKFLOW, names.SESSION_WORKFLOW)
    return any(path_of(name, workflow, folder).exists() for workflow in workflows)


@ending
async def completed_plain(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "support", "Where is A-1001?"))}


@ending
async def completed_without_a_tool(app: RunningApp, name: str) -> dict[str, Run]:
    deps = {"name": "t-1", "level": 2}
    return {name: await ended(await start(app, name, "typed", "Hello.", deps=deps))}


@ending
async def completed_decisions(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Refund everything.")
    first, second, third = await app.requests(run, 3)
    await run.decide(third.request_id, "approve", arguments={"order": "A-1003", "amount": 30.0}, by="ann")
    await run.decide(second.request_id, "reject", reason="too late", by="bob")
    await run.decide(first.request_id, "approve", digest=first.digest, by="ann")
    return {name: await ended(run)}


@ending
async def completed_by_signals(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Refund two.")
    handle = app.client.temporal.get_workflow_handle(run.id)
    for settled in (0, 1):
        await app.state(run, partial(asks_after, settled))
        (request,) = await run.approvals()
        decision = Decision(
            request_id=request.request_id, verdict="approve", decided_by="ann", decided_at=datetime.now(UTC)
        )
        await handle.signal(names.DECIDE_APPROVAL, decision)
        await handle.signal(names.DECIDE_APPROVAL, decision)
    return {name: await ended(run)}


def asks_after(settled: int, state: RunState) -> bool:
    return (len(state.settled), len(state.requests)) == (settled, 1)


@ending
async def completed_tool_results(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Render the receipt.")
    await app.requests(run, 2)
    await run.complete_tool_call("v1", result={"url": "https://example.com/receipt"}, by="ann")
    completion = ToolCompletion(call_id="p1", error="no colors", completed_by="ann", completed_at=datetime.now(UTC))
    await app.client.temporal.get_workflow_handle(run.id).signal(names.COMPLETE_TOOL_CALL, completion)
    return {name: await ended(run)}


@ending
async def completed_predicate(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Move the money.")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_asked_by_the_tool(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Close the account.")
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_judge(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "judged", "Refund everything.")
    (request,) = await app.requests(run, 1)
    await run.decide(request.request_id, "approve", by="ann")
    return {name: await ended(run)}


@ending
async def completed_sub_run(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.")
    (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
    child = app.client.attach(sub_run.workflow_id)
    await app.requests(child, 1)
    await child.decide("1", "approve", by="ann")
    return {name: await ended(run), f"{name}-child": await ended(child)}


@ending
async def completed_happened(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    await run.decide("2", "happened", result="done by hand", by="ann")
    return {name: await ended(run)}


@ending
async def completed_not_happened(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    repair.set()
    await run.decide("2", "not_happened", by="ann")
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
    limits = {"request_limit": 1}
    run = await stuck(
        app, await start(app, name, "support", "Where is A-1001?", usage_limits=limits, stuck_seconds=600)
    )
    await run.retry(usage_limits={"request_limit": 9}, by="ann")
    return {name: await ended(run)}


@ending
async def completed_fork(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, f"{name}-source", "support", "Refund two.")
    for settled in (0, 1):
        await app.state(run, partial(asks_after, settled))
        await run.decide(str(settled + 1), "approve", by="ann")
    await ended(run)
    fork = await app.client.fork(await app.client.plan_fork(run.id, at=5), id=name, requested_by="ann")
    await app.requests(fork, 1)
    await fork.decide("2", "reject", by="bob")
    return {name: await ended(fork)}


@ending
async def completed_streamed(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "teller", "What does P-7 weigh?", stream=True)
    await app.requests(run, 1)
    await run.decide("1", "approve", by="ann", reason="the scales are free")
    return {name: await ended(run)}


@ending
async def failed_stuck(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    return {name: await ended(await start(app, name, "support", "Wobble.", stuck_seconds=0.5))}


@ending
async def open_stuck(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    return {name: await stuck(app, await start(app, name, "support", "Wobble.", stuck_seconds=600))}


@ending
async def open_asked_whether_it_happened(app: RunningApp, name: str) -> dict[str, Run]:
    repair.clear()
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    return {name: run}


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
async def failed_usage_limit(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Where is A-1001?", usage_limits={"request_limit": 1})
    return {name: await ended(run)}


@ending
async def failed_hook(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "hooked", "Hello."))}


@ending
async def failed_model(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "flaky", "Hello."))}


@ending
async def failed_approved_tool(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Break it.")
    await approve_and_be_asked(app, run)
    await run.decide("2", "give_up", by="ann")
    return {name: await ended(run)}


@ending
async def failed_outcome_unknown(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Stall.")
    await approve_and_be_asked(app, run)
    await run.decide("2", "give_up", by="ann")
    return {name: await ended(run)}


@ending
async def failed_unknown_agent(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "supprot", "Hello."))}


@ending
async def failed_invalid_deps(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await ended(await start(app, name, "typed", "Hello.", deps={"level": "high"}))}


@ending
async def cancelled_waiting(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Refund everything.")
    await app.requests(run, 3)
    await run.cancel()
    return {name: await ended(run)}


@ending
async def cancelled_in_a_tool(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Call the courier.")
    await tool_entered.wait()
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
async def open_awaiting_sub_run(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.")
    (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
    child = app.client.attach(sub_run.workflow_id)
    await app.requests(child, 1)
    return {name: run, f"{name}-child": child}


@ending
async def completed_turn(app: RunningApp, name: str) -> dict[str, Run]:
    first, second = await _turns(app, name)
    await app.state(second, lambda state: state.session is not None and state.session.state == "waiting")
    await app.client.attach(first.id).decide("1", "approve", by="ann")
    return {name: await ended(second), f"{name}-first": await ended(first)}


@ending
async def cancelled_before_its_turn(app: RunningApp, name: str) -> dict[str, Run]:
    first, second = await _turns(app, name)
    await second.cancel()
    await ended(second)
    await first.cancel()
    return {name: second, f"{name}-first": await ended(first)}


@ending
async def open_session(app: RunningApp, name: str) -> dict[str, Run]:
    first, second = await _turns(app, name)
    await app.client.attach(first.id).decide("1", "approve", by="ann")
    await ended(second)
    return {name: app.client.attach(names.session_workflow(name))}


async def _turns(app: RunningApp, session: str) -> tuple[Run, Run]:
    """A turn that waits for a person, and one that waits for it."""
    first = await start(app, f"{session}-first", "support", "Refund, then greet.", session=session)
    await app.requests(first, 1)
    return first, await start(app, session, "support", "Again.", session=session)


async def asks_about_its_budget(app: RunningApp, run: Run) -> None:
    await app.state(run, lambda state: [one.kind for one in state.requests] == ["budget"])


async def asks_about_output(app: RunningApp, run: Run, request_id: str) -> None:
    await app.state(run, lambda state: [one.request_id for one in state.requests] == [request_id])


async def sent_back(app: RunningApp, run: Run) -> Run:
    """The run, once its first output was sent back and another one is proposed."""
    await asks_about_output(app, run, "1")
    await run.decide("1", "reject", reason="Say where it is.", by="ann")
    await asks_about_output(app, run, "2")
    return run


@ending
async def completed_reviewed(app: RunningApp, name: str) -> dict[str, Run]:
    run = await sent_back(app, await start(app, name, "writer", "Write the letter."))
    await run.decide("2", "approve", arguments={"output": "Dear Ann, it comes on Friday."}, by="bob")
    return {name: await ended(run)}


@ending
async def failed_review(app: RunningApp, name: str) -> dict[str, Run]:
    run = await sent_back(app, await start(app, name, "writer", "Write the letter."))
    await run.decide("2", "give_up", reason="She has called already.", by="bob")
    return {name: await ended(run)}


@ending
async def open_awaiting_review(app: RunningApp, name: str) -> dict[str, Run]:
    return {name: await sent_back(app, await start(app, name, "support", "Write the letter.", review=2))}


@ending
async def completed_budget(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Where is A-1001?", budget={"requests": 1, "tokens": 10_000})
    await asks_about_its_budget(app, run)
    await run.decide("1", "approve", by="ann", arguments={"requests": 5})
    return {name: await ended(run)}


@ending
async def failed_budget(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Where is A-1001?", budget={"requests": 1, "ask_seconds": 0.2})
    return {name: await ended(run)}


@ending
async def open_awaiting_budget(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Where is A-1001?", budget={"cost_usd": "0.50"})
    await asks_about_its_budget(app, run)
    return {name: run}


@ending
async def completed_budget_of_a_tree(app: RunningApp, name: str) -> dict[str, Run]:
    run = await start(app, name, "support", "Have it paid.", budget={"requests": 2})
    (sub_run,) = (await app.state(run, lambda state: bool(state.sub_runs))).sub_runs
    child = app.client.attach(sub_run.workflow_id)
    await app.requests(child, 1)
    await child.decide("1", "approve", by="ann")
    await asks_about_its_budget(app, child)
    await child.decide("2", "approve", by="ann", arguments={"requests": 10})
    return {name: await ended(run), f"{name}-child": child}


def portable(history: WorkflowHistory) -> str:
    """A history as JSON, without stack traces: they name files of the machine that made it, and no replay reads them.

    Raises ValueError when it still names the machine or its user.
    """
    document = _without_traces(json.loads(history.to_json()))
    text = readable(document)
    for name in (socket.gethostname(), f"{getpass.getuser()}@", str(Path.home()), str(Path.cwd())):
        if name in text:
            raise ValueError(
                f"The history of {history.workflow_id} names {name}: {text[text.index(name) - 300 :][:600]}"
            )
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def readable(document: Any) -> str:
    """Every text in a history, also in its payloads."""
    if isinstance(document, dict):
        return "\n".join(readable(value) for value in document.values())
    if isinstance(document, list):
        return "\n".join(readable(value) for value in document)
    try:
        return f"{document}\n{base64.b64decode(str(document), validate=True).decode()}"
    except (binascii.Error, UnicodeDecodeError):
        return str(document)


def _without_traces(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _without_traces(value) for key, value in document.items() if key != "stackTrace"}
    return [_without_traces(value) for value in document] if isinstance(document, list) else document


@asynccontextmanager
async def running(make: Callable[[], Interlock], config: Mapping[str, str]) -> AsyncIterator[RunningApp]:
    """The app at work on a server of its own, with nothing of this machine in what it calls itself."""
    server = await EmbeddedServer.start(port=0, ui=False, dynamic_config=config)
    try:
        temporal = await TemporalClient.connect(
            server.address, identity="client", data_converter=pydantic_data_converter
        )
        app, stop = make(), asyncio.Event()
        client = Client(temporal, task_queue=app.settings.task_queue, stuck_seconds=0)
        worker = asyncio.create_task(run_worker(app, client, stop, identity="worker", **_AT_ONCE))
        try:
            yield RunningApp(client, server)
        finally:
            stop.set()
            await worker
    finally:
        await server.stop()


async def export(
    *,
    force: bool,
    endings: Mapping[str, Ending] = ENDINGS,
    folder: Path = HISTORIES,
    make: Callable[[], Interlock] = make_app,
    config: Mapping[str, str] = NO_CONFIG,
) -> None:
    """Write the histories of the endings that have none, or of all. config: of the server."""
    wanted = [name for name in endings if force or not is_there(name, folder)]
    if wanted:
        async with running(make, config) as app:
            for name in wanted:
                for its, run in (await endings[name](app, name)).items():
                    await _write(app, its, run, folder)
    print(f"{len(wanted)} of {len(endings)} endings exported.")


async def _write(app: RunningApp, name: str, run: Run, folder: Path) -> None:
    """Write the run's executions: the last one by its name, those before it as what has gone on in another."""
    executions: list[WorkflowHistory] = []
    wanted: str | None = None
    while wanted or not executions:
        handle = app.client.temporal.get_workflow_handle(run.id, run_id=wanted)
        executions.insert(0, await handle.fetch_history())
        wanted = _started(executions[0]).continued_execution_run_id
    for number, history in enumerate(executions, start=1):
        its = name if history is executions[-1] else f"continued-{number}-before-{name}"
        path = path_of(its, _started(history).workflow_type.name, folder)
        _store(path, portable(history))
        print(f"{path.name}: {len(history.events)} events")


def _started(history: WorkflowHistory) -> WorkflowExecutionStartedEventAttributes:
    return history.events[0].workflow_execution_started_event_attributes


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(export(force="--force" in sys.argv[1:]))
    sys.stdout.flush()
    os._exit(0)  # A process that used a Temporal client may abort at its exit.
