"""One worker process: `python -m soak.child OPTIONS`. It ends when its standard input does, or where it is to die."""

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.client import Client as TemporalClient

from interlock import Client, Interlock
from interlock.settings import Settings
from interlock.worker import run_worker
from soak.agents import Bodies, make_agents
from soak.death import Deaths, DyingInterceptor
from soak.ledger import Ledger


@dataclass(frozen=True)
class Options:
    """How a worker is started. pause: the longest that a body works, seconds. cached: runs it keeps in memory.
    deaths: the points at which it kills itself."""

    address: str
    queue: str
    ledger: str
    pause: float
    cached: int = 1_000
    deaths: tuple[str, ...] = ()

    def argument(self) -> str:
        """The options as the process takes them."""
        return json.dumps(asdict(self))


async def _work(options: Options) -> None:
    ledger = Ledger(Path(options.ledger))
    deaths = Deaths(ledger, options.deaths)
    plain = await Client.connect(options.address)
    config = plain.temporal.config()
    config["interceptors"] = [DyingInterceptor(deaths)]
    client = Client(TemporalClient(**config), task_queue=options.queue)
    agents = make_agents(Bodies(ledger, deaths, options.pause))
    app = Interlock(agents, settings=Settings.read(max_cached_runs=options.cached))
    await run_worker(app, client, asyncio.Event())


async def _main(options: Options) -> None:
    worker = asyncio.ensure_future(_work(options))
    parent = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    done, _ = await asyncio.wait([worker, parent], return_when=asyncio.FIRST_COMPLETED)
    if worker in done:
        worker.result()  # A worker ends only by its error.


if __name__ == "__main__":
    code = 1
    try:
        asyncio.run(_main(Options(**json.loads(sys.argv[1]))))
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)
