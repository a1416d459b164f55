"""The demo's worker process. Its standard input is its leash: first the server's address, and at its end it stops."""

import asyncio
import logging
import os
import sys
from importlib import import_module

from interlock.demo import settings
from interlock.demo.connection import connect


def main() -> int:
    """Load the agent, wait to be told of the server, and work until standard input ends."""
    logging.basicConfig(level=logging.WARNING)
    # Loaded before the address is known: this takes as long as the server takes to start.
    from interlock.worker import run_worker

    app = import_module(settings.ADAPTERS[os.environ.get(settings.ADAPTER_VARIABLE, "pydantic-ai")]).app

    address = sys.stdin.readline().strip()
    if not address:
        return 0

    async def work() -> None:
        client = await connect(address)
        stop = asyncio.Event()
        _at_end_of_input(stop)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await run_worker(app, client, stop)

    asyncio.run(work())
    return 0


def _at_end_of_input(stop: asyncio.Event) -> None:
    loop, leash = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        if not os.read(leash, 1024):
            loop.remove_reader(leash)
            stop.set()

    loop.add_reader(leash, read)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # A Temporal client may abort the interpreter at its exit.
