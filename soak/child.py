"""What a worker process does. It ends with those that wait for it, where it is to die, or with status 75 when no server
answers at its start.
"""

import asyncio
import json
import os
import select
import sys
import threading
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from temporalio.client import Client as TemporalClient

from interlock import Client, Interlock, UnavailableError
from interlock.settings import Settings
from interlock.worker import run_worker
from soak.agents import make_agents
from soak.bodies import Bodies
from soak.death import Deaths, DyingInterceptor
from soak.ledger import Ledger
from soak.script import Adapter

NO_SERVER = 75


@dataclass(frozen=True)
class Options:
    """How a worker is started. pause: the longest that a body works, seconds. cached: runs it keeps in memory.
    deaths: the points at which it kills itself."""

    address: str
    queue: str
    ledger: str
    pause: float
    adapter: Adapter = "pydantic-ai"
    cached: int = 1_000
    deaths: tuple[str, ...] = ()

    def argument(self) -> str:
        """The options as the process takes them."""
        return json.dumps(asdict(self))


def run(options: Options) -> NoReturn:
    """Be a worker, to the end of this process."""
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    status = 1
    try:
        asyncio.run(_work(options))
    except UnavailableError:
        status = NO_SERVER
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def _end_with_standard_input() -> None:
    end = select.poll()
    end.register(sys.stdin, 0)  # Nothing is read: what comes there is for the process that has started this one.
    end.poll()
    os._exit(0)


async def _work(options: Options) -> None:
    ledger = Ledger(Path(options.ledger))
    deaths = Deaths(ledger, options.deaths)
    plain = await Client.connect(options.address)
    config = plain.temporal.config()
    config["interceptors"] = [DyingInterceptor(deaths)]
    client = Client(TemporalClient(**config), task_queue=options.queue)
    agents = make_agents(options.adapter, Bodies(ledger, deaths, options.pause))
    app = Interlock(agents, settings=Settings.read(max_cached_runs=options.cached))
    await run_worker(app, client, asyncio.Event())
