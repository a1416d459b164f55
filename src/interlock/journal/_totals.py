"""The sums of a journal."""

from collections.abc import Sequence
from datetime import datetime

from interlock.contracts.payloads import Usage
from interlock.journal._steps import RETURNED
from interlock.journal.model import Request, Step, Stuck, SubRunLink, Totals

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
    by_people = [one for one in requests if one.answer is None or one.answer.via not in ("judge", "fork")]
    waits = [(one.asked_at, one.settled_at or until) for one in by_people]
    waits += [(one.since, one.until or until) for one in stuck]
    return Totals(
        steps=len(steps),
        model_calls=sum(step.kind == "model" for step in steps),
        tool_calls=sum(step.kind == "tool" for step in steps),
        failed=sum(step.status in ("failed", "timed_out") for step in steps),
        retries=sum(max(step.attempts - 1, 0) for step in steps),
        requests=len(requests),
        people=len(by_people),
        usage=usage,
        waited_seconds=covered(waits),
        elapsed_seconds=(until - since).total_seconds(),
    )


def covered(spans: Sequence[tuple[datetime, datetime]]) -> float:
    """The seconds that lie in at least one of the spans."""
    total, reached = 0.0, None
    for since, until in sorted(spans):
        begin = since if reached is None else max(since, reached)
        if until > begin:
            total += (until - begin).total_seconds()
        reached = until if reached is None else max(until, reached)
    return total
