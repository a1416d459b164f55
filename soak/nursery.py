"""Starts workers quickly: by forking a process that has loaded everything they need, `python -m soak.nursery`.

It reads one JSON document per line, the options of a worker to start and the file of its log, and writes one per worker
that it has started (`started`, the process id) or that has ended (`ended`, the process id, and its `status`).
"""

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import SIGKILL

from soak import child

ROOT = Path(__file__).resolve().parent.parent
_REAP_SECONDS = 0.02


class Worker:
    """A worker process. status: how it ended, negative for a signal."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._ended.done()

    def ended(self, status: int) -> None:
        """Take its status."""
        self._ended.set_result(status)

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, SIGKILL)

    async def wait(self) -> int:
        """Wait for its end, and return its status."""
        return await asyncio.shield(self._ended)


class Nursery:
    """The process that starts workers, seen from the one that wants them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._workers: dict[int, Worker] = {}
        self._wanted: list[asyncio.Future[Worker]] = []

    async def start(self, options: child.Options, log: Path) -> Worker:
        """Start a worker."""
        assert self._process.stdin
        wanted: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._wanted.append(wanted)  # Started in the order of asking.
        self._process.stdin.write(f"{json.dumps({'options': options.argument(), 'log': str(log)})}\n".encode())
        return await wanted

    async def listen(self) -> None:
        """Hear of workers that have started and ended, until the process is gone."""
        assert self._process.stdout
        async for line in self._process.stdout:
            told = json.loads(line)
            if "started" in told:
                worker = self._workers[told["started"]] = Worker(told["started"])
                self._wanted.pop(0).set_result(worker)
            else:
                self._workers.pop(told["ended"]).ended(told["status"])


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    """A nursery for as long as it is needed. Its workers end with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak.nursery"),
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    it = Nursery(process)
    listening = asyncio.create_task(it.listen())
    try:
        yield it
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()
        await listening


def main() -> None:
    """Start what is asked for, and tell of what has ended, until the standard input does."""
    asked = b""
    while True:
        if select.select([sys.stdin], [], [], _REAP_SECONDS)[0]:
            if not (more := os.read(sys.stdin.fileno(), 65_536)):
                return
            *lines, asked = (asked + more).split(b"\n")
            for line in lines:
                _tell(started=_start(json.loads(line)))
        _reap()


def _start(wanted: dict[str, str]) -> int:
    if pid := os.fork():
        return pid
    log = os.open(wanted["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    child.run(child.Options(**json.loads(wanted["options"])))


def _reap() -> None:
    with suppress(ChildProcessError):  # There are none.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _tell(ended=ended[0], status=os.waitstatus_to_exitcode(ended[1]))


def _tell(**told: int) -> None:
    os.write(sys.stdout.fileno(), f"{json.dumps(told)}\n".encode())


if __name__ == "__main__":
    main()
