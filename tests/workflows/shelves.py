"""An MCP server for tests, over HTTP or over its standard input and output; its tool notes each call in a file."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fastmcp.client.transports import ClientTransport, StdioTransport, StreamableHttpTransport

from interlock.server import free_port
from interlock.testing import eventually

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Shelf:
    """How the server is reached: by its url when it runs, otherwise by starting its command in the repository.

    Its one tool is `take(thing)`.
    """

    log: Path
    url: str = ""

    @property
    def taken(self) -> list[str]:
        """What the tool was called with, in whatever process."""
        return self.log.read_text().split() if self.log.exists() else []

    @property
    def arguments(self) -> list[str]:
        """Of the Python interpreter, to start the server."""
        return ["-m", "tests.workflows.mcp_server", str(self.log)]

    @property
    def transport(self) -> ClientTransport:
        """For a `MCPToolset`."""
        if self.url:
            return StreamableHttpTransport(self.url)
        return StdioTransport(sys.executable, self.arguments, cwd=str(REPOSITORY), keep_alive=False)


@asynccontextmanager
async def http_shelf(log: Path) -> AsyncIterator[Shelf]:
    """A server over HTTP, that listens."""
    shelf, port = Shelf(log), free_port()
    process = await asyncio.create_subprocess_exec(sys.executable, *shelf.arguments, str(port), cwd=REPOSITORY)

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    try:
        await eventually(listens)
        yield Shelf(log, f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def stdio_shelf(log: Path) -> AsyncIterator[Shelf]:
    """A server that each connection starts for itself."""
    yield Shelf(log)


SHELVES = {"http": http_shelf, "stdio": stdio_shelf}
