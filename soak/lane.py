"""One task queue with its workers, its ledger and its operator: where runs live while somebody kills what runs them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from temporalio.service import RPCError

from interlock import Client, UnavailableError
from interlock.contracts import names
from interlock.testing import eventually
from soak.child import Options
from soak.crew import Crew, Kill
from soak.evidence import Evidence, Outage, read_runs
from soak.ledger import Ledger
from soak.nursery import Nursery
from soak.operator import Operator
from soak.script import Adapter

MOST_RUNS = 500


@dataclass
class Lane:
    """One task queue and all that is around it. started: how many runs so far."""

    name: str
    client: Client
    ledger: Ledger
    crew: Crew
    operator: Operator
    started: int = 0
    stop_feeding: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        """Start one more run."""
        await self.client.start("desk", "Settle both orders.", id=self._id(self.started + 1), requested_by="soak")
        self.started += 1

    async def feed(self, in_flight: int) -> None:
        """Start runs so that this many are open, until told to stop."""
        while not self.stop_feeding.is_set():
            if self.started > MOST_RUNS:
                raise RuntimeError(f"{self.started} runs of {self.name} have ended, far too soon.")
            with suppress(UnavailableError, RPCError):  # The server is away; the same id is asked for again.
                for _ in range(in_flight - await self._open()):
                    await self.start()
            await asyncio.sleep(0.3)

    async def finished(self, *, within_seconds: float) -> None:
        """Wait until every run has ended. Those that do not are found by the audit."""
        left = {self._id(number) for number in range(1, self.started + 1)}

        async def all_ended() -> bool:
            self.crew.check()
            for run in sorted(left):
                with suppress(RPCError):  # The server is away.
                    if (await self.client.temporal.get_workflow_handle(run).describe()).close_time:
                        left.discard(run)
            return not left

        with suppress(AssertionError):
            await eventually(all_ended, within_seconds=within_seconds, every_seconds=0.3)

    def _id(self, number: int) -> str:
        return f"{self.name}-{number}"

    async def evidence(self, outages: Sequence[Outage] = ()) -> Evidence:
        """All that is known of the runs of this queue."""
        lines = self.ledger.lines()
        own = [Kill(line.pid, line.at, line.step) for line in lines if line.event == "death"]
        runs = await read_runs(self.client)
        kills = [*own, *self.crew.kills]
        return Evidence(lines, runs, self.operator.questions, kills, outages, self.crew.options.adapter)

    async def _open(self) -> int:
        query = (
            f"TaskQueue = '{self.client.task_queue}' AND ExecutionStatus = 'Running' "
            f"AND {names.ATTRIBUTE_AGENT} = 'desk'"
        )
        return (await self.client.temporal.count_workflows(query)).count


@asynccontextmanager
async def lane(
    nursery: Nursery,
    address: str,
    folder: Path,
    name: str,
    chance: Random,
    *,
    adapter: Adapter,
    workers: int = 1,
    pause: float = 0.1,
    cached: int = 1_000,
    deaths: Sequence[str] = (),
) -> AsyncIterator[Lane]:
    """A lane on a server, for as long as it is needed. See `Options` for the workers' options."""
    ledger = Ledger(folder / f"{name}.ledger")
    options = Options(address, name, str(folder / f"{name}.ledger"), pause, adapter, cached, tuple(deaths))
    client = await Client.connect(address, task_queue=name)
    operator = Operator(client, ledger, chance)
    async with Crew(nursery, options, folder / f"{name}.log", workers) as crew:
        answering = asyncio.create_task(operator.work())
        try:
            yield Lane(name, client, ledger, crew, operator)
        finally:
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering
