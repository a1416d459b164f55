"""Where a build leaves a history, in words that say what to do about it."""

import re
from collections.abc import Sequence
from typing import Literal

from interlock.contracts import names
from interlock.contracts.payloads import Payload
from interlock.replay._commands import Command, Tasks

DivergenceKind = Literal["other", "missing", "added", "order", "code", "unknown"]


class Divergence(Payload):
    """The first place where a build does not do what a history has.

    kind: the build wants something `other`; what the history has is `missing`; something is `added`; the same things
    come in another `order`; the `code` itself fails; or Temporal says no more than `raw`.
    step: the position of the step in question, as in the run's journal. after: the step before it.
    recorded: what the history has there. wanted: what the build wants there. null is nothing.
    message: all that in a sentence. hint: what may be behind it, or empty. raw: Temporal's own words.
    """

    kind: DivergenceKind
    step: int
    after: Command | None = None
    recorded: Command | None = None
    wanted: Command | None = None
    message: str
    hint: str = ""
    raw: str


def divergence(history: Tasks, wanted: Tasks, *, failure: str, raw: str) -> Divergence:
    """What to say of a replay that failed. failure: of the workflow code. raw: what Temporal says."""
    before: list[Command] = []
    last: list[Command] = []
    for task, has in history.items():
        if task not in wanted:
            break
        before, last = before + last, has
        wants = wanted[task]
        if failure and not wants:
            return _described("code", before, None, None, failure, raw)
        if found := _difference(has, wants):
            kind, recorded, other = found
            before += has[: has.index(recorded)] if recorded else has
            return _described(kind, before, recorded, other, failure, raw)
    return _described("code" if failure else "unknown", before, None, None, failure, raw)


def _difference(
    has: Sequence[Command], wants: Sequence[Command]
) -> tuple[DivergenceKind, Command | None, Command | None] | None:
    for one, other in zip(has, wants, strict=False):
        if not one.same(other):
            return ("order" if _keys(has) == _keys(wants) else "other"), one, other
    if len(has) > len(wants):
        return "missing", _without_counterpart(has, wants), None
    if len(has) < len(wants):
        return "added", None, _without_counterpart(wants, has)
    return None


def _without_counterpart(more: Sequence[Command], fewer: Sequence[Command]) -> Command:
    # All tools of a toolset are one activity to Temporal; the summaries tell which call it is.
    summaries = [command.summary for command in fewer]
    return next((command for command in more if command.summary not in summaries), more[len(fewer)])


def _keys(commands: Sequence[Command]) -> list[tuple[str, str]]:
    return sorted((command.kind, command.name) for command in commands)


def _described(
    kind: DivergenceKind,
    before: Sequence[Command],
    recorded: Command | None,
    wanted: Command | None,
    failure: str,
    raw: str,
) -> Divergence:
    steps = [command for command in before if command.step is not None]
    step = recorded.step if recorded and recorded.step else len(steps) + 1
    has, wants = recorded.label if recorded else "", wanted.label if wanted else ""
    sentence = {
        "other": f"the history has {has}; this build wants {wants}",
        "missing": f"the history has {has}; this build does not want it there",
        "added": f"this build wants {wants}; the history does not have it there",
        "order": f"the history has {has} first; this build wants {wants} first",
        "code": f"this build's code fails: {failure}",
        "unknown": f"this build does not do what the history has: {_core_of(raw)}",
    }[kind]
    return Divergence(
        kind=kind,
        step=step,
        after=steps[-1] if steps else None,
        recorded=recorded,
        wanted=wanted,
        message=f"At step {step} {sentence}.",
        hint=_hint(recorded.name if recorded else "", wanted),
        raw=raw,
    )


def _hint(was: str, wanted: Command | None) -> str:
    now = wanted.name if wanted else ""
    if wanted and wanted.kind == "end" and names.UNKNOWN_AGENT in wanted.summary:
        return "The app has no agent of that name."
    if wanted and wanted.kind == "timer" and wanted.summary.startswith("stuck: "):
        return "In this build something fails there, and the run would be stuck."
    if was == names.DESCRIBE_TOOL and _is_tool(now):
        return "The call waited for an approval; in this build the tool needs none."
    if now == names.DESCRIBE_TOOL and _is_tool(was):
        return "In this build the tool needs an approval; when the run got there it needed none."
    if _is_tool(was) and _is_tool(now) and was != now:
        return f"The tool is in another toolset or of another agent: {was} is {now} now."
    if _is_tool(was) or was == names.DESCRIBE_TOOL:
        return (
            "In this build there is no such tool, or it does not take the arguments that the model gave, or it no "
            "longer runs at the same time as others."
        )
    return ""


def _is_tool(activity: str) -> bool:
    return activity.endswith("__call_tool")


def _core_of(raw: str) -> str:
    """The sentence in what Temporal's core says."""
    found = re.search(r'message: "(?:\[TMPRL\d+\] )?(?:Nondeterminism error: )?(.+?)", source: ', raw)
    return (found[1] if found else raw).rstrip(".")[:500]
