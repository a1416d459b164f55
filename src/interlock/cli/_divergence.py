"""A history that does not replay, as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from interlock.cli._console import line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from interlock.replay import Command, Divergence, Replayed


def replayed_text(replayed: Replayed, *, verbose: bool = False) -> Text:
    """What there is to say of a history that did not replay. verbose: with Temporal's own words."""
    from rich.text import Text

    name = replayed.workflow_id if replayed.source is None else f"{replayed.source} ({replayed.workflow_id})"
    text = Text.assemble(("✗ ", "bold red"), (line(name), "bold"), f", agent {line(replayed.agent)}: ")
    if replayed.divergence is None:
        return text.append("not replayed, the app has no such agent", style="yellow")
    text.append(f"diverges at step {replayed.divergence.step}", style="bold red")
    for row in _rows(replayed.divergence, verbose=verbose):
        text.append(f"\n    {line(row)}")
    return text


def _rows(divergence: Divergence, *, verbose: bool) -> Iterator[str]:
    if divergence.after:
        yield f"after step {divergence.after.step}, {divergence.after.label}"
    if divergence.recorded or divergence.wanted:
        yield f"the history has   {_named(divergence.recorded)}"
        yield f"this build wants  {_named(divergence.wanted)}"
    else:
        yield divergence.message
    if divergence.hint:
        yield divergence.hint
    if verbose:
        yield divergence.raw


def _named(command: Command | None) -> str:
    if command is None:
        return "nothing there"
    return f"{command.label}  (activity {command.name})" if command.kind == "activity" else command.label
