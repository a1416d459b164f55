"""What the demo shows and returns at its end."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from interlock.contracts.payloads import RunOutput
from interlock.demo.orders import Execution, Refund
from interlock.demo.screen import Screen, plain
from interlock.journal import Step


@dataclass(frozen=True)
class Outcome:
    """What came of the demo. refunds, executions: read back from the database. ui_url: gone with the server."""

    output: RunOutput
    steps: Sequence[Step]
    refunds: Sequence[Refund]
    executions: Sequence[Execution]
    workflow_id: str
    ui_url: str

    def document(self) -> dict[str, Any]:
        """The outcome as one JSON document."""
        return {
            "answer": self.output.output,
            "refunds": [asdict(refund) for refund in self.refunds],
            "executions": {execution.name: execution.times for execution in self.executions},
            "workflow_id": self.workflow_id,
            "ui_url": self.ui_url,
        }


def show_outcome(screen: Screen, outcome: Outcome, *, scripted: bool) -> None:
    """Show the answer, the refunds, the steps and the usage. scripted: whether no model was there to count tokens."""
    screen.say("")
    for line in str(outcome.output.output).splitlines():
        screen.say(line, style="bold")
    paid = ", ".join(f"{refund.order_id} {refund.amount:.2f}" for refund in outcome.refunds)
    screen.say(f"Refunds in the database: {paid or 'none'}.")
    screen.show(_steps_table(outcome.steps))
    used = outcome.output.usage
    screen.say(
        f"Usage: {used.requests} model calls, {used.tool_calls} tool calls, {used.input_tokens} tokens in, "
        f"{used.output_tokens} tokens out{' (estimated: no model was called)' if scripted else ''}."
    )


def show_executions(screen: Screen, executions: Sequence[Execution], workers: Sequence[int]) -> None:
    """Show how often each call ran, and in which of the worker processes."""
    table = _table("what ran", "times", "in worker process")
    for execution in executions:
        ran_in = ", ".join(str(worker) for worker in execution.workers)
        table.add_row(Text(plain(execution.name)), str(execution.times), ran_in)
    screen.show(table)
    twice = [execution.name for execution in executions if execution.times > 1]
    died = ", ".join(str(worker) for worker in workers[:-1])
    if not died:
        screen.say("The run never waited for a person, so there was no quiet moment to kill the worker in.")
    elif twice:
        screen.say(f"Worker process {died} was killed. More than once ran: {', '.join(twice)}.", style="red")
    else:
        screen.say(f"Worker process {died} was killed, and each call ran once.", style="green")


def _steps_table(steps: Sequence[Step]) -> Table:
    table = _table("kind", "what", "attempts", "took")
    for step in steps:
        took = f"{(step.ended_at - step.scheduled_at).total_seconds():.2f} s" if step.ended_at else ""
        what = step.summary if step.status == "completed" else f"{step.summary} ({step.status})"
        table.add_row(step.kind, Text(plain(what)), str(step.attempts), took)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        right = column in ("attempts", "times", "took")
        table.add_column(column, justify="right" if right else "left", overflow="fold", no_wrap=right)
    return table
