"""One worker process: `python -m soak.child OPTIONS`.

It ends when its standard input does, where it is to die, or with status 75 when no server answers at its start.
"""

import asyncio
import json
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from temporalio.client import Client as TemporalClient

from interlock import Client, Interlock, UnavailableError
from interlock.settings import Settings
from interlock.worker import run_worker
from soak.agents import Bodies, make_agents
from soak.death import Deaths, DyingInterceptor
from soak.ledger import Ledger

NO_SERVER = 75


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


async def _end_with_parent() -> None:
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


async def _main(options: Options) -> None:
    parent = asyncio.create_task(_end_with_parent())
    try:
        await _work(options)
    except UnavailableError:
        os._exit(NO_SERVER)
    except BaseException:
        traceback.print_exc()
    # Not by returning: that would wait for the thread that reads.
    parent.cancel()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    asyncio.run(_main(Options(**json.loads(sys.argv[1]))))
