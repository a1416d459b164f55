"""The worker processes of one task queue: started again when they die, and killed from outside when that is wanted."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from signal import SIGKILL

from interlock.testing import eventually
from soak.child import NO_SERVER, Options
from soak.ledger import Ledger
from soak.nursery import Nursery, Worker


@dataclass(frozen=True)
class Kill:
    """A worker that was killed. at: seconds of the monotonic clock. point: where it killed itself, if it did."""

    pid: int
    at: float
    point: str = ""


@dataclass
class Crew:
    """Keeps `count` workers alive. kills: those from outside, so far."""

    nursery: Nursery
    options: Options
    log: Path
    count: int = 1
    kills: list[Kill] = field(default_factory=list)
    _alive: list[Worker] = field(default_factory=list)
    _keepers: list["asyncio.Task[None]"] = field(default_factory=list)

    async def __aenter__(self) -> "Crew":
        self._keepers = [asyncio.create_task(self._keep()) for _ in range(self.count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    def check(self) -> None:
        """Raise what stopped a worker that was not killed."""
        for keeper in self._keepers:
            if keeper.done():
                keeper.result()

    async def kill(self, chance: Random) -> None:
        """SIGKILL for one of the workers, once it has done something or has had time to."""
        worker = await self._someone(chance)
        await self._has_worked(worker.pid, within_seconds=chance.choice([2, 12, 12, 12]))
        await asyncio.sleep(chance.uniform(0, 5))
        if worker.is_alive:
            self.kills.append(Kill(worker.pid, time.monotonic()))
            worker.kill()
            await worker.wait()

    async def _someone(self, chance: Random) -> Worker:
        async def there() -> bool:
            self.check()
            return len(self._alive) == self.count

        await eventually(there)
        return chance.choice(sorted(self._alive, key=lambda worker: worker.pid))

    async def _has_worked(self, pid: int, *, within_seconds: float) -> None:
        ledger = Ledger(Path(self.options.ledger))

        async def worked() -> bool:
            return any(line.pid == pid for line in ledger.lines())

        try:
            await eventually(worked, within_seconds=within_seconds, every_seconds=0.1)
        except AssertionError:
            return  # There may be nothing for it to do; then it dies idle.

    async def _keep(self) -> None:
        while True:
            worker = await self.nursery.start(self.options, self.log)
            self._alive.append(worker)
            try:
                status = await worker.wait()
            finally:
                self._alive.remove(worker)
                worker.kill()
            if status == NO_SERVER:
                await asyncio.sleep(0.5)
            elif status != -SIGKILL:
                raise RuntimeError(f"A worker ended with status {status}: {self.log.read_text()[-1_500:]}")
