"""Small things in tables and lines for people: statuses, time spans, usage, outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from interlock.cli._console import line, plain, to_json

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from interlock.contracts.payloads import BudgetState, Usage

_STATUS_STYLES = {
    "running": "cyan",
    "scheduled": "cyan",
    "awaiting_approval": "bold yellow",
    "awaiting_tool_result": "bold yellow",
    "stuck": "bold red",
    "completed": "green",
    "cancelled": "dim",
}


def status_text(status: str) -> Text:
    """A status in its colour."""
    from rich.text import Text

    return Text(line(status.replace("_", " ")), style=_STATUS_STYLES.get(status, "red"))


def usage_line(usage: Usage) -> str:
    """What a run used, in one line."""
    parts = [
        _count(usage.requests, "model call"),
        _count(usage.tool_calls, "tool call"),
        f"{usage.input_tokens:,} tokens in",
        f"{usage.output_tokens:,} out",
        *([f"{usage.cost_usd:f} USD"] if usage.cost_usd else []),
    ]
    return ", ".join(parts)


def budget_lines(budget: BudgetState) -> list[Text]:
    """How a budget stands: a bar for each limit, and what waits for it."""
    from rich.text import Text

    from interlock.contracts.budgets import bar, shares

    found = [
        Text.assemble((bar(share.part), _budget_style(share.part)), f" {share.text}")
        for share in shares(budget.limits, budget.spent)
    ]
    waits = [_count(budget.waiting, "model call") + " waits for it"] if budget.waiting else []
    return [*found, *(Text(line(text), style="yellow") for text in (*waits, budget.ended_by) if text)]


def _budget_style(part: float) -> str:
    return "red" if part >= 1 else "yellow" if part >= 0.8 else "green"


def output_text(output: Any) -> str:
    """What a run gave back: text as it is, anything else as JSON."""
    return plain(output) if isinstance(output, str) else to_json(output)


def ago(when: datetime | None) -> str:
    """How long ago something was: `12 s ago`."""
    return "" if when is None else f"{duration((datetime.now(UTC) - when).total_seconds())} ago"


def duration(seconds: float) -> str:
    """A time span in the unit that fits it: `0.4 s`, `12 s`, `3 min`, `2 h`, `5 d`."""
    seconds = max(seconds, 0)
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def table(*columns: str) -> Table:
    """An empty table that folds what does not fit instead of cutting it."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
