"""What a fork takes over and what lies after it, shown before somebody says yes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from interlock.cli._console import err, line, say
from interlock.cli._errors import WrongUsageError
from interlock.cli._format import ago, status_text, table
from interlock.journal._words import counted

if TYPE_CHECKING:
    from interlock.fork import ForkPlan

_ASKING = "Start the new run? [y/N] "


def confirmed(plan: ForkPlan, *, yes: bool) -> bool:
    """Show a plan and ask whether to go on. Raises WrongUsageError when nobody is there to be asked."""
    fork = plan.run.fork
    at = fork.at if fork else 0
    say(
        f"Takes over {counted(len(plan.taken_over), 'completed step')} of {plan.journal.workflow_id} before step {at}; "
        "none of them runs again."
    )
    if plan.effects:
        say(
            "These tool calls are not taken over. What they did is not undone, and the new run may do it again:",
            style="yellow",
        )
        made = table("", "Call", "Status", "Ended")
        for number, step in enumerate(plan.effects):
            # The positions of another execution's steps would be taken for this one's.
            position = str(step.position) if number < plan.of_this_execution else ""
            made.add_row(position, line(step.summary), status_text(step.status), ago(step.ended_at))
            for below in step.sub_runs:
                made.add_row("", line(f"  with all that {below} did"), "", "")
        err().print(made)
    if yes:
        return True
    if not sys.stdin.isatty():
        raise WrongUsageError("Nobody is there to be asked. Read what lies after the step, and say --yes.")
    err().print(_ASKING, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
