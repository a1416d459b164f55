"""What `interlock doctor --runs` says of the open runs: which do not get on, why, and what to do."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from interlock.cli._console import line, say, show
from interlock.cli._format import duration, table

if TYPE_CHECKING:
    from interlock.client import Client
    from interlock.watchdog import Finding, RunTrouble

LOOKED_AT = 1_000
_QUIET_SECONDS = 2


async def look_at_runs(client: Client) -> list[RunTrouble]:
    """The runs in trouble. After two seconds it tells, on stderr and every two seconds, how far it is."""
    told = time.monotonic()

    def looked(number: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > _QUIET_SECONDS:
            told = time.monotonic()
            say(f"looked at {number:,} of {of:,} open runs")

    return await client.troubled_runs(limit=LOOKED_AT, looked=looked)


def show_troubles(troubles: list[RunTrouble]) -> None:
    """A row for each run, the worst first."""
    from rich.text import Text

    if not troubles:
        show(Text("All open runs get on."))
        return
    made = table("", "Run", "Agent", "Found", "What to do")
    for trouble in troubles:
        mark = Text("no", style="bold red") if trouble.wrong else Text("..", style="yellow")
        said = "\n".join(_found(finding) for finding in trouble.findings)
        todo = "\n".join(line(finding.todo) for finding in trouble.findings)
        made.add_row(mark, line(trouble.workflow_id), line(trouble.agent), said, todo)
    show(made)


def _found(finding: Finding) -> str:
    if finding.since is None:
        return line(finding.what)
    return line(f"{finding.what} (for {duration((datetime.now(UTC) - finding.since).total_seconds())})")
