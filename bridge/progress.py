"""What a run did, as lines of the task's log: each once, also when a triggerer or a task tells it again.

Airflow's log reader leaves out a line that is equal to the one before it, time included. So each line carries the time
of the event that it is about, no two have the same, and nothing of the process that writes it.
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import structlog

from interlock.journal import RunEvent
from interlock.run import Run

_log = structlog.get_logger(logger_name="interlock.run")
_MILLISECOND = timedelta(milliseconds=1)
PACE_SECONDS = 0.3  # A busy run has a hundred events in a second, and each would end a long poll.


class Progress:
    """Tells what a run does. skip: how many events earlier tries of the task have told."""

    def __init__(self, run: Run, *, skip: int = 0) -> None:
        self._run = run
        self._skip = skip
        self._last: datetime | None = None
        self.offset = 0  # Of the next event.

    async def catch_up(self) -> None:
        """Tell what has happened so far."""
        async for event in self._run.events(from_offset=self.offset, follow=False):
            self._tell(event)

    async def follow(self) -> AsyncIterator[RunEvent]:
        """Tell what happens, to the run's end."""
        async for event in self._run.events(from_offset=self.offset, pace_seconds=PACE_SECONDS):
            self._tell(event)
            yield event

    def _tell(self, event: RunEvent) -> None:
        self.offset = event.offset + 1
        # Told or not, so that the times are the same for whoever reads from the beginning.
        at = event.at if self._last is None else max(event.at, self._last + _MILLISECOND)
        self._last = at.replace(microsecond=at.microsecond // 1_000 * 1_000)
        words = line_of(event)
        if words and event.offset >= self._skip:
            _log.info(words, timestamp=log_time(self._last))


def log_time(at: datetime) -> str:
    """A time in UTC as the log of a task has it."""
    return at.isoformat().replace("+00:00", "Z")


def line_of(event: RunEvent) -> str:
    """An event in words, without arguments, prompts and answers; empty for those that a log need not have."""
    what = f"{event.step_kind} {event.name}".strip()
    if event.kind == "step_started":
        return f"Step {event.step}: {what} started." if event.step_kind in ("model", "tool", "judge") else ""
    if event.kind == "attempt_failed":
        return f"Step {event.step}, attempt {event.attempt} failed: {event.error.rstrip('.')}. It is retried."
    if event.kind == "step_finished":
        if event.status == "completed":
            return ""
        return f"Step {event.step}: {what or 'the step'} {event.status.replace('_', ' ')}. {event.error}".strip()
    if event.kind == "approval_asked":
        return f"Waiting for a person since {_time(event)}: request {event.request_id}, {event.name}."
    if event.kind == "approval_escalated":
        return f"Nobody has answered request {event.request_id}, {event.name}: escalated to {event.text}."
    if event.kind == "approval_decided":
        by = f" by {event.by}" if event.by else ""
        return f"Request {event.request_id}, {event.name}: {event.status.replace('_', ' ')}{by}."
    if event.kind == "approval_withdrawn":
        return f"Request {event.request_id}, {event.name}: withdrawn."
    if event.kind == "stuck":
        return f"Stuck since {_time(event)}: {event.text}. The run waits to be retried."
    if event.kind == "retried":
        return f"Retried: {event.text}."
    if event.kind == "sub_run_started":
        return f"Run {event.workflow_id} of agent {event.name} started."
    if event.kind == "sub_run_ended":
        return f"Run {event.workflow_id} of agent {event.name} ended."
    if event.kind == "run_ended":
        return f"The run {event.status.replace('_', ' ')}."
    return ""


def _time(event: RunEvent) -> str:
    return f"{event.at:%Y-%m-%d %H:%M:%S} UTC"
