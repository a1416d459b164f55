"""What a phase gives back, and how it is shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import median

from soak.evidence import Evidence
from soak.script import model_steps

Value = int | float | str


@dataclass(frozen=True)
class Report:
    """How a phase went.

    figures: by what was counted or measured. violations: what was found wrong; empty is good. table: more figures, as
    Markdown.
    """

    phase: str
    seed: int
    seconds: float
    figures: Mapping[str, Value]
    violations: Sequence[str] = field(default_factory=list)
    table: str = ""


def figures(evidence: Sequence[Evidence]) -> dict[str, Value]:
    """The figures of a phase, over all its task queues."""
    went_on = [seconds for one in evidence for seconds in _until_it_went_on(one)]
    again = [seconds for one in evidence for seconds in _until_begun_again(one)]
    found: dict[str, Value] = {
        "workers killed": sum(len(one.kills) for one in evidence),
        "servers killed": len({outage for one in evidence for outage in one.outages}),
        "runs": sum(run.agent == "desk" for one in evidence for run in one.runs),
        "their sub-agents' runs": sum(run.agent == "payer" for one in evidence for run in one.runs),
        "times a run went on in another execution": sum(run.executions - 1 for one in evidence for run in one.runs),
        "steps completed": sum(
            activity.status == "completed" for one in evidence for run in one.runs for activity in run.activities
        ),
        **_bodies(evidence),
    }
    for kind in ("approval", "outcome"):
        found[f"questions: {kind}"] = sum(question.kind == kind for one in evidence for question in one.questions)
    for verdict in ("happened", "not_happened"):
        found[f"settled as {verdict}"] = sum(question.said == verdict for one in evidence for question in one.questions)
    found["answers accepted"] = sum(len(run.answers) for one in evidence for run in one.runs)
    found["workflow tasks failed"] = sum(len(run.failed_tasks) for one in evidence for run in one.runs)
    found |= _seconds("a run went on after a kill", went_on)
    return found | _seconds("a lost body began again, or was asked about", again)


def _bodies(evidence: Sequence[Evidence]) -> dict[str, Value]:
    models = {step for agent in ("desk", "payer") for step in model_steps(agent)}
    begun = [(line.call, line.step in models) for one in evidence for line in one.lines if line.event == "begin"]
    return {
        "model calls": len({call for call, is_model in begun if is_model}),
        "model calls begun again": _again(call for call, is_model in begun if is_model),
        "tool bodies": len({call for call, is_model in begun if not is_model}),
        "tool bodies begun again": _again(call for call, is_model in begun if not is_model),
    }


def _again(calls: Iterable[tuple[str, str]]) -> int:
    begun = list(calls)
    return len(begun) - len(set(begun))


def _seconds(name: str, values: Sequence[float]) -> dict[str, Value]:
    if not values:
        return {}
    return {f"{name}, median s": round(median(values), 1), f"{name}, slowest s": round(max(values), 1)}


def _until_it_went_on(evidence: Evidence) -> list[float]:
    """For each kill and each run that was open, how long the run and its sub-agents did nothing that shows.

    A run that was hit again before it went on counts from the last time.
    """
    hits = sorted([*(kill.at for kill in evidence.kills), *(outage.began for outage in evidence.outages)])
    found = []
    for run in (run for run in evidence.runs if run.agent == "desk"):
        shown = [line.at for line in evidence.lines if _of(line.workflow, run.workflow)]
        shown += [question.at for question in evidence.questions if _of(question.workflow, run.workflow)]
        for number, at in enumerate(hits):
            went_on = min((after for after in [*shown, run.ended] if after > at), default=inf)
            if run.began <= at < run.ended and went_on <= next(iter(hits[number + 1 :]), went_on) and went_on < inf:
                found.append(went_on - at)
    return found


def _until_begun_again(evidence: Evidence) -> list[float]:
    """For each body that was lost in a killed worker, how long until it began again or the operator was asked.

    Counted from the last kill on its queue before that.
    """
    completed = {
        (one.run, one.activity, one.attempt)
        for run in evidence.runs
        for one in run.activities
        if one.status == "completed"
    }
    killed = {kill.pid: kill.at for kill in evidence.kills}
    found = []
    for line in evidence.lines:
        if line.event == "begin" and line.pid in killed and (*line.of_activity, line.attempt) not in completed:
            at = killed[line.pid]
            later = [one.at for one in evidence.lines if one.event == "begin" and one.call == line.call and one.at > at]
            later += [one.at for one in evidence.questions if (one.workflow, one.step) == line.call and one.at > at]
            if later:
                found.append(min(later) - max(kill.at for kill in evidence.kills if kill.at < min(later)))
    return found


def _of(workflow: str, root: str) -> bool:
    return workflow == root or workflow.startswith(f"{root}/")


def table_rows(reports: Sequence[Report]) -> list[list[str]]:
    """A table with a column for each phase; the first row is its header."""
    names = list(dict.fromkeys(name for report in reports for name in report.figures))
    return [
        ["", *(report.phase for report in reports)],
        *([name, *(_shown(report.figures.get(name, "")) for report in reports)] for name in names),
        ["violations", *(str(len(report.violations)) for report in reports)],
        ["seconds", *(f"{report.seconds:.0f}" for report in reports)],
        ["seed", *(str(report.seed) for report in reports)],
    ]


def markdown(reports: Sequence[Report]) -> str:
    """The same table for a page of documentation, and those of the phases that have more to say."""
    header, *rows = table_rows(reports)
    table = "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---", *("--:" for _ in reports)], *rows])
    return "\n\n".join([table, *(report.table for report in reports if report.table)])


def _shown(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
