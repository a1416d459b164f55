"""Printing. Whatever came from a model, a tool or a person is made harmless to the terminal before it is shown."""

import json
import sys
from typing import TYPE_CHECKING, Any

from interlock._text import HARMFUL, line, plain

__all__ = ["emit", "emit_json", "err", "line", "out", "plain", "say", "say_error", "say_text", "show", "to_json"]

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDE = 10_000  # Columns of what is no terminal: nothing is wrapped or cut for a program that reads along.


def to_json(value: Any, *, indent: int | None = 2) -> str:
    """JSON that a person can read and that is safe to show."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return HARMFUL.sub(lambda found: json.dumps(found[0])[1:-1], text)


def out() -> "Console":
    """The console for results."""
    return _console(sys.stdout)


def err() -> "Console":
    """The console for everything else."""
    return _console(sys.stderr)


def emit(result: str) -> None:
    """Print a result as it is; it must be harmless already."""
    sys.stdout.write(f"{result}\n")
    sys.stdout.flush()


def emit_json(document: Any) -> None:
    """Print a result as one JSON document."""
    emit(to_json(document))


def show(renderable: "RenderableType") -> None:
    """Print a result that is a table or styled text."""
    out().print(renderable)


def say(message: str, *, style: str = "") -> None:
    """Tell a person something, in one line that is never broken, so that commands in it can be copied."""
    err().print(line(message), style=style, soft_wrap=True)


def say_text(text: str) -> None:
    """Tell a person something in several lines."""
    err().print(plain(text.rstrip("\n")), soft_wrap=True)


def say_error(message: str) -> None:
    """Tell a person what went wrong, in one line."""
    from rich.text import Text

    err().print(Text.assemble(("error: ", "bold red"), line(message)), soft_wrap=True)


def _console(stream: Any) -> "Console":
    from rich.console import Console

    wide = None if stream.isatty() else _WIDE
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=wide)
