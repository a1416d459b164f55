"""Runs as people and programs see them: documents, a table, a page, and an end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from interlock.cli._console import emit, emit_json, line, out, plain, say
from interlock.cli._format import ago, budget_lines, duration, output_text, status_text, table, usage_line
from interlock.cli._progress import settled_text, trouble_text
from interlock.cli._requests import commands_for, request_document, stuck_text, waiting_text
from interlock.contracts.errors import RefusedError, RunFailedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from interlock.cli._connect import Found
    from interlock.contracts.payloads import ApprovalRequest, Payload, RunState
    from interlock.journal import Step
    from interlock.run import Run, RunReport

_KEYS = ("workflow_id", "agent", "status", "output", "usage", "error")


def run_document(report: RunReport) -> dict[str, Any]:
    """A run as JSON: `workflow_id`, `agent`, `status`, `output`, `usage`, `error`, its times and its executions."""
    document = report.model_dump(mode="json")
    return {name: document[name] for name in _KEYS} | document


def started_document(run: Run, agent: str) -> dict[str, Any]:
    """A run that has just been started, as JSON. No worker is asked."""
    from interlock.run import RunReport

    return run_document(RunReport(workflow_id=run.id, agent=agent, status="running"))


def runs_table(reports: Sequence[RunReport]) -> Table:
    """Runs for people."""
    made = table("Run", "Agent", "Status", "Started", "Took")
    for report in reports:
        made.add_row(
            line(report.workflow_id),
            line(report.agent),
            status_text(report.status),
            ago(report.started_at),
            _took(report),
        )
    return made


async def print_end(run: Run, *, as_json: bool) -> None:
    """Wait for a run's end and print what it gave back. Raises RunFailedError when it gave nothing back."""
    try:
        output = await run.result()
    except RunFailedError:
        if as_json:
            emit_json(run_document(await run.report()))
        raise
    if as_json:
        emit_json(run_document(await run.report()))
        return
    say(f"completed: {usage_line(output.usage)}", style="green")
    emit(output_text(output.output))


async def run_page(found: Found, *, as_json: bool) -> None:
    """Print all there is to know of a run."""
    from interlock.cli._follow import nested_states, troubles

    report, steps = await found.run.report(), await found.run.steps()
    retried = await troubles(found.client, found.run.id) if found.open else []
    state = await _state(found)
    states: dict[str, RunState] = {}
    if state and found.open:
        states = {found.run.id: state, **await nested_states(found.client, state)}
    requests = [request for one in states.values() for request in one.requests]
    stuck = [(workflow_id, step) for workflow_id, one in states.items() for step in one.stuck]
    decisions = state.settled if state else []
    if as_json:
        more: dict[str, Any] = {
            "requests": [request_document(request) for request in requests],
            "retried": [*map(asdict, retried)],
        }
        more |= {"decisions": _documents(decisions), "steps": _documents(steps)}
        more["session"] = state.session.model_dump(mode="json") if state and state.session else None
        more["stuck"] = [{"workflow_id": of, **step.model_dump(mode="json")} for of, step in stuck]
        budget = state.budget.model_dump(mode="json") if state and state.budget else None
        emit_json(run_document(report) | more | {"budget": budget})
        return
    _print_head(report)
    if steps:
        out().print(steps_table(steps))
    for text in (*map(trouble_text, retried), *map(settled_text, decisions)):
        out().print(text, soft_wrap=True)
    for workflow_id, step in stuck:
        for text in stuck_text(workflow_id, step, alone=len(states[workflow_id].stuck) == 1):
            out().print(text, soft_wrap=True)
    _print_requests(requests)
    _print_end(report)
    for text in budget_lines(state.budget) if state and state.budget else ():
        out().print(text, soft_wrap=True)


async def _state(found: Found) -> RunState | None:
    """What the run says of itself, when a worker is there to ask; a run that has ended still answers."""
    if await found.has_worker():
        with suppress(UnavailableError, RefusedError):
            return await found.run.state()
    return None


def _documents(parts: Sequence[Payload]) -> list[dict[str, Any]]:
    return [part.model_dump(mode="json") for part in parts]


def _print_head(report: RunReport) -> None:
    from rich.text import Text

    console = out()
    console.print(Text.assemble((line(report.workflow_id), "bold"), "  ", status_text(report.status)), soft_wrap=True)
    began = f"{report.started_at.astimezone():%Y-%m-%d %H:%M:%S}, {ago(report.started_at)}" if report.started_at else ""
    took = f", took {_took(report)}" if report.ended_at else ""
    on = f", goes on from execution {report.continued_from}" if report.continued_from else ""
    console.print(Text(f"{line(report.agent)}, started {began}{took}{on}\n", style="dim"), soft_wrap=True)


def _print_requests(requests: Sequence[ApprovalRequest]) -> None:
    from rich.text import Text

    console = out()
    for request in requests:
        console.print(Text.assemble("\n", waiting_text(request)))
        for command in commands_for(request):
            console.print(Text(f"    {command}", style="cyan"), soft_wrap=True)


def _print_end(report: RunReport) -> None:
    from rich.text import Text

    console = out()
    if report.usage:
        console.print(Text(f"\n{usage_line(report.usage)}", style="dim"), soft_wrap=True)
    if report.status == "completed":
        console.print(Text(f"\n{output_text(report.output)}"), soft_wrap=True)
    if report.error:
        console.print(Text(f"\n{plain(report.error)}", style="red"), soft_wrap=True)


def steps_table(steps: Sequence[Step]) -> Table:
    """The steps of a run, with whose each is when there are several agents in it."""
    several = len({step.agent for step in steps}) > 1
    made = table("", *(["Agent"] if several else []), "Step", "Status", "Tries", "Took")
    for step in steps:
        whose = [line(step.agent)] if several else []
        took = duration((step.ended_at - step.scheduled_at).total_seconds()) if step.ended_at else ""
        what = f"{line(step.summary)}\n{line(step.error)}" if step.error else line(step.summary)
        made.add_row(str(step.position), *whose, what, status_text(step.status), str(step.attempts or ""), took)
    return made


def _took(report: RunReport) -> str:
    if report.started_at is None or report.ended_at is None:
        return ""
    return duration((report.ended_at - report.started_at).total_seconds())
