"""A run's progress on stderr: each step as it ends, and below them what the run is at and waits for now."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from interlock.cli._console import err, line
from interlock.cli._format import duration
from interlock.cli._requests import commands_for, stuck_text, waiting_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from interlock.cli._follow import Trouble
    from interlock.contracts.payloads import ApprovalRequest, RunState, Settled
    from interlock.journal import Step

_SHOWN = 3
_MARKS = {
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


class Progress:
    """What is shown of one run. On a terminal the part that changes stays at the bottom; elsewhere lines are added."""

    def __init__(self, workflow_id: str) -> None:
        self._console = err()
        self._workflow_id = workflow_id
        self._state: RunState | None = None
        self._nested: dict[str, RunState] = {}
        self._troubles: list[Trouble] = []
        self._running: dict[int, Step] = {}
        self._settled = 0
        self._told: set[tuple[str, str]] = set()

    def live(self) -> AbstractContextManager[object]:
        """Shows the part that changes while it is entered."""
        if not self._console.is_terminal:
            return nullcontext()
        from rich.console import Group
        from rich.live import Live

        return Live(
            get_renderable=lambda: Group(*self._now()), console=self._console, refresh_per_second=8, transient=True
        )

    @property
    def last(self) -> RunState | None:
        """What the run last said of itself."""
        return self._state

    def step(self, step: Step) -> None:
        """A step began or changed."""
        if step.status == "scheduled":
            self._running[step.position] = step
        elif self._running.pop(step.position, None):
            self._add(_ended(step))

    def state(self, state: RunState) -> None:
        """The run says something new of itself."""
        self._state = state
        for settled in state.settled[self._settled :]:
            self._add(settled_text(settled))
        self._settled = len(state.settled)
        self._tell({self._workflow_id: state})

    def nested(self, states: dict[str, RunState]) -> None:
        """What the agents say that the run's tools have started, by workflow id."""
        self._nested = states
        self._tell(states)

    def troubles(self, troubles: list[Trouble]) -> None:
        """These steps have failed and are tried again."""
        if not self._console.is_terminal:
            before = [trouble_text(trouble) for trouble in self._troubles]
            for text in map(trouble_text, troubles):
                if text not in before:
                    self._add(text)
        self._troubles = troubles

    def _tell(self, states: dict[str, RunState]) -> None:
        if self._console.is_terminal:
            return
        for key, texts in _waits(states):
            if key not in self._told:
                self._told.add(key)
                for text in texts:
                    self._add(text)

    def _add(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def _now(self) -> Iterator[Text]:
        from rich.text import Text

        own = {self._workflow_id: self._state} if self._state else {}
        waits = list(_waits({**own, **self._nested}))
        for _, texts in waits[:_SHOWN]:
            yield from texts
        if len(waits) > _SHOWN:
            yield Text(f"  and {len(waits) - _SHOWN} more: interlock approvals list", style="dim")
        running = list(self._running.values())
        for step in running[:_SHOWN]:
            passed = duration((datetime.now(UTC) - step.scheduled_at).total_seconds())
            yield Text.assemble(_spinner(), line(step.summary), (f"  {passed}", "dim"))
        if len(running) > _SHOWN:
            yield Text(f"  and {len(running) - _SHOWN} more at once", style="dim")
        yield from map(trouble_text, self._troubles[:_SHOWN])
        if not waits and not running:
            yield Text.assemble(_spinner(), ("working", "dim"))


def _waits(states: dict[str, RunState]) -> Iterator[tuple[tuple[str, str], list[Text]]]:
    """All that stands until somebody does something, each under a name of its own: stuck steps and open requests."""
    for workflow_id, state in states.items():
        for step in state.stuck:
            yield (workflow_id, f"stuck {step.step_id}"), stuck_text(workflow_id, step, alone=len(state.stuck) == 1)
        for request in state.requests:
            yield (workflow_id, request.request_id), list(_request(request))


def _request(request: ApprovalRequest) -> Iterator[Text]:
    from rich.text import Text

    yield Text.assemble(("? ", "bold yellow"), waiting_text(request))
    for command in commands_for(request):
        yield Text(f"    {command}", style="cyan")


def trouble_text(trouble: Trouble) -> Text:
    """A step that is tried again, in one line."""
    from rich.text import Text

    if trouble.waits:
        return Text(line(f"… waits for its turn: {trouble.error}"), style="yellow")
    said = f"! {trouble.step} failed, attempt {trouble.attempts}, and is tried again: {trouble.error}"
    return Text(line(said), style="yellow")


def _ended(step: Step) -> Text:
    from rich.text import Text

    took = duration((step.ended_at - step.scheduled_at).total_seconds()) if step.ended_at else ""
    tries = f", {step.attempts} attempts" if step.attempts > 1 else ""
    text = Text.assemble(_MARKS.get(step.status, "  "), line(step.summary), (f"  {took}{tries}", "dim"))
    return text.append(f"  {line(step.error)}", style="red") if step.error else text


def settled_text(settled: Settled) -> Text:
    """Who decided what, in one line."""
    from rich.text import Text

    edited = ", arguments edited" if settled.edited else ""
    who = f" by {settled.by}" if settled.by else ""
    why = f": {settled.reason}" if settled.reason else ""
    said = line(f"{settled.outcome.replace('_', ' ')}{who}{edited}{why}")
    what = f"{settled.tool} (request {settled.request_id})" if settled.request_id else settled.tool
    return Text.assemble(_MARKS.get(settled.outcome, "  "), f"{line(what)} ", (said, "bold"))


def _spinner() -> tuple[str, str]:
    frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    return f"{frames[int(time.monotonic() * 8) % len(frames)]} ", "cyan"
