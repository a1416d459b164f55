"""A journal as people see it in a terminal: a line for each step, what was asked and decided, and the sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from interlock.cli._console import line, out
from interlock.cli._format import status_text, table
from interlock.contracts.durations import span
from interlock.journal._totals import unread_model_calls, with_runs_below
from interlock.journal._words import (
    budget_line,
    came_of,
    ending,
    settled,
    short,
    subject,
    title,
    tokens,
    tone,
    totals_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from rich.table import Table
    from rich.text import Text

    from interlock.journal import Answer, Journal, Request, Step, SubRunLink

_COLUMNS = ("", "Kind", "Agent", "Step", "Tries", "Start", "Took", "Tokens", "Bytes", "Outcome")
_RIGHT = ("", "Tries", "Start", "Took", "Tokens", "Bytes")
_FLEXIBLE = ("Step", "Outcome")
_DROPPED_FIRST = ("Bytes", "Start", "Tokens")
_ENOUGH = 46  # Columns in which a step and its outcome can be told in one line.
_GAP = 3  # Columns between two columns of a table.
_KINDS = {"description": "describe"}
_STYLES = {"failed": "red", "timed_out": "red", "abandoned": "dim", "cancelled": "dim", "scheduled": "cyan"}
_TONES = {"good": "green", "bad": "red", "plain": "dim", "wait": "bold yellow"}


def print_journal(journal: Journal) -> None:
    """Print a journal."""
    console = out()
    for text in _head(journal):
        console.print(text, soft_wrap=True)
    if rows := list(_rows(journal, "", 0, journal.started_at)):
        console.print(_table(rows, console.width))
    for text in _after(journal, "", ""):
        console.print(text, soft_wrap=True)
    whole = with_runs_below(journal)
    console.print(_line(f"\n{totals_line(whole, unread_model_calls(journal))}", "dim"), soft_wrap=True)
    if journal.budget:
        console.print(_line(budget_line(journal.budget, whole.usage), "dim"), soft_wrap=True)
    if journal.error:
        console.print(_line(journal.error, "red"), soft_wrap=True)


@dataclass(frozen=True)
class _Row:
    """A line of the table: texts by column."""

    cells: dict[str, str]
    style: str = ""


def _head(journal: Journal) -> Iterator[Text]:
    from rich.text import Text

    yield Text.assemble((line(journal.workflow_id), "bold"), "  ", status_text(journal.status))
    facts = [
        journal.agent or journal.workflow_type,
        f"started {journal.started_at.astimezone():%Y-%m-%d %H:%M:%S}",
        f"took {span(journal.totals.elapsed_seconds)}" if journal.ended_at else "",
        f"for {journal.requested_by}" if journal.requested_by else "",
        f"by a tool of {journal.parent_id}" if journal.parent_id else "",
        f"forked from {journal.forked_from}" if journal.forked_from else "",
        f"goes on from execution {journal.continued_from}" if journal.continued_from else "",
        f"went on as execution {journal.continued_as}" if journal.continued_as else "",
    ]
    yield _line(", ".join(fact for fact in facts if fact), "dim")
    if journal.summary:
        yield _line(journal.summary, "dim")
    yield Text()


def _rows(journal: Journal, above: str, depth: int, began: datetime) -> Iterator[_Row]:
    """The lines of a journal, and below each step those of the runs it started."""
    linked = {link.position for link in journal.sub_runs}
    for step in journal.steps:
        yield _step(step, above, depth, began)
        if step.position in linked:
            below = f"{above}{step.position}."
            for link in journal.sub_runs:
                if link.position == step.position:
                    yield from _below(link, below, depth + 1, began)
    for link in journal.sub_runs:
        if link.position is None:
            yield from _below(link, above, depth + 1, began)


def _below(link: SubRunLink, above: str, depth: int, began: datetime) -> Iterator[_Row]:
    took = (link.ended_at - link.started_at).total_seconds() if link.ended_at else None
    yield _Row(
        {
            "Kind": "run",
            "Agent": "",
            "Step": f"{'  ' * depth}↳ {line(link.agent or link.workflow_type)}: {line(link.workflow_id)}",
            "Start": span((link.started_at - began).total_seconds()),
            "Took": span(took),
            "Outcome": line(link.error or link.unread or link.status.replace("_", " ")),
        },
        "dim",
    )
    if link.journal is not None:
        yield from _rows(link.journal, above, depth, began)


def _step(step: Step, above: str, depth: int, began: datetime) -> _Row:
    return _Row(
        {
            "": f"{above}{step.position}",
            "Kind": _KINDS.get(step.kind, step.kind),
            "Agent": line(step.agent),
            "Step": f"{'  ' * depth}{line(title(step))}",
            "Tries": str(step.attempts or ""),
            "Start": span((step.scheduled_at - began).total_seconds()),
            "Took": span(step.seconds),
            "Tokens": tokens(step),
            "Bytes": f"{short(step.bytes_in)} > {short(step.bytes_out)}",
            "Outcome": line(ending(step)),
        },
        _STYLES.get(step.status, "dim" if step.kind in ("description", "predicate", "hook", "instructions") else ""),
    )


def _table(rows: list[_Row], width: int) -> Table:
    widths = {name: max(len(name), *(len(row.cells.get(name, "")) for row in rows)) for name in _COLUMNS}
    columns = [name for name in _COLUMNS if not _says_nothing(name, rows)]
    for name in _DROPPED_FIRST:
        if _room(columns, widths, width) < _ENOUGH and name in columns:
            columns.remove(name)
    room = _room(columns, widths, width)
    widths["Outcome"] = min(widths["Outcome"], max(room * 2 // 5, 12))
    widths["Step"] = min(widths["Step"], max(room - widths["Outcome"], 12))
    one_line = room >= _ENOUGH
    made = table()
    for name in columns:
        made.add_column(
            name,
            justify="right" if name in _RIGHT else "left",
            width=widths[name],
            no_wrap=one_line or name not in _FLEXIBLE,
            overflow="ellipsis" if one_line else "fold",
        )
    for row in rows:
        made.add_row(*(row.cells.get(name, "") for name in columns), style=row.style)
    return made


def _says_nothing(name: str, rows: list[_Row]) -> bool:
    found = {row.cells.get(name, "") for row in rows}
    return (name == "Agent" and len(found - {""}) < 2) or (name == "Tries" and found <= {"", "1"})


def _room(columns: list[str], widths: dict[str, int], width: int) -> int:
    """What is left for the columns that take what there is."""
    return width - sum(widths[name] for name in columns if name not in _FLEXIBLE) - _GAP * len(columns)


def _after(journal: Journal, above: str, indent: str) -> Iterator[Text]:
    """What failed, was asked, decided and retried, here and in the runs below."""
    failures = list(_failures(journal, above, indent))
    yield from [_line(""), *failures] if failures else []
    for request in journal.requests:
        yield from _request(request, journal, above, indent)
    for stuck in journal.stuck:
        until = span((stuck.until - stuck.since).total_seconds()) if stuck.until else "still"
        yield _line(f"\n{indent}stuck: {stuck.label}, {until}, {stuck.outcome.replace('_', ' ')}", "yellow")
    for retry in journal.retries:
        what = f" (step {retry.step})" if retry.step else ""
        why = f": {retry.reason}" if retry.reason else ""
        refused = f"; refused: {retry.refused}" if retry.refused else ""
        yield _line(f"{indent}retried by {retry.by or 'somebody'}{what}{why}{refused}", "yellow")
    for answer in journal.stray:
        yield _line(f"{indent}{_ignored(answer)}, to request {answer.request_id}: there is none", "dim")
    for link in journal.sub_runs:
        if link.journal is not None:
            yield from _after(link.journal, f"{above}{link.position or ''}.", f"{indent}  ")


def _failures(journal: Journal, above: str, indent: str) -> Iterator[Text]:
    for step in journal.steps:
        if step.error:
            yield _line(f"{indent}step {above}{step.position} {ending(step)}", "red")
        elif step.last_error:
            yield _line(f"{indent}step {above}{step.position}, an attempt failed: {step.last_error}", "yellow")


def _request(request: Request, journal: Journal, above: str, indent: str) -> Iterator[Text]:
    from rich.text import Text

    by = line(" / ".join(request.agent_path))
    named = Text.assemble(
        f"\n{indent}request {line(request.request_id)}: ", (line(subject(request)), "bold"), f"  {by}"
    )
    yield named
    ran = came_of(request, journal, above)
    yield _line(f"{indent}  {settled(request)}{f'; {ran}' if ran else ''}", _TONES[tone(request)])
    for answer in request.ignored:
        yield _line(f"{indent}  {_ignored(answer)}: {answer.ignored}", "dim")


def _ignored(answer: Answer) -> str:
    return f"without effect: {answer.verdict or 'an answer'} by {answer.by or 'somebody'}"


def _line(text: str, style: str = "") -> Text:
    from rich.text import Text

    # What is shown begins at most with a line feed of our own.
    start = "\n" if text.startswith("\n") else ""
    spaces = " " * (len(text.lstrip("\n")) - len(text.lstrip("\n").lstrip(" ")))
    return Text(f"{start}{spaces}{line(text)}", style=style)
