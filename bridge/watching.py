"""Waits for many runs at once: whoever waits is given a hint that its run may have changed, and looks at it then.

A few runs are each followed by a long poll of their history. When more wait in one process, one watcher asks the
server's visibility store for all of them: two requests a second at most, whatever their number. It also tells what the
agents ask that tools of a run have started, which the run's own history does not. Those that have a reason to look at
their runs all at once, as when the process has just started, take turns.
"""

import asyncio
import contextlib
import contextvars
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from temporalio.client import Client as TemporalClient
from temporalio.common import SearchAttributeKey

from interlock.bridge import metrics
from interlock.contracts import names

FOLLOWED = 8
"""Up to how many runs are followed one by one."""

_FOLLOWED_AGAIN = FOLLOWED // 2  # Not as soon as there is one less, or a ninth that comes and goes has all look anew.
_LOOKS_AT_ONCE = 16
_PUSHES_AT_ONCE = 4
_SECONDS_FOR_EACH = 3.0
_CLOSED_EVERY_SECONDS = 0.9
_WAITING_EVERY_SECONDS = 3.0
_OPEN_EVERY_SECONDS = 60.0
_BEHIND = timedelta(seconds=30)  # A visibility store may show what has closed later than it closed.
_LONGEST_PAUSE_SECONDS = 30.0
_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
_PENDING = SearchAttributeKey.for_int(names.ATTRIBUTE_PENDING_APPROVALS)
_LATEST = SearchAttributeKey.for_keyword(names.ATTRIBUTE_LATEST_REQUEST)
_WAITING = ("awaiting_approval", "awaiting_tool_result", "stuck")

_log = structlog.get_logger(__name__)

Follow = Callable[[Callable[[], None]], Coroutine[Any, Any, None]]
"""Follows one run and calls what it is given whenever the run may have changed, until it is cancelled."""


class Waiter:
    """One that waits for a run. follow: how the run is followed while few wait. asks: whether it wants to know what
    people are asked, by the run and by those below it."""

    def __init__(self, workflow_id: str, follow: Follow, *, asks: bool) -> None:
        self.workflow_id = workflow_id
        self.asks = asks
        self.since = time.monotonic()
        self._follow = follow
        self._hint = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        # Another waiter's coming or going can have it begin, and what it logs belongs to this one's task.
        self._context = contextvars.copy_context()

    def hint(self) -> None:
        """Have it look at its run."""
        self._hint.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a hint, for some seconds at most. Returns whether there was one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        hinted = self._hint.is_set()
        self._hint.clear()
        return hinted

    @property
    def follows(self) -> bool:
        """Whether the run is followed by itself."""
        return self._following is not None

    def follow(self, wanted: bool) -> None:
        """Begin or stop to follow the run."""
        if wanted and self._following is None:
            self._following = asyncio.create_task(self._follow(self.hint), context=self._context)
        elif not wanted and self._following is not None:
            self._following.cancel()
            self._following = None
            self.hint()  # What happened in between is looked for.


