"""One step that is under way, as a person sees it: what its model says, how far its tool is, and how it ended."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from interlock.cli._console import line, plain
from interlock.cli._format import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from interlock.journal import RunEvent

MARKS = {
    "completed": ("✓ ", "green"),
    "approved": ("✓ ", "green"),
    "happened": ("✓ ", "green"),
    "not_happened": ("- ", "dim"),
    "given_up": ("✗ ", "red"),
    "cancelled": ("- ", "dim"),
    "withdrawn": ("- ", "dim"),
    "failed": ("✗ ", "red"),
    "timed_out": ("✗ ", "red"),
    "rejected": ("✗ ", "red"),
}
_INDENT = "    "
_LINES_NOW = 6
_LINES_KEPT = 12
_KEPT = 4_000  # In characters, of what is shown while it grows.
_BAR = 24


class Speech:
    """A step, from the event that began it. nested: of a run below the one that is watched; its agents are named."""

    def __init__(self, started: RunEvent, *, nested: bool = False) -> None:
        path = f"{' / '.join(started.agent_path)}: " if nested else ""
        self.label = line(f"{path}{started.text}")
        self.began_at = started.at
        self._text = ""
        self._thought = ""
        self._calls: dict[str, str] = {}
        self._progress: RunEvent | None = None
        self._void = 0
        self._calls_tools = False

    def take(self, event: RunEvent) -> None:
        """The step says something."""
        if event.kind == "text":
            self._text = (self._text + event.text)[-_KEPT:]
        elif event.kind == "thinking":
            self._thought = (self._thought + event.text)[-_KEPT:]
        elif event.kind == "call_delta":
            self._calls[event.call_id] = line(f"{event.name}, {event.size or 0:,} characters")
        elif event.kind == "call":
            self._calls.pop(event.call_id, None)
            self._calls_tools = True
        elif event.kind == "progress":
            self._progress = event
        elif event.kind == "attempt_failed":
            self._text, self._thought, self._calls, self._progress = "", "", {}, None
            self._void = event.attempt or 0

    def now(self, width: int) -> Iterator[Text]:
        """The last of what it said, in lines that fit."""
        from rich.text import Text

        if self._void:
            yield Text(f"{_INDENT}attempt {self._void} failed; what it said does not count", style="yellow")
        if self._text:
            yield from (Text(f"{_INDENT}{row}") for row in _rows(self._text, width)[-_LINES_NOW:])
        elif self._thought:
            yield from (Text(f"{_INDENT}{row}", style="dim italic") for row in _rows(self._thought, width)[-3:])
        for call in self._calls.values():
            yield Text(f"{_INDENT}… {call}", style="dim")
        if self._progress:
            yield _progress(self._progress)

    def ended(self, event: RunEvent) -> Iterator[Text]:
        """How it ended, and what its model said before calling tools: at the end of a run its output follows anyway."""
        from rich.text import Text

        took = duration((event.at - self.began_at).total_seconds())
        tries = f", {event.attempt} attempts" if (event.attempt or 0) > 1 else ""
        text = Text.assemble(MARKS.get(event.status, "  "), self.label, (f"  {took}{tries}", "dim"))
        yield text.append(f"  {line(event.error)}", style="red") if event.error else text
        if self._calls_tools and self._text.strip():
            rows = _rows(self._text.strip(), 100)
            yield from (Text(f"{_INDENT}{row}", style="dim") for row in rows[:_LINES_KEPT])
            if len(rows) > _LINES_KEPT:
                yield Text(f"{_INDENT}… {len(rows) - _LINES_KEPT} lines more", style="dim")


def _rows(text: str, width: int) -> list[str]:
    inner = max(width - len(_INDENT) - 1, 20)
    return [row for one in plain(text).splitlines() for row in (textwrap.wrap(one, inner) or [""])]


def _progress(event: RunEvent) -> Text:
    from rich.text import Text

    done, total, note = event.done, event.total, line(event.text)
    if done is None or not total or total <= 0:
        count = "" if done is None else f"{done:,g}  "
        return Text(f"{_INDENT}{count}{note}", style="dim")
    share = min(max(done / total, 0.0), 1.0)
    full = round(share * _BAR)
    return Text.assemble(
        _INDENT, ("━" * full, "cyan"), ("─" * (_BAR - full), "dim"), f" {done:,g} of {total:,g}", (f"  {note}", "dim")
    )
