"""Limits the time an attempt spends on its own work, and names the tool that stops the worker's event loop."""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from interlock.contracts import names

_BEAT_SECONDS = 2
_logger = logging.getLogger("interlock.worker")
_clock: ContextVar["_Clock | None"] = ContextVar("interlock_own_time", default=None)


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Time spent inside does not count: the attempt waits for a run it has started, maybe for weeks."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    clock.pause()
    try:
        yield
    finally:
        clock.resume()


class OwnTimeInterceptor(Interceptor):
    """Fails an attempt, to be retried, once it has worked for longer than `limit`.

    Only for activities that are scheduled with the open end `unlimited`; others keep the limit they were given.
    """

    def __init__(self, *, limit: timedelta, unlimited: timedelta) -> None:
        self._limit = limit
        self._unlimited = unlimited
        self.running: dict[bytes, str] = {}

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Inbound(next, self._limit, self._unlimited, self.running)


class _Outbound(ActivityOutboundInterceptor):
    """Lets no sign of life out of an attempt that has hardly begun: each is a write on the server's side. What an
    attempt leaves to the next one goes out with every sign."""

    _details: tuple[Any, ...] = ()

    def heartbeat(self, *details: Any) -> None:
        """See `ActivityOutboundInterceptor`."""
        self._details = details = details or self._details
        age = datetime.now(UTC) - activity.info().started_time
        if details or age >= timedelta(seconds=_BEAT_SECONDS):
            super().heartbeat(*details)


class _Inbound(ActivityInboundInterceptor):
    def __init__(
        self, next: ActivityInboundInterceptor, limit: timedelta, unlimited: timedelta, running: dict[bytes, str]
    ) -> None:
        super().__init__(next)
        self._limit = limit
        self._unlimited = unlimited
        self._running = running

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        self._running[info.task_token] = _named(input, info.activity_type)
        try:
            if info.start_to_close_timeout != self._unlimited:
                async with _beating() if info.heartbeat_timeout else nullcontext():
                    return await super().execute_activity(input)
            return await self._limited(input)
        finally:
            del self._running[info.task_token]

    async def _limited(self, input: ExecuteActivityInput) -> Any:
        scope = asyncio.timeout(None)
        try:
            async with scope, _beating():
                _clock.set(_Clock(self._limit.total_seconds(), scope))
                return await super().execute_activity(input)
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise ApplicationError(
                f"{_named(input, activity.info().activity_type)!r} worked for longer than "
                f"{self._limit.total_seconds():g} s in one attempt. Give it a limit of its own with "
                'metadata={"temporal": ActivityConfig(start_to_close_timeout=...)}, or make it faster.',
                type=names.OWN_TIME_EXCEEDED,
            ) from error


@asynccontextmanager
async def _beating() -> AsyncIterator[None]:
    """Tell the server every 2 s that the attempt lives; the answer tells the attempt when it is to be cancelled."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(_BEAT_SECONDS)
            activity.heartbeat()

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


class _Clock:
    """An attempt's own time: a timeout that stands still while the attempt waits for others."""

    def __init__(self, seconds: float, scope: asyncio.Timeout) -> None:
        self._left = seconds
        self._pauses = 0
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._arm()

    def pause(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and not self._scope.expired():
            self._left -= self._loop.time() - self._since
            self._scope.reschedule(None)

    def resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and not self._scope.expired():
            self._arm()

    def _arm(self) -> None:
        self._since = self._loop.time()
        with suppress(RuntimeError):  # The attempt has ended, and a task that it has left behind waited for others.
            self._scope.reschedule(self._since + self._left)


class LoopWatch:
    """Warns, with the names of the activities at work, when something holds the worker's event loop.

    A held loop sends no heartbeats: the server takes the worker for lost and gives its work to another.
    """

    def __init__(self, running: dict[bytes, str], *, patience: timedelta = timedelta(seconds=2)) -> None:
        self._running = running
        self._patience = patience.total_seconds()
        self._seen = time.monotonic()
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="interlock-loop-watch", daemon=True)

    def __enter__(self) -> "LoopWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        warned = False
        while not self._stop.wait(self._patience / 4):
            if time.monotonic() - self._seen > self._patience:
                if not warned:
                    _logger.warning(
                        "event_loop.blocked",
                        extra={"activities": sorted(self._running.values()), "at": self._where()},
                    )
                warned = True
            else:
                warned = False
            self._loop.call_soon_threadsafe(self._mark)

    def _mark(self) -> None:
        self._seen = time.monotonic()

    def _where(self) -> str:
        frame = sys._current_frames().get(self._loop_thread)
        lines = traceback.extract_stack(frame, limit=None) if frame else []
        own = [line for line in lines if not _is_library(line.filename)] or lines
        return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith((sysconfig.get_path("stdlib"), "<frozen"))


def _named(input: ExecuteActivityInput, activity_type: str) -> str:
    name = getattr(input.args[0], "name", None) if input.args else None
    return name if isinstance(name, str) else activity_type
