"""Follows a run to its end: its own history, the agents that its tools have started, and what is tried again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlock._rpc import ignoring_unanswered, own_failure
from interlock.cli._console import say
from interlock.cli._progress import Progress
from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError
from interlock.contracts.masking import masked_text

if TYPE_CHECKING:
    from interlock.client import Client
    from interlock.contracts.payloads import RunState
    from interlock.run import Run

_LOOKS_EVERY_SECONDS = 1
_ASKS_EVERY_SECONDS = 0.1
_PIECES = ("text", "thinking", "call", "call_delta", "progress")


@dataclass(frozen=True)
class Trouble:
    """A step that has failed and is tried again. attempts: how many have failed. error: of the last one.

    waits: it has not failed; its turn has not come.
    """

    step: str
    attempts: int
    error: str
    waits: bool = False


async def follow(client: Client, run: Run) -> None:
    """Show a run's progress until it ends, or say why that cannot be told."""
    progress, changed = Progress(run.id), asyncio.Event()
    tasks = [
        asyncio.create_task(_look_beside(client, run, progress)),
        asyncio.create_task(_look_at_state(run, progress, changed)),
    ]
    try:
        with progress.live():
            await _follow_events(client, run, progress, changed, tasks)
    except RefusedError as error:  # It is old, and the history of its beginning is gone.
        say(str(error), style="dim")
    finally:
        for task in tasks:
            task.cancel()


async def _follow_events(
    client: Client, run: Run, progress: Progress, changed: asyncio.Event, tasks: list[asyncio.Task[None]]
) -> None:
    async for event in run.events():
        progress.event(run.id, event)
        if event.kind not in _PIECES:
            changed.set()
        if event.kind == "sub_run_started":
            below = client.attach(event.workflow_id)
            tasks.append(asyncio.create_task(_follow_below(client, below, progress, tasks)))


async def _follow_below(client: Client, run: Run, progress: Progress, tasks: list[asyncio.Task[None]]) -> None:
    with suppress(UnavailableError, RefusedError, MisconfiguredError):  # What it is part of goes on by itself.
        await _follow_events(client, run, progress, asyncio.Event(), tasks)


async def nested_states(client: Client, state: RunState) -> dict[str, RunState]:
    """What the agents say of themselves that the run's tools have started, at any depth, by workflow id."""
    found: dict[str, RunState] = {}
    for sub_run in state.sub_runs:
        if sub_run.usage is None:
            with suppress(UnavailableError, RefusedError):
                below = await client.attach(sub_run.workflow_id).state()
                found |= {sub_run.workflow_id: below, **await nested_states(client, below)}
    return found


async def troubles(client: Client, workflow_id: str) -> list[Trouble]:
    """The steps of a run that have failed and are tried again."""
    description = await client.temporal.get_workflow_handle(workflow_id).describe()
    return [
        Trouble(
            _step(one.activity_type.name),
            one.attempt - 1,
            masked_text(own_failure(one.last_failure).message) or "timed out",
            waits=one.last_failure.application_failure_info.type == names.TURN_NOT_YET,
        )
        for one in description.raw_description.pending_activities
        if one.attempt > 1
    ]


async def _look_at_state(run: Run, progress: Progress, changed: asyncio.Event) -> None:
    while True:
        await changed.wait()
        changed.clear()
        with ignoring_unanswered():
            progress.state(await run.state())
        await asyncio.sleep(_ASKS_EVERY_SECONDS)


async def _look_beside(client: Client, run: Run, progress: Progress) -> None:
    # Neither shows in the run's own history until it is over.
    from temporalio.service import RPCError

    while True:
        await asyncio.sleep(_LOOKS_EVERY_SECONDS)
        with suppress(RPCError):
            progress.troubles(await troubles(client, run.id))
            if progress.last:
                progress.nested(await nested_states(client, progress.last))


def _step(activity_type: str) -> str:
    """`agent__support__model_request` for people: `model_request of support`."""
    parts = activity_type.split("__")
    return f"{parts[-1]} of {parts[1]}" if parts[0] == "agent" and len(parts) > 2 else activity_type
