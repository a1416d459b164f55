"""An MCP server in a process of its own: `python -m tests.workflows.mcp_server LOG [PORT]`.

Over HTTP on loopback when a port is given, otherwise over its standard input and output.
"""

import sys
from pathlib import Path

from mcp.server import MCPServer


def main(log: Path, port: int | None) -> None:
    server = MCPServer("shelf", log_level="ERROR")

    @server.tool()
    def take(thing: str) -> str:
        """Take a thing off the shelf."""
        with log.open("a") as lines:
            lines.write(f"{thing}\n")
        return f"took {thing}"

    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
