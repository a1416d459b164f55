"""Deployments with waiting runs, by the installed program: docs/upgrades.md to the letter."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from interlock.server import free_port
from interlock.testing import eventually

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"
# What a block does stands behind its language: `file=NAME`, `background="what it says when it is there"`, ...
BLOCK = re.compile(r"^```\w+ (\w+)(?:=([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Block = tuple[str, str, str]


def blocks(*kinds: str) -> list[Block]:
    found = [(match[1], (match[2] or "").strip('"'), match[3]) for match in BLOCK.finditer(PAGE.read_text())]
    return [block for block in found if block[0] in kinds]


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
    async def background(self, command: str, text: str) -> AsyncIterator[Path]:
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
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 60)


async def test_the_page_works_to_the_letter(tmp_path: Path) -> None:
    """Build 1 asks, build 2 could not go on with that run and becomes current, and the run ends on build 1."""
    shell = Shell(tmp_path)
    async with AsyncExitStack() as left_running:
        for does, value, text in blocks("file", "background", "run", "until", "expect", "fails"):
            command = text.strip()
            if does == "file":
                shell.write(value, text)
            elif does == "background":
                await left_running.enter_async_context(shell.background(command, value))
            elif does == "until":
                await shell.until(command, value)
            else:
                status, output = await shell.run(command)
                assert status == (1 if does == "fails" else 0), output
                assert value in output


ORDER_OF_A_SET = """
from guarded import *

guards = {f"guard{n}": Agent(TestModel(), name=f"guard{n}", capabilities=[Durable()]) for n in range(12)}


class AskAll(AbstractCapability):
    async def before_model_request(self, ctx, request_context):
        if ctx.agent.name == "asks-all":
            for name in set(guards):
                await guards[name].run("Fine?")
        return request_context


asks_all = Agent(TestModel(custom_output_text="hello"), name="asks-all", capabilities=[AskAll(), Durable()])
app = Interlock(agents=[support, guard, asks_all, *guards.values()])
"""


async def test_dev_says_of_a_finished_run_that_it_does_not_do_the_same_again(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (_, (_, name, text)) = blocks("file")
    ((_, _, report),) = blocks("report")
    shell.write(name, text)
    shell.write("app.py", ORDER_OF_A_SET)
    async with shell.background("interlock dev app:app", "Worker for support") as log:
        await shell.run("interlock runs start support --prompt Hello. --id hello-1 --wait")
        await shell.run("interlock runs start asks-all --prompt Hello. --id hello-2 --wait")

        async def reported() -> bool:
            return log.read_text().count(report.splitlines()[-1]) == 2

        await eventually(reported, within_seconds=30)
        assert report in log.read_text()
        assert "Run hello-2 does not do the same when it is replayed." in log.read_text()