class Watch:
    """All that wait for runs by one client."""

    def __init__(self, temporal: TemporalClient) -> None:
        self._temporal = temporal
        self._waiters: dict[str, set[Waiter]] = {}
        self._number = self._askers = 0
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self.turn = asyncio.Semaphore(_LOOKS_AT_ONCE)
        """Held by whoever looks at a run."""
        self.question = asyncio.Semaphore(_LOOKS_AT_ONCE)
        """Held by whoever asks a run itself, or reads all that it did. That can take long, and no look waits for it."""
        self.pushing = asyncio.Semaphore(_PUSHES_AT_ONCE)
        """Held by whoever pushes XComs: Airflow does that one by one, and a thousand would run out of time together."""
        self.pushed_by_tasks_until = 0.0
        """Until when, by the monotonic clock, nobody tries: Airflow did not do it in time."""
        self._closed_after: datetime | None = None
        self._seen_closed: dict[str, datetime] = {}
        self._seen_waiting: dict[str, tuple[Any, ...]] = {}
        self.requests = 0  # To the server so far, for who measures.

    def __len__(self) -> int:
        return self._number

    def pause(self, seconds: float) -> float:
        """How long one that has been given no hint waits until it looks by itself: longer than that when many do."""
        pause = max(seconds, len(self) * _SECONDS_FOR_EACH)
        return pause * random.uniform(0.8, 1.2)  # noqa: S311 - Only spreads the requests of many.

    @contextlib.asynccontextmanager
    async def waiting(self, workflow_id: str, follow: Follow, *, asks: bool = False) -> AsyncIterator[Waiter]:
        """Wait for a run inside of this context. follow, asks: see `Waiter`."""
        waiter = Waiter(workflow_id, follow, asks=asks)
        self._waiters.setdefault(workflow_id, set()).add(waiter)
        self._number += 1
        self._askers += asks
        _watches[self._temporal] = self
        self._arrange()
        try:
            yield waiter
        finally:
            waiter.follow(False)
            self._number -= 1
            self._askers -= asks
            self._waiters[workflow_id].discard(waiter)
            if not self._waiters[workflow_id]:
                del self._waiters[workflow_id]
                self._seen_waiting.pop(workflow_id, None)
            self._arrange()
            if not self._waiters:
                _watches.pop(self._temporal, None)

    def _arrange(self) -> None:
        metrics.waiting(sum(map(len, _watches.values())))
        self._arrange_crowd()
        wanted = self._watching is not None or self._askers > 0
        if wanted and self._asking is None:
            self._asking = asyncio.create_task(self._every(self._look_for_waiting, _WAITING_EVERY_SECONDS))
        elif not wanted and self._asking is not None:
            self._asking.cancel()
            self._asking, self._seen_waiting = None, {}

    def _arrange_crowd(self) -> None:
        if self._watching is None and self._number > FOLLOWED:
            self._watching = asyncio.create_task(self._watch())
        elif self._watching is not None and self._number <= _FOLLOWED_AGAIN:
            self._watching.cancel()
            self._watching, self._closed_after, self._seen_closed = None, None, {}
        elif self._watching is not None:
            return
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.follow(self._watching is None)

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._look_for_closed, _CLOSED_EVERY_SECONDS))
            group.create_task(self._every(self._look_for_open, _OPEN_EVERY_SECONDS))

    async def _every(self, look: Callable[[], Awaitable[None]], seconds: float) -> None:
        pause = seconds
        while True:
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311 - Only spreads the requests of many.
            before = self.requests
            try:
                await look()
                # What takes several pages is asked for as much less often.
                pause = seconds * max(1, self.requests - before)
            except Exception as error:  # Whatever it is: without this watch a thousand would wait in vain.
                if pause <= seconds:
                    _log.warning("temporal.unanswered", error=str(error))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _look_for_closed(self) -> None:
        after = self._closed_after or datetime.now(UTC) - timedelta(minutes=5)
        # Only whole pages are paid for: the order is the server's own, newest first.
        async for found in self._list(f"ExecutionStatus != 'Running' AND CloseTime > '{_text(after - _BEHIND)}'"):
            if found.close_time is None or found.run_id in self._seen_closed:
                continue
            self._seen_closed[found.run_id] = found.close_time
            after = max(after, found.close_time)
            self._hint(found.id)
        self._closed_after = after
        old = after - 2 * _BEHIND
        self._seen_closed = {run_id: at for run_id, at in self._seen_closed.items() if at > old}

    async def _look_for_waiting(self) -> None:
        words = ", ".join(f"'{word}'" for word in _WAITING)
        query = f"ExecutionStatus = 'Running' AND {names.ATTRIBUTE_STATUS} IN ({words})"
        seen: dict[str, tuple[Any, ...]] = {}
        async for found in self._list(query):
            if self._interested(found.id):
                attributes = found.typed_search_attributes
                # The last of them tells a request from one that took its place in between.
                seen[found.id] = (attributes.get(_STATUS), attributes.get(_PENDING), attributes.get(_LATEST))
        for workflow_id in {*seen, *self._seen_waiting}:
            if seen.get(workflow_id) != self._seen_waiting.get(workflow_id):
                for waiter in self._interested(workflow_id):
                    waiter.hint()
        self._seen_waiting = seen

    def _interested(self, workflow_id: str) -> list[Waiter]:
        """Those that wait for a run, and those that want to know what is asked below theirs."""
        found = [*self._waiters.get(workflow_id, ())]
        above = workflow_id.rpartition("/")[0]
        while above:
            found += [waiter for waiter in self._waiters.get(above, ()) if waiter.asks]
            above = above.rpartition("/")[0]
        return found

    async def _look_for_open(self) -> None:
        """For whatever the other two have missed."""
        began = time.monotonic()
        found = {one.id async for one in self._list("ExecutionStatus = 'Running'")}
        for workflow_id, waiters in list(self._waiters.items()):
            for waiter in waiters:
                if workflow_id not in found and waiter.since < began - _OPEN_EVERY_SECONDS:
                    waiter.hint()

    async def _list(self, query: str) -> AsyncIterator[Any]:
        pages = self._temporal.list_workflows(query, page_size=1_000)
        while True:
            self.requests += 1
            await pages.fetch_next_page()
            for found in pages.current_page or []:
                yield found
            if not pages.next_page_token:
                return

    def _hint(self, workflow_id: str) -> None:
        for waiter in self._waiters.get(workflow_id, ()):
            waiter.hint()


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


_watches: dict[TemporalClient, Watch] = {}


def watch_of(temporal: TemporalClient) -> Watch:
    """The watch of a client; the hook shares one client between all triggers of a process."""
    found = _watches.get(temporal)
    return Watch(temporal) if found is None else found  # One that nobody waits with yet is empty, and so false.
