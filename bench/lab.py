"""A real server in a folder of its own, with real worker processes, for as long as one benchmark needs them."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from interlock import Client, Run
from interlock.server import EmbeddedServer
from interlock.testing import eventually

NOTHING: Mapping[str, float] = {}
ROOT = Path(__file__).resolve().parent.parent

Event = dict[str, Any]
"""What a tool told as it began: `tool`, `run`, `pid`, `at` (seconds of the monotonic clock)."""

# What is compared goes on in one execution, however long: ours would go on in another, the others would not.
_ONE_EXECUTION = {"limit.historySize.suggestContinueAsNew": "100000000"}


class Events:
    """What the tools of all workers told, in order."""

    def __init__(self) -> None:
        self._seen: list[Event] = []
        self._more = asyncio.Condition()

    async def add(self, event: Event) -> None:
        async with self._more:
            self._seen.append(event)
            self._more.notify_all()

    async def of(self, run_id: str, *, pid: int | None = None, within_seconds: float = 30) -> Event:
        """The first that a run's tool told, in this process if one is named; waits for it."""
        async with asyncio.timeout(within_seconds), self._more:
            while True:
                for event in self._seen:
                    if event["run"] == run_id and pid in (None, event["pid"]):
                        return event
                await self._more.wait()


@dataclass
class WorkerProcess:
    """A worker in a process of its own."""

    process: asyncio.subprocess.Process
    reader: "asyncio.Task[None]"

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_kb(self) -> int:
        """Resident memory, kB."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))

    def cpu_seconds(self) -> float:
        """Processor time used so far."""
        return cpu_seconds(self.pid)

    async def kill(self) -> None:
        """SIGKILL."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.reader


@dataclass
class Lab:
    """What a benchmark works with. queue: of Interlock's own workers."""

    server: EmbeddedServer
    folder: Path
    client: Client
    events: Events = field(default_factory=Events)
    workers: list[WorkerProcess] = field(default_factory=list)

    async def worker(self, kind: str = "interlock", settings: Mapping[str, float] = NOTHING) -> WorkerProcess:
        """Start a worker process on the queue of its kind and wait until it asks for work. settings: of Interlock."""
        queue = self.client.task_queue if kind.startswith("interlock") else kind
        log = self.folder / f"worker-{len(self.workers)}.log"
        environment = {f"INTERLOCK_{name.upper()}": str(value) for name, value in settings.items()}
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "bench.child", kind, self.server.address, queue),
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=asyncio.subprocess.PIPE,  # Its end is the worker's, so that none outlives the benchmark.
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        worker = WorkerProcess(process, asyncio.create_task(self._read(process)))
        self.workers.append(worker)

        async def asks_for_work() -> bool:
            if process.returncode is not None:
                raise RuntimeError(f"The {kind} worker ended at its start: {log.read_text()[-500:]}")
            return f"{process.pid}@" in await self._pollers(queue)

        await eventually(asks_for_work, within_seconds=40, every_seconds=0.1)
        return worker

    def others_share(self) -> Callable[[], float]:
        """A watch: asked later, it tells the share of the machine's processors that work of others took meanwhile."""
        began = (*machine_cpu_seconds(), self._own_cpu_seconds())

        def share() -> float:
            busy, total, own = (
                now - then for now, then in zip((*machine_cpu_seconds(), self._own_cpu_seconds()), began, strict=True)
            )
            return max(0.0, busy - own) / total

        return share

    async def waiting(self, count: int, *, within_seconds: float = 120) -> None:
        """Wait until this many runs wait for a person."""

        async def counted() -> bool:
            query = "ExecutionStatus = 'Running' AND InterlockPendingApprovals > 0"
            return (await self.client.temporal.count_workflows(query)).count == count

        await eventually(counted, within_seconds=within_seconds, every_seconds=0.2)

    async def start_many(self, count: int, prompt: str) -> list[Run]:
        """Start runs, twenty at a time."""
        slots = asyncio.Semaphore(20)

        async def start() -> Run:
            async with slots:
                return await self.client.start("bench", prompt)

        return list(await asyncio.gather(*(start() for _ in range(count))))

    async def holder(self, run: Run) -> WorkerProcess:
        """The worker that has the run in its cache: the one that did the last of the run's tasks."""
        history = await self.client.temporal.get_workflow_handle(run.id).fetch_history()
        done = [
            event.workflow_task_completed_event_attributes.identity
            for event in history.events
            if event.HasField("workflow_task_completed_event_attributes")
        ]
        return next(worker for worker in self.workers if done[-1].startswith(f"{worker.pid}@"))

    async def history_bytes(self, run_id: str) -> int:
        """The size of a run's history as the server counts it."""
        description = await self.client.temporal.get_workflow_handle(run_id).describe()
        return description.raw_description.workflow_execution_info.history_size_bytes

    def _own_cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, [os.getpid(), self.server.process.pid, *(worker.pid for worker in self.workers)]))

    async def _pollers(self, queue: str) -> str:
        response = await self.client.temporal.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=self.client.temporal.namespace,
                task_queue=TaskQueue(name=queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
            )
        )
        return " ".join(poller.identity for poller in response.pollers)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout
        async for line in process.stdout:
            await self.events.add(json.loads(line))


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all threads, in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> tuple[float, float]:
    """Processor time of the whole machine so far: busy, and altogether."""
    user, nice, system, idle, iowait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy, busy + (idle + iowait) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def laboratory() -> AsyncIterator[Lab]:
    """A server with lifted dispatch limits and a file; all that was started stops at the end."""
    with tempfile.TemporaryDirectory(prefix="interlock-bench-") as folder:
        server = await EmbeddedServer.start(port=0, data=Path(folder), ui=False, dynamic_config=_ONE_EXECUTION)
        lab = None
        try:
            lab = Lab(server, Path(folder), await Client.connect(server.address, task_queue="interlock"))
            yield lab
        finally:
            for worker in lab.workers if lab else []:
                await worker.kill()
            await server.stop()
