"""For tests of agents: a real worker and a real server around an app, for as long as a test needs them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from interlock.app import Interlock
from interlock.client import Client
from interlock.contracts.errors import UnavailableError
from interlock.contracts.payloads import ApprovalRequest, RunState
from interlock.run import Run
from interlock.server import EmbeddedServer
from interlock.worker import run_worker

T = TypeVar("T")

__all__ = ["RunningApp", "eventually", "running"]


@dataclass(frozen=True)
class RunningApp:
    """An app with a worker. client: on the worker's own task queue."""

    client: Client
    server: EmbeddedServer

    async def requests(self, run: Run, count: int) -> list[ApprovalRequest]:
        """Wait until the run has this many open requests, and return them."""
        state = await self.state(run, lambda state: len(state.requests) == count)
        return state.requests

    async def state(self, run: Run, holds: Callable[[RunState], bool]) -> RunState:
        """Wait until what the run says of itself is so, and return it.

        Only a run at rest is asked: without a workflow cache, a question that arrives in the middle of a workflow
        task can make the SDK drop the task, which the server then gives out again after 10 s.
        """
        seen: int | None = None
        unanswered: UnavailableError | None = None

        async def asked() -> RunState | None:
            nonlocal seen, unanswered
            before, seen = seen, await run.resting()
            if seen is None or seen != before:
                return None
            try:
                state = await run.state()
            except UnavailableError as error:  # Of a worker that is there, on a busy machine.
                unanswered = error
                return None
            unanswered = None
            return state if holds(state) else None

        try:
            state: RunState = await eventually(asked, every_seconds=0.04)
        except AssertionError as late:
            raise late from unanswered
        return state


@asynccontextmanager
async def running(app: Interlock, server: EmbeddedServer, **worker_options: Any) -> AsyncIterator[RunningApp]:
    """A worker for the app on a task queue of its own. worker_options: of Temporal's Worker."""
    client = await Client.connect(
        server.address,
        task_queue=f"{app.settings.task_queue}-{uuid.uuid4().hex[:8]}",
        stuck_seconds=app.settings.stuck_seconds,
    )
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(app, client, stop, **worker_options))
    try:
        yield RunningApp(client, server)
    finally:
        stop.set()
        await worker


async def eventually(ask: Callable[[], Any], *, within_seconds: float = 60, every_seconds: float = 0.02) -> Any:
    """What `ask` returns once that is neither None nor false. Raises AssertionError when it stays so."""
    deadline = asyncio.get_running_loop().time() + within_seconds
    while True:
        answer = await ask()
        if answer:
            return answer
        name = getattr(ask, "__qualname__", None) or repr(ask)
        assert asyncio.get_running_loop().time() < deadline, f"{name} did not come true in time"
        await asyncio.sleep(every_seconds)
