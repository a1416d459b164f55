"""A journal's facts in words, the same in the terminal and on the page."""

import json

from interlock.contracts.budgets import shares
from interlock.contracts.durations import span as span
from interlock.contracts.limits import limit_words
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import Budget, Json, Usage
from interlock.journal.model import Journal, Request, Step, Totals

_ASKS = {
    "tool_result": " (its result)",
    "outcome": " (did it happen?)",
    "budget": " (extend it?)",
    "output": " (is it the output?)",
}
_OUTCOMES = {
    "open": "waits",
    "completed": "result reported",
    "failed": "failure reported",
    "happened": "found to have happened",
    "not_happened": "found not to have happened",
    "given_up": "given up",
    "timed_out": "not answered in time",
}


def amount(size: int) -> str:
    """A number of bytes: `820 B`, `7.5 kB`, `1.2 MB`."""
    if size < 1_000:
        return f"{size} B"
    return f"{size / 1_000:.1f} kB" if size < 999_950 else f"{size / 1_000_000:.1f} MB"


def short(size: int) -> str:
    """A number of bytes where there is little room: `820`, `7.5k`, `1.2M`."""
    return amount(size).removesuffix("B").replace(" ", "").strip()


def counted(number: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def title(step: Step) -> str:
    """What a step was about, without the word that its kind says already."""
    text = step.summary.removeprefix("model ") if step.kind == "model" else step.summary
    text = text.removeprefix("judge ") if step.kind == "judge" else text
    return text if step.readable else f"{text} (not readable)"


def tokens(step: Step) -> str:
    """What a step's model took and gave."""
    used = step.usage
    return f"{used.input_tokens:,} > {used.output_tokens:,}" if used and used.requests else ""


def ending(step: Step) -> str:
    """How a step stands, and why."""
    if step.status == "scheduled":
        doing = "at work" if step.started_at else "tried again soon" if step.last_error else "waits for a worker"
        return f"{doing} after {step.last_error}" if step.last_error else doing
    if step.error:
        return f"{step.status.replace('_', ' ')}: {step.error}"
    return step.outcome if step.outcome and step.status == "completed" else step.status.replace("_", " ")


def subject(request: Request) -> str:
    """What a request is about: the call, and what of it is asked for."""
    return f"{request.label}{_ASKS.get(request.kind, '')}"


def tone(request: Request) -> str:
    """Whether what became of a request is `good`, `bad`, `plain`, or still to come: `wait`."""
    if request.outcome in ("rejected", "failed", "given_up", "timed_out"):
        return "bad"
    return {"open": "wait", "withdrawn": "plain"}.get(request.outcome, "good")


def settled(request: Request) -> str:
    """What became of a request: `approved by ann after 3 min, with amount 30.0 instead of 300.0: it was broken`."""
    said = ", ".join(
        text for text in (settled_shortly(request), limit(request), _edits(request), _result(request)) if text
    )
    reason = _reason(request)
    return f"{said}: {reason}" if reason else said


def settled_shortly(request: Request) -> str:
    """What became of a request: `approved by ann after 3 min`."""
    word = _OUTCOMES.get(request.outcome, request.outcome.replace("_", " "))
    by = f" by {request.answer.by}" if request.answer and request.answer.by else ""
    if request.answer and request.answer.via == "fork":
        return f"{word}{by} before the fork"
    return f"{word}{by} {'for' if request.outcome == 'open' else 'after'} {span(request.waited_seconds)}"


def remarks(request: Request) -> str:
    """The same without what `settled_shortly` says."""
    return ": ".join(text for text in (limit(request), _edits(request), _result(request), _reason(request)) if text)


def limit(request: Request) -> str:
    """How a request stands with its time limit: to whom it was escalated, and what is still to come."""
    return limit_words(request, is_open=request.outcome == "open")


def arguments(request: Request) -> list[tuple[str, str, str]]:
    """Each argument of a call: its name, what was proposed and what ran. Empty texts where there is none."""
    proposed, ran = request.proposed or {}, request.executed or {}
    every = dict.fromkeys([*proposed, *ran])
    return [(name, _argument(proposed, name), _argument(ran, name)) for name in every]


def _argument(of: dict[str, Json], name: str) -> str:
    return json_text(of[name]) if name in of else ""


def json_text(value: Json) -> str:
    """A value as a person reads it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def indented(value: Json) -> str:
    """JSON in lines."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def came_of(request: Request, journal: Journal, above: str = "") -> str:
    """What ran in the end: `ran as step 6: returned`. above: what the journal's positions are below."""
    steps = [journal.steps[position - 1] for position in request.steps]
    return "; ".join(f"ran as step {above}{step.position}: {ending(step)}" for step in steps)


def totals_line(totals: Totals, unread: int) -> str:
    """The sums in one line. unread: the model calls of runs below that are not among them."""
    parts = [
        counted(totals.model_calls, "model call") + (f" and {unread} in runs below" if unread else ""),
        f"{totals.usage.input_tokens:,} tokens in, {totals.usage.output_tokens:,} out",
        *([f"{totals.usage.cost_usd} USD"] if totals.usage.cost_usd else []),
        counted(totals.tool_calls, "tool call"),
        *([counted(totals.retries, "attempt") + " more"] if totals.retries else []),
        _waits(totals),
        f"{span(totals.elapsed_seconds)} in all",
    ]
    return ", ".join(parts)


def budget_line(budget: Budget, spent: Usage) -> str:
    """What was spent of a budget, limit by limit: `budget: 6 of 8 model calls, 0.60 of 1.50 USD`."""
    return f"budget: {', '.join(share.text for share in shares(budget, spent))}"


def _reason(request: Request) -> str:
    return request.answer.reason if request.answer else ""


def _result(request: Request) -> str:
    result = request.answer.result if request.answer else None
    return "" if result is None else f"with the result {' '.join(json_text(result).split())[:200]}"


def _edits(request: Request) -> str:
    if not request.edited:
        return ""
    if request.proposed is not None and request.executed is not None:
        changed = [
            f"{name} {new or 'nothing'} instead of {old or 'nothing'}"
            for name, old, new in arguments(request)
            if new != old
        ]
        return f"with {', '.join(changed)}" if changed else "with another secret"
    ran = request.executed or (request.answer.arguments if request.answer else None)
    return f"with other arguments: {call_label(request.tool, ran)}" if ran else "with other arguments"


def _waits(totals: Totals) -> str:
    if totals.people:
        return f"{counted(totals.people, 'wait')} for a person ({span(totals.waited_seconds)})"
    return f"stuck for {span(totals.waited_seconds)}" if totals.waited_seconds else "no waits"
