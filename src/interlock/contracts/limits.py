"""Time limits of requests: as people write them at a tool, what becomes of a request by one, and that in words."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from interlock.contracts.durations import span
from interlock.contracts.failures import problems
from interlock.contracts.payloads import ApprovalRequest, Limited, RequestKind, Stage, TimeLimit

LIMITED_KINDS: Final[tuple[RequestKind, ...]] = ("approval", "tool_result")
"""Kinds of requests that can have a time limit of their own."""

Limit = TimeLimit | Stage | Mapping[str, Any] | Sequence[Stage | Mapping[str, Any]]
"""A time limit as people write it: one stage, or a list of them. An empty list waits on, whatever else is said."""

_FORM = '{"after_seconds": 86400, "then": "deny"}, or a list of such'
_TIMER = re.compile(r"request (\d+): ")


def time_limit(given: object) -> TimeLimit:
    """The time limit that somebody has written. Raises ValueError, saying in one sentence what is wrong with it."""
    if isinstance(given, TimeLimit):
        return given
    stages = [given] if isinstance(given, Stage | Mapping) else given
    if not isinstance(stages, Sequence) or isinstance(stages, str | bytes):
        raise ValueError(f"it is {_FORM}, not of type {type(given).__name__}")
    for stage in stages:
        unknown = sorted(map(str, set(stage) - set(Stage.model_fields))) if isinstance(stage, Mapping) else []
        if unknown:
            raise ValueError(f"a stage has no {', '.join(unknown)}; it has {', '.join(Stage.model_fields)}")
    try:
        return TimeLimit.model_validate({"stages": list(stages)})
    except ValidationError as error:
        raise ValueError(problems(error)) from None


def due_at(stage: Stage, opened_at: datetime) -> datetime:
    """When a stage is reached."""
    return opened_at + timedelta(seconds=stage.after_seconds)


def standing(limit: TimeLimit, opened_at: datetime, passed: int) -> dict[str, Any]:
    """What a limit still makes of a request, as fields of `Limited`. passed: how many stages have been reached."""
    last, coming = limit.stages[-1:], [one for one in limit.stages[passed:] if one.then == "escalate"][:1]
    return {
        "expires_at": next((due_at(one, opened_at) for one in last if one.then != "escalate"), None),
        "then": next((one.then for one in last if one.then != "escalate"), None),
        "escalates_at": next((due_at(one, opened_at) for one in coming), None),
        "escalates_to": next((one.to for one in coming), ()),
    }


def escalated(request: Limited, stage: Stage, at: datetime) -> dict[str, Any]:
    """That a request was escalated, as fields of `Limited`."""
    return {"escalated_at": at, "escalated_to": tuple(dict.fromkeys([*request.escalated_to, *stage.to]))}


def timer_summary(request_id: str, stage: Stage) -> str:
    """What the timer that waits for a stage says of itself; readers of the history know it by this. It names nobody:
    the server takes 400 bytes."""
    return f"request {request_id}: {stage.then}"


def request_of_timer(summary: str) -> str:
    """The request that a timer belongs to; empty for any other timer."""
    found = _TIMER.match(summary)
    return found[1] if found else ""


def unanswered(request: ApprovalRequest) -> str:
    """What is said, to the model and to people, when the limit of a request has settled it."""
    within = span((request.expires_at - request.requested_at).total_seconds()) if request.expires_at else "time"
    if request.kind == "tool_result":
        said = f"Nobody reported the result of this call within {within}"
        what = "It is not known whether it happened; nobody has refused it."
    else:
        said = f"Nobody answered the request to approve this call within {within}"
        what = "The call was not made; nobody has refused it."
    return f"{said}. {what}" if request.then == "deny" else f"{said}, so the run ends."


def limit_words(request: Limited, *, is_open: bool = True) -> str:
    """How a request stands with its limit: `escalated to ops-lead at 2026-11-02 10:30:00 UTC, is denied at ...`.

    Empty without a limit. is_open: whether more is to come.
    """
    parts: list[str] = []
    if request.escalated_at:
        parts.append(f"escalated to {', '.join(request.escalated_to)} at {_time(request.escalated_at)}")
    if is_open and request.escalates_at:
        parts.append(f"goes to {', '.join(request.escalates_to)} at {_time(request.escalates_at)}")
    if is_open and request.expires_at:
        parts.append(f"{'is denied' if request.then == 'deny' else 'ends the run'} at {_time(request.expires_at)}")
    return ", ".join(parts)


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
