"""An MCP server over HTTP on loopback, in a process of its own: `python -m tests.workflows.mcp_server PORT LOG`."""

import sys
from pathlib import Path

from mcp.server import MCPServer


def main(port: int, log: Path) -> None:
    server = MCPServer("shelf")

    @server.tool()
    def take(thing: str) -> str:
        """Take a thing off the shelf."""
        with log.open("a") as lines:
            lines.write(f"{thing}\n")
        return f"took {thing}"

    server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
