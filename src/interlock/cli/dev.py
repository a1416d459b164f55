"""A server and a worker that starts again when the code changes, by one command."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock._processes import END_WITH_PARENT
from interlock.cli import server as servers
from interlock.cli._console import say
from interlock.cli._load import split_target
from interlock.cli._options import Target
from interlock.cli._signals import until_signal

if TYPE_CHECKING:
    from interlock.server import EmbeddedServer

_STOPS_WITHIN_SECONDS = 5


def dev(
    target: Target,
    port: servers.Port = servers.DEFAULT_PORT,
    ui_port: servers.UiPort = None,
    data: servers.Data = servers.DEFAULT_DATA,
) -> int:
    """Run a server and an app's worker, with reload.

    It runs until Ctrl+C; the worker starts again when a Python file in this folder changes. Each run is replayed when
    it has ended, and you are told when an agent does not do the same again.

    \b
    Examples:
      interlock dev support:app
    """
    split_target(target)
    return asyncio.run(until_signal(_develop(target, port, ui_port, data.absolute())))


async def _develop(target: str, port: int, ui_port: int | None, data: Path) -> int:
    server = await servers.started(port, ui_port, data)
    try:
        servers.print_links(server)
        say(f"Starting the worker of {target}.", style="dim")
        return await _work(target, server)
    finally:
        say("Stopping.", style="dim")
        await server.stop()


async def _work(target: str, server: "EmbeddedServer") -> int:
    gone = asyncio.ensure_future(servers.ended(server))
    changes, changed_before = _changes(), False
    try:
        while True:
            change = asyncio.ensure_future(anext(changes))
            worker = await _start(server.address, "worker", "run", target)
            replays = await _start(server.address, "replay", target, "--follow")
            try:
                status = await _until_changed(worker, change, gone)
                if status is not None and not changed_before:  # It never worked: a wrong name, say.
                    return status or 1
                if status is not None:
                    say("The worker ended. It starts again when a Python file changes.", style="yellow")
                    await _first(change, gone)
                if gone.done():
                    gone.result()
                say(f"Changed: {change.result()}. The worker starts again.", style="bold")
                changed_before = True
            finally:
                change.cancel()
                await asyncio.gather(_stop(worker), _stop(replays))
    finally:
        gone.cancel()


async def _until_changed(
    worker: asyncio.subprocess.Process, change: "asyncio.Future[str]", gone: "asyncio.Future[None]"
) -> int | None:
    """Wait for what comes first; the worker's exit status when that is its end."""
    over = asyncio.ensure_future(worker.wait())
    try:
        await _first(over, change, gone)
        return over.result() if over.done() and not change.done() and not gone.done() else None
    finally:
        over.cancel()


async def _first(*futures: "asyncio.Future[Any]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _start(address: str, *arguments: str) -> asyncio.subprocess.Process:
    # In a session of its own, so that Ctrl+C reaches it through us, once.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "interlock", *arguments),
        env=worker_environment(os.environ, address),
        start_new_session=True,
        preexec_fn=END_WITH_PARENT,  # A worker that outlived it would go on with the old code.
    )


def worker_environment(environment: Mapping[str, str], address: str) -> dict[str, str]:
    """The environment of a worker for the embedded server: whatever else is said about Temporal does not hold there.

    Nor has the worker a version: nobody would make it current.
    """
    without = ("TEMPORAL_", "INTERLOCK_DEPLOYMENT", "INTERLOCK_BUILD_ID")
    kept = {name: value for name, value in environment.items() if not name.startswith(without)}
    quick = {"INTERLOCK_GRACEFUL_SHUTDOWN_SECONDS": "2"}
    return {**quick, **kept, "TEMPORAL_ADDRESS": address, "TEMPORAL_CONFIG_FILE": os.devnull}


async def _stop(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        worker.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOPS_WITHIN_SECONDS):
            await worker.wait()
    except TimeoutError:
        worker.kill()
        await worker.wait()


async def _changes() -> AsyncIterator[str]:
    """The names of changed Python files in the current folder, as they change."""
    if find_spec("watchfiles") is None:
        say('Changes are not watched. For that: pip install "interlock[dev-reload]"', style="yellow")
        await asyncio.Event().wait()
    from watchfiles import PythonFilter, awatch

    here: Any = Path.cwd()
    async for changed in awatch(here, watch_filter=PythonFilter(), step=200):
        yield ", ".join(sorted({str(Path(path).relative_to(here)) for _, path in changed}))
