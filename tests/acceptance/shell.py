"""A folder of somebody's, in which they do what a page says. Only the ports are others: tests run beside others."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from interlock.server import free_port
from interlock.testing import eventually


class Shell:
    """Somebody's terminals in one folder, against a server of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "INTERLOCK_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**kept, "PATH": path, "TEMPORAL_ADDRESS": f"127.0.0.1:{self._port}"}

    def write(self, name: str, text: str) -> None:
        (self._folder / name).parent.mkdir(exist_ok=True)
        (self._folder / name).write_text(text)

    async def run(self, command: str) -> tuple[int, str]:
        """The command's exit status, and all it says."""
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", command),
            cwd=self._folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, output.decode()

    async def until(self, command: str, text: str) -> str:
        """Give the command again until it says so."""

        async def said() -> str | None:
            status, output = await self.run(command)
            return output if status == 0 and text in output else None

        output: str = await eventually(said, within_seconds=45, every_seconds=0.2)
        return output

    @asynccontextmanager
    async def background(
        self, command: str, text: str, *, ends_by: signal.Signals = signal.SIGTERM
    ) -> AsyncIterator[Path]:
        """The command at work, from when it says so, until the block ends; and what it says, in a file."""
        if command.startswith(("interlock server", "interlock dev")):
            command += f" --port {self._port} --ui-port {free_port()}"
        log = self._folder / f"{free_port()}.log"
        with log.open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", command.replace("interlock", "exec interlock", 1)),
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

        async def is_there() -> bool:
            assert process.returncode is None, log.read_text()
            return text in log.read_text()

        try:
            await eventually(is_there, within_seconds=60)
            yield log
        finally:
            if process.returncode is None:
                process.send_signal(ends_by)
            await asyncio.wait_for(process.wait(), 60)
