"""Deployments with waiting runs, by the installed program: docs/upgrades.md to the letter."""

import re
from contextlib import AsyncExitStack
from pathlib import Path

from interlock.testing import eventually
from tests.acceptance.shell import Shell

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"
# What a block does stands behind its language: `file=NAME`, `background="what it says when it is there"`, ...
BLOCK = re.compile(r"^```\w+ (\w+)(?:=([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
Block = tuple[str, str, str]


def blocks(*kinds: str) -> list[Block]:
    found = [(match[1], (match[2] or "").strip('"'), match[3]) for match in BLOCK.finditer(PAGE.read_text())]
    return [block for block in found if block[0] in kinds]


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

        await eventually(reported)
        assert report in log.read_text()
        assert "Run hello-2 does not do the same when it is replayed." in log.read_text()
