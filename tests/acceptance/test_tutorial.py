"""A new user's path: an empty folder, and docs/tutorial.md to the letter."""

import asyncio
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from interlock.server import free_port
from interlock.testing import eventually

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. does: what the word or the key behind the language says. value: of the key."""

    does: str
    value: str
    text: str


def blocks() -> Iterator[Block]:
    for match in BLOCK.finditer(TUTORIAL.read_text()):
        does, _, value = (match[2] or "").partition("=")
        yield Block(does, value.strip('"'), match[3])


class Reader:
    """Somebody who does what the tutorial says, in one folder. Only the ports are others: tests run beside others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        programs = Path(sys.executable).parent
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "INTERLOCK_"))},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "TEMPORAL_ADDRESS": f"127.0.0.1:{self._port}",
        }

    def write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    async def run(self, command: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            cwd=self._folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 60)
        return process.returncode or 0, output.decode()

    @asynccontextmanager
    async def left_running(self, command: str) -> AsyncIterator[None]:
        with (self._folder / "background.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command),
                "--port",
                str(self._port),
                "--ui-port",
                str(free_port()),
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
            try:
                await eventually(self._worker_is_there, within_seconds=60)
                yield
            finally:
                process.send_signal(signal.SIGINT)
                await asyncio.wait_for(process.wait(), 60)

    async def _worker_is_there(self) -> bool:
        return "Worker for support" in (self._folder / "background.log").read_text()


async def test_the_tutorial_works_to_the_letter(tmp_path: Path) -> None:
    reader, steps = Reader(tmp_path), list(blocks())
    install, file, background, *commands = steps
    assert (install.does, file.does, background.does) == ("install", "file", "background")
    reader.write(file.value, file.text)
    async with reader.left_running(background.text.strip()):
        for command in commands:
            await follow(reader, command)
    assert [command.does for command in commands].count("expect") == 5


async def follow(reader: Reader, command: Block) -> None:
    async def shown() -> bool:
        status, output = await reader.run(command.text)
        assert status == 0, output
        return command.value in output

    if command.does == "until":  # What a person does who looks again until it is there.
        await eventually(shown, within_seconds=60)
    elif command.does == "expect":
        assert await shown(), f"{command.text.strip()} did not show {command.value!r}"
    else:
        pytest.fail(f"a block of the tutorial is not followed: {command}")
