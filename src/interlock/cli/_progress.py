"""A run's progress on stderr: each step as it ends, and below them what the run is at and waits for now.

While a model writes, its last lines are shown below its step; while a tool works, how far it says it is.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from interlock.cli._console import err, line
from interlock.cli._format import duration
from interlock.cli._requests import commands_for, stuck_text, waiting_text
from interlock.cli._speech import MARKS, Speech

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from interlock.cli._follow import Trouble
    from interlock.contracts.payloads import ApprovalRequest, RunState, Settled
    from interlock.journal import RunEvent

_SHOWN = 3


class Progress:
    """What is shown of one run. On a terminal the part that changes stays at the bottom; elsewhere lines are added."""

    def __init__(self, workflow_id: str) -> None:
        self._console = err()
        self._workflow_id = workflow_id
        self._state: RunState | None = None
        self._nested: dict[str, RunState] = {}
        self._troubles: list[Trouble] = []
        self._running: dict[tuple[str, int | None], Speech] = {}
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

    def event(self, workflow_id: str, event: RunEvent) -> None:
        """Something has happened in the run, or in one that its tools have started."""
        from rich.text import Text

        key = (workflow_id, event.step)
        if event.kind == "step_started":
            self._running[key] = Speech(event, nested=workflow_id != self._workflow_id)
        elif event.kind == "approval_decided" or event.kind == "approval_withdrawn":
            self._add(settled_text(_settled(event)))
        elif event.kind == "approval_escalated":
            escalated = f"? {event.name} (request {event.request_id}) is escalated to {event.text}"
            self._add(Text(line(escalated), "bold yellow"))
        elif key in self._running:
            speech = self._running[key]
            speech.take(event)
            if event.kind == "step_finished":
                del self._running[key]
                for text in speech.ended(event):
                    self._add(text)
            elif event.kind == "attempt_failed" and not self._console.is_terminal:
                self._add(Text(line(f"! {speech.label}: attempt {event.attempt} failed: {event.error}"), "yellow"))

    def state(self, state: RunState) -> None:
        """The run says something new of itself."""
        self._state = state
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
        for speech in running[:_SHOWN]:
            passed = duration((datetime.now(UTC) - speech.began_at).total_seconds())
            yield Text.assemble(_spinner(), speech.label, (f"  {passed}", "dim"))
            yield from speech.now(self._console.width)
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


def settled_text(settled: Settled) -> Text:
    """Who decided what, in one line."""
    from rich.text import Text

    edited = ", arguments edited" if settled.edited else ""
    who = f" by {settled.by}" if settled.by else ""
    why = f": {settled.reason}" if settled.reason else ""
    said = line(f"{settled.outcome.replace('_', ' ')}{who}{edited}{why}")
    what = f"{settled.tool} (request {settled.request_id})" if settled.request_id else settled.tool
    return Text.assemble(MARKS.get(settled.outcome, "  "), f"{line(what)} ", (said, "bold"))


def _settled(event: RunEvent) -> Settled:
    from interlock.contracts.payloads import Settled

    return Settled.model_validate(
        {
            "request_id": event.request_id,
            "tool": event.name,
            "outcome": event.status or "withdrawn",
            "by": event.by,
            "at": event.at,
            "reason": event.text,
            "edited": event.arguments is not None,
        }
    )


def _spinner() -> tuple[str, str]:
    frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
    return f"{frames[int(time.monotonic() * 8) % len(frames)]} ", "cyan"
