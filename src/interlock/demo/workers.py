"""The worker process as the demo sees it: started, killed, replaced and stopped."""

import asyncio
import os
import sys
from pathlib import Path
from typing import IO

from interlock.contracts.errors import UnavailableError
from interlock.demo import settings

_STOPS_WITHIN_SECONDS = 5


class Workers:
    """One worker process at a time. database: the shop's. log: the file that takes what they print.
    adapter: the framework of the agent.

    pids: the ids of all of them, in order.
    """

    def __init__(self, database: Path, log: Path, adapter: str) -> None:
        self._database = database
        self._adapter = adapter
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._address = ""
        self.pids: list[int] = []

    @property
    def pid(self) -> int:
        """The id of the process at work; 0 when there is none."""
        return self._process.pid if self._process else 0

    async def spawn(self) -> None:
        """Start a process. It loads the agent and then waits for `serve`."""
        with self._log.open("ab") as log:
            self._process = await self._run(log)
        self.pids.append(self._process.pid)

    async def serve(self, address: str) -> None:
        """Put the process to work for the server at the address. Raises UnavailableError when it ends instead."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._address = address
        try:
            self._process.stdin.write(f"{address}\n".encode())
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise self._ended(await self._process.wait()) from error
        if not await self._process.stdout.readline():
            raise self._ended(await self._process.wait())

    async def kill(self) -> None:
        """End the process with SIGKILL: it can tidy nothing up."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def replace(self) -> None:
        """Start another process, for the same server."""
        await self.spawn()
        await self.serve(self._address)

    async def watch(self) -> None:
        """Never returns. Raises UnavailableError when the process ends without having been told to."""
        while True:
            if self._process is not None and self._process.returncode is not None:
                raise self._ended(self._process.returncode)
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        """Let the process finish what it is at, for 5 s at most. Nothing of it is left, even when this is cancelled."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _STOPS_WITHIN_SECONDS)
        except TimeoutError:
            pass
        finally:
            if process.returncode is None:
                process.kill()
        await process.wait()

    async def _run(self, log: IO[bytes]) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "interlock.demo.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env={
                **os.environ,
                settings.DATABASE_VARIABLE: str(self._database),
                settings.ADAPTER_VARIABLE: self._adapter,
            },
            start_new_session=True,  # Ctrl+C in the terminal is for the demo, which stops the worker itself.
        )

    def _ended(self, status: int) -> UnavailableError:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        words = f" Its last words: {lines[-1][:300]}" if lines else ""
        return UnavailableError(f"The worker process ended with status {status}.{words} See {self._log}.")
