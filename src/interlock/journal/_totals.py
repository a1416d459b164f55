"""The sums of a journal."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from interlock.contracts.payloads import Usage
from interlock.journal._steps import RETURNED
from interlock.journal.model import Journal, Request, Step, Stuck, SubRunLink, Totals

_COUNTS = ("steps", "model_calls", "tool_calls", "failed", "retries", "requests", "people")
_REPORTED = (("tool_result", "completed"), ("outcome", "happened"))


def totals(
    steps: Sequence[Step],
    requests: Sequence[Request],
    stuck: Sequence[Stuck],
    sub_runs: Sequence[SubRunLink],
    *,
    since: datetime,
    until: datetime,
) -> Totals:
    """Add up. since, until: the time of the run."""
    returned = sum(step.kind == "tool" and step.outcome == RETURNED for step in steps)
    reported = sum((one.kind, one.outcome) in _REPORTED for one in requests)
    usage = Usage(tool_calls=returned + reported)
    for used in (*(step.usage for step in steps), *(one.usage for one in sub_runs)):
        usage += used or Usage()
    return Totals(
        steps=len(steps),
        model_calls=sum(step.kind == "model" for step in steps),
        tool_calls=sum(step.kind == "tool" for step in steps),
        failed=sum(step.status in ("failed", "timed_out") for step in steps),
        retries=sum(max(step.attempts - 1, 0) for step in steps),
        requests=len(requests),
        people=len(_by_people(requests)),
        usage=usage,
        waited_seconds=covered(_waits(requests, stuck, until)),
        elapsed_seconds=(until - since).total_seconds(),
    )


def with_runs_below(journal: Journal) -> Totals:
    """The sums of a journal together with those of the runs below that were read along."""
    every = list(_read(journal))
    counts = {name: sum(getattr(one.totals, name) for one in every) for name in _COUNTS}
    usage = journal.totals.usage
    for link in journal.sub_runs:
        if link.journal is not None and link.usage is None:  # It has not ended, and so not reported.
            usage += with_runs_below(link.journal).usage
    waits = [span for one in every for span in _waits(one.requests, one.stuck, one.ended_at or one.read_at)]
    return journal.totals.model_copy(update={**counts, "usage": usage, "waited_seconds": covered(waits)})


def unread_model_calls(journal: Journal) -> int:
    """The model calls that runs below have reported, of those that were not read along."""
    links = [link for one in _read(journal) for link in one.sub_runs if link.journal is None]
    return sum(link.usage.requests for link in links if link.usage)


def _read(journal: Journal) -> Iterator[Journal]:
    yield journal
    for link in journal.sub_runs:
        if link.journal is not None:
            yield from _read(link.journal)


def _by_people(requests: Sequence[Request]) -> list[Request]:
    return [one for one in requests if one.answer is None or one.answer.via not in ("judge", "fork")]


def _waits(requests: Sequence[Request], stuck: Sequence[Stuck], until: datetime) -> list[tuple[datetime, datetime]]:
    waits = [(one.asked_at, one.settled_at or until) for one in _by_people(requests)]
    return waits + [(one.since, one.until or until) for one in stuck]


def covered(spans: Sequence[tuple[datetime, datetime]]) -> float:
    """The seconds that lie in at least one of the spans."""
    total, reached = 0.0, None
    for since, until in sorted(spans):
        begin = since if reached is None else max(since, reached)
        if until > begin:
            total += (until - begin).total_seconds()
        reached = until if reached is None else max(until, reached)
    return total
