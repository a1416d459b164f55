"""Run a Temporal server on this machine, or prepare one that is there."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli._connect import quiet_core
from interlock.cli._console import emit, emit_json, plain, say
from interlock.cli._options import AsJson
from interlock.cli._prepare import prepare
from interlock.cli._signals import until_signal
from interlock.contracts.errors import UnavailableError

if TYPE_CHECKING:
    from interlock.server import EmbeddedServer

Port = Annotated[int, typer.Option(metavar="N", min=0, max=65_535, help="The server's port; 0 takes a free one.")]
UiPort = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=65_535, help="The web UI's port; 1000 above --port by default.")
]
Data = Annotated[Path, typer.Option(metavar="DIR", file_okay=False, help="The folder that keeps all runs.")]

DEFAULT_PORT = 7233
DEFAULT_DATA = Path(".interlock")


def start(port: Port = DEFAULT_PORT, ui_port: UiPort = None, data: Data = DEFAULT_DATA, as_json: AsJson = False) -> int:
    """Run a Temporal server until Ctrl+C or SIGTERM. Its runs are kept in a folder.

    \b
    Examples:
      interlock server start
      interlock server start --port 7300 --data /var/lib/interlock
    """
    return asyncio.run(until_signal(_serve(port, ui_port, data.absolute(), as_json=as_json)))


async def _serve(port: int, ui_port: int | None, data: Path, *, as_json: bool) -> int:
    server = await started(port, ui_port, data)
    try:
        if as_json:
            emit_json({"address": server.address, "ui_url": server.ui_url, "data": str(server.data)})
        else:
            print_links(server)
            say("Ctrl+C stops it.", style="dim")
        await ended(server)
        return 0
    finally:
        await server.stop()


async def started(port: int, ui_port: int | None, data: Path) -> "EmbeddedServer":
    """Start the embedded server. See `EmbeddedServer.start`."""
    from interlock.server import EmbeddedServer

    quiet_core()
    return await EmbeddedServer.start(port=port, ui_port=ui_port, data=data)


def print_links(server: "EmbeddedServer") -> None:
    """Where the server is, as a result."""
    emit(plain(f"Server  {server.address}\nWeb UI  {server.ui_url}\nData    {server.data}"))
    if server.address != f"127.0.0.1:{DEFAULT_PORT}":
        say(f"Other commands find it with: export TEMPORAL_ADDRESS={server.address}")


async def ended(server: "EmbeddedServer") -> None:
    """Wait until the server's process ends by itself, which it should not. Raises UnavailableError then."""
    status = await server.process.wait()
    raise UnavailableError(
        f"The Temporal server ended by itself, with status {status}. Its log: {server.data}/temporal.log"
    )


COMMANDS = {"start": start, "prepare": prepare}
