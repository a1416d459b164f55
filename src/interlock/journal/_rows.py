"""What the page shows, line by line and in its order: steps, waits for people, retries, and the runs below."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from interlock.contracts.payloads import Usage
from interlock.journal import _words as words
from interlock.journal.model import Journal, Request, Retry, Step, Stuck, SubRunLink


@dataclass(frozen=True)
class Bar:
    """A part of a line's time. works: whether something is at work in it, so that it must not be drawn shorter."""

    since: datetime
    until: datetime
    tone: str
    works: bool = False


@dataclass(frozen=True)
class Row:
    """A line. number: the position of a step. note: a second, smaller text. when: as words. took: beside the bars.

    cells: of the table of steps. Without bars a line is in that table only.
    """

    key: str
    title: str
    tone: str
    bars: tuple[Bar, ...]
    number: str = ""
    note: str = ""
    when: str = ""
    took: str = ""
    depth: int = 0
    facts: tuple[tuple[str, str], ...] = ()
    cells: tuple[str, ...] = ()


def rows_of(journal: Journal) -> Iterator[Row]:
    """The lines of a journal."""
    yield from _Lines(journal, journal.started_at, "", 0).all()


@dataclass(frozen=True)
class _Lines:
    """The lines of one journal. began: when the outermost run did. above: what its positions are below."""

    journal: Journal
    began: datetime
    above: str
    depth: int
    until: datetime = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "until", self.journal.ended_at or self.journal.read_at)

    def all(self) -> Iterator[Row]:
        """By the times at which they begin. What the gate looked up is a part of the wait that it led to."""
        asked = {request.asked_by: request for request in self.journal.requests}
        lines: list[tuple[datetime, Step | Request | Stuck | Retry | SubRunLink]] = []
        for step in self.journal.steps:
            lines.append((step.scheduled_at, step))
            lines += [(step.scheduled_at, request) for request in (asked.get(step.position),) if request]
            lines += [(step.scheduled_at, link) for link in self.journal.sub_runs if link.position == step.position]
        lines += [(link.started_at, link) for link in self.journal.sub_runs if link.position is None]
        lines += [(stuck.since, stuck) for stuck in self.journal.stuck]
        lines += [(retry.at, retry) for retry in self.journal.retries]
        for _, line in sorted(lines, key=lambda pair: pair[0]):
            yield from self._line(line)

    def _line(self, line: Step | Request | Stuck | Retry | SubRunLink) -> Iterator[Row]:
        if isinstance(line, Step):
            yield self._step(line)
        elif isinstance(line, Request):
            yield self._request(line)
        elif isinstance(line, Stuck):
            yield self._stuck(line)
        elif isinstance(line, Retry):
            yield self._retry(line)
        else:
            yield self._sub_run(line)
            if line.journal is not None:
                yield from _Lines(line.journal, self.began, f"{self.above}{line.position or ''}.", self.depth + 1).all()

    def _step(self, step: Step) -> Row:
        number = f"{self.above}{step.position}"
        failed = step.status in ("failed", "timed_out")
        tone = "bad" if failed else "gone" if step.status in ("cancelled", "abandoned") else step.kind
        return Row(
            key=f"step-{number}",
            number=number,
            title=words.title(step),
            note=words.ending(step) if step.status != "completed" else step.outcome,
            tone=tone,
            bars=self._bars(step, tone) if step.kind != "description" else (),
            when=self._offset(step.scheduled_at),
            took=words.span(step.seconds) + (f" ×{step.attempts}" if step.attempts > 1 else ""),  # noqa: RUF001
            depth=self.depth,
            facts=tuple(self._facts(step)),
            cells=self._cells(step, number),
        )

    def _bars(self, step: Step, tone: str) -> tuple[Bar, ...]:
        until = step.ended_at or self.until
        works = not step.sub_runs and step.status != "abandoned"
        if step.started_at is None:
            return (Bar(step.scheduled_at, until, "queue" if step.ended_at is None else tone),)
        waited = Bar(step.scheduled_at, step.started_at, "queue")
        more = " open" if step.ended_at is None else " reused" if step.reused else ""
        at_work = Bar(step.started_at, until, f"{tone}{more}", works)
        return (waited, at_work) if step.started_at > step.scheduled_at else (at_work,)

    def _facts(self, step: Step) -> Iterator[tuple[str, str]]:
        yield "kind", step.kind
        yield "agent", " / ".join(step.agent_path)
        yield "status", words.ending(step)
        yield "attempts", str(step.attempts)
        yield "scheduled", self._offset(step.scheduled_at)
        yield "last attempt", self._offset(step.started_at)
        yield "ended", self._offset(step.ended_at)
        yield "attempt before", step.last_error or ""
        yield "tokens", _tokens(step.usage)
        yield "stored bytes", f"{words.amount(step.bytes_in)} in, {words.amount(step.bytes_out)} out"
        yield "arguments", words.indented(step.arguments) if step.arguments else ""
        yield "request", step.request_id
        yield "call id", step.call_id
        yield "idempotency key", step.key
        yield "runs below", ", ".join(step.sub_runs)
        yield "activity", f"{step.activity_type}, id {step.activity_id}, event {step.event_id}"
        yield "worker", step.worker

    def _cells(self, step: Step, number: str) -> tuple[str, ...]:
        used = step.usage if step.usage and step.usage.requests else None
        return (
            number,
            step.kind,
            " / ".join(step.agent_path),
            words.title(step),
            str(step.attempts or ""),
            f"+{words.span((step.scheduled_at - self.began).total_seconds())}",
            words.span(step.seconds),
            f"{used.input_tokens:,}" if used else "",
            f"{used.output_tokens:,}" if used else "",
            words.amount(step.bytes_in),
            words.amount(step.bytes_out) if step.ended_at else "",
            words.ending(step),
        )

    def _request(self, request: Request) -> Row:
        until = request.settled_at or self.until
        by_judge = request.answer is not None and request.answer.via == "judge"
        tone = words.tone(request)
        return Row(
            key=f"request-{self.above}{request.request_id}",
            number=f"{self.above}{request.asked_by}",
            title=words.subject(request),
            note=words.remarks(request),
            tone="judge" if by_judge else "wait",
            bars=(Bar(request.asked_at, until, f"{'asked' if by_judge else 'wait'} {tone}-end"),),
            when=self._offset(request.asked_at),
            took=words.settled_shortly(request),
            depth=self.depth,
            facts=(
                ("request", f"{request.request_id} {request.kind}"),
                ("agent", " / ".join(request.agent_path)),
                ("asked", f"{self._offset(request.asked_at)}, by step {self.above}{request.asked_by}"),
                ("settled", self._offset(request.settled_at)),
                ("outcome", words.settled(request)),
                ("then", words.came_of(request, self.journal, self.above)),
            ),
        )

    def _stuck(self, stuck: Stuck) -> Row:
        until = stuck.until or self.until
        return Row(
            key=f"stuck-{self.above}{stuck.since.timestamp():.6f}",
            title=f"stuck: {stuck.label}",
            note=stuck.outcome.replace("_", " "),
            tone="bad",
            bars=(Bar(stuck.since, until, "wait bad-end" if stuck.until else "wait wait-end"),),
            when=self._offset(stuck.since),
            took=words.span((until - stuck.since).total_seconds()),
            depth=self.depth,
            facts=(("since", self._offset(stuck.since)), ("until", self._offset(stuck.until))),
        )

    def _retry(self, retry: Retry) -> Row:
        limits = ", ".join(f"{name} {words.json_text(value)}" for name, value in (retry.usage_limits or {}).items())
        return Row(
            key=f"retry-{self.above}{retry.at.timestamp():.6f}",
            title=f"retried by {retry.by or 'somebody'}",
            note=retry.refused or retry.reason,
            tone="plain" if retry.refused else "good",
            bars=(Bar(retry.at, retry.at, "mark"),),
            when=self._offset(retry.at),
            depth=self.depth,
            facts=(("step", retry.step), ("new limits", limits), ("reason", retry.reason), ("refused", retry.refused)),
        )

    def _sub_run(self, link: SubRunLink) -> Row:
        until = link.ended_at or self.until
        return Row(
            key=f"run-{link.workflow_id}-{link.run_id}",
            title=f"↳ {link.agent or link.workflow_type}: {link.workflow_id}",
            note=link.error or link.unread or link.status.replace("_", " "),
            tone="run",
            bars=(Bar(link.started_at, until, "run" if link.ended_at else "run open"),),
            when=self._offset(link.started_at),
            took=words.span((until - link.started_at).total_seconds()),
            depth=self.depth + 1,
            facts=(
                ("run", link.workflow_id),
                ("execution", link.run_id),
                ("started", self._offset(link.started_at)),
                ("ended", self._offset(link.ended_at)),
                ("tokens", _tokens(link.usage)),
            ),
        )

    def _offset(self, at: datetime | None) -> str:
        return f"{at:%Y-%m-%d %H:%M:%S.%f} UTC (+{words.span((at - self.began).total_seconds())})" if at else ""


def _tokens(used: Usage | None) -> str:
    if used is None or not used.requests:
        return ""
    cached = f", {used.cache_read_tokens:,} of them cached" if used.cache_read_tokens else ""
    return f"{used.input_tokens:,} in{cached}, {used.output_tokens:,} out"
