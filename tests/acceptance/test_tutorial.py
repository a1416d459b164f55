"""A new user's path: an empty folder, and docs/tutorial.md to the letter."""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell

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


async def test_the_tutorial_works_to_the_letter(tmp_path: Path) -> None:
    shell, steps = Shell(tmp_path), list(blocks())
    install, file, background, *commands = steps
    assert (install.does, file.does, background.does) == ("install", "file", "background")
    shell.write(file.value, file.text)
    async with shell.background(background.text.strip(), "Worker for support", ends_by=signal.SIGINT):
        for command in commands:
            await follow(shell, command)
    assert [command.does for command in commands].count("expect") == 5


async def follow(shell: Shell, command: Block) -> None:
    if command.does == "until":  # What a person does who looks again until it is there.
        await shell.until(command.text, command.value)
    elif command.does == "expect":
        status, output = await shell.run(command.text)
        assert (status, command.value in output) == (0, True), output
    else:
        pytest.fail(f"a block of the tutorial is not followed: {command}")
