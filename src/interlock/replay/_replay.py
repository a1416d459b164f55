"""Replays histories with an app's code."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

from temporalio.client import WorkflowHistory

from interlock.app import Interlock
from interlock.contracts.payloads import Payload
from interlock.replay._commands import Recorder, recorded
from interlock.replay._divergence import Divergence, divergence
from interlock.replay._stored import Stored
from interlock.worker import make_replayer

Outcome = Literal["replays", "diverges", "unknown_agent"]


class Replayed(Payload):
    """How one history went.

    source: the file it is from; null for one from a server. divergence: set when it diverges.
    outcome: `unknown_agent` when the app has no such agent, so that nothing was replayed.
    """

    workflow_id: str
    run_id: str
    agent: str
    source: str | None = None
    outcome: Outcome
    divergence: Divergence | None = None


@asynccontextmanager
async def replaying(app: Interlock) -> AsyncIterator[Callable[[Stored], Awaitable[Replayed]]]:
    """Gives a function that replays one history. Not for several at once: it is Python that works, so that none gains.

    It needs no server, calls no model and no tool.
    """
    recorder = Recorder()
    given: asyncio.Queue[WorkflowHistory] = asyncio.Queue()

    async def histories() -> AsyncIterator[WorkflowHistory]:
        while True:
            yield await given.get()

    async with make_replayer(app, workflow_runner=recorder).workflow_replay_iterator(histories()) as results:

        async def replay(stored: Stored) -> Replayed:
            if stored.agent and stored.agent not in app.agents:
                return _replayed(stored, "unknown_agent")
            tasks = recorded(stored.history.events)
            if not tasks:  # No worker has taken it on. Temporal's replayer would wait for its first task for ever.
                return _replayed(stored, "replays")
            await given.put(stored.history)
            result = await anext(results)
            if result.replay_failure is None:
                return _replayed(stored, "replays")
            raw = str(result.replay_failure)
            found = divergence(tasks, recorder.tasks, failure=recorder.failure, raw=raw)
            return _replayed(stored, "diverges", found)

        yield replay


def _replayed(stored: Stored, outcome: Outcome, found: Divergence | None = None) -> Replayed:
    return Replayed(
        workflow_id=stored.history.workflow_id,
        run_id=stored.history.run_id,
        agent=stored.agent,
        source=stored.source or None,
        outcome=outcome,
        divergence=found,
    )
