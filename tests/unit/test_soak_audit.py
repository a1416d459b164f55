"""The rules of the soak: each finds what breaks it, and a good run breaks none."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from soak.airflow import TaskRecord, wrong_tasks
from soak.audit import RULES, violations
from soak.crew import Kill
from soak.evidence import Activity, Evidence, Outage, Question, RunRecord
from soak.ledger import Line
from soak.script import ASKED_AMOUNT, EDITED_AMOUNT, REJECTED, Call, calls_of, model_steps, step_name

DESK, PAYER = "run-1", "run-1/payer-x"
KILL = Kill(pid=1, at=2)


def _first(workflow: str) -> str:
    return f"first execution of {workflow}"


def good() -> Evidence:
    """One run as it should be: `payer:pay/A` was lost after its effect, `desk:look/A` in the middle of its body."""
    lines, runs = list[Line](), list[RunRecord]()
    for workflow, agent in ((DESK, "desk"), (PAYER, "payer")):
        own = [line for call in calls_of(agent) for line in _bodies(workflow, call)]
        own += [line for step in model_steps(agent) for line in _body(workflow, step, token=_token(step))]
        lines += own
        runs.append(_run(workflow, agent, own))
    asked = [
        Question(line.workflow, request, "approval", line.step, "approve", at=2)
        for line, request in (
            (Line("begin", "desk:refund/A", DESK), "1"),
            (Line("begin", "desk:refund/B", DESK), "2"),
            (Line("begin", "desk:erase/B", DESK), "3"),
            (Line("begin", "desk:charge/A", DESK), "4"),
            (Line("begin", "payer:pay/A", PAYER), "1"),
        )
    ]
    outcome = Question(PAYER, "2", "outcome", "payer:pay/A", "happened", at=9)
    lines.append(
        Line(
            "begin",
            "desk:look/A",
            DESK,
            _first(DESK),
            "desk:look/A",
            1,
            "key desk:look/A",
            _token("desk:model/0"),
            pid=1,
        )
    )
    return Evidence(lines, runs, [*asked, outcome], [KILL])


def good_inside() -> Evidence:
    """The same with `payer` as a part of the run; `payer:pay/A` was lost too."""
    both = good()
    desk, payer = both.runs
    told = json.loads(desk.output) | {"delegate/A": payer.output}
    answers = ["1", "2", "3", "4", "5", "6"]
    activities = [one for one in [*desk.activities, *payer.activities] if one.step != "desk:delegate/A"]
    numbers = iter(answers)
    questions = [replace(one, workflow=DESK, request_id=next(numbers)) for one in both.questions]
    lines = [
        replace(line, workflow=DESK, key="" if ":ask-" in line.step else line.key)
        for line in both.lines
        if line.step != "desk:delegate/A"
    ]
    run = replace(desk, output=json.dumps(told), activities=activities, answers=answers)
    return Evidence(lines, [run], questions, both.kills, adapter="openai-agents")


def _bodies(workflow: str, call: Call) -> Iterator[Line]:
    token = _token(step_name(call.agent, f"model/{call.turn}"))
    if call.name == "charge/A":
        yield from _body(workflow, "desk:ask-charge/A", key=f"key {call.step}", token=token)
    if call.verdict != "reject":
        amount = f"{EDITED_AMOUNT if call.verdict == 'edit' else ASKED_AMOUNT} " if "refund" in call.name else ""
        yield from _body(
            workflow,
            call.step,
            key=f"key {call.step}",
            token=token,
            result=f"{amount}{call.step}",
            attempt=2 if call.step == "desk:look/A" else 1,
        )


def _body(
    workflow: str, step: str, *, key: str = "", token: str = "", result: str = "", attempt: int = 1
) -> Iterator[Line]:
    pid, at = (1, 1) if step == "payer:pay/A" else (2, 3)
    yield Line("begin", step, workflow, _first(workflow), step, attempt, key, token, "", pid, at)
    yield Line("effect", step, workflow, _first(workflow), step, attempt, key, token, result, pid, at + 0.5)


def _run(workflow: str, agent: str, lines: list[Line]) -> RunRecord:
    results = {line.step: line.result for line in lines if line.event == "effect"}
    told = {call.name: results.get(call.step, REJECTED) for call in calls_of(agent)}
    activities = [
        Activity(
            line.step,
            line.run,
            line.activity,
            "timed_out" if line.step == "payer:pay/A" else "completed",
            line.attempt,
            line.pid,
        )
        for line in lines
        if line.event == "effect"
    ]
    answers = ["1", "2", "3", "4"] if agent == "desk" else ["1", "2"]
    requests = len(model_steps(agent)) + (len(model_steps("payer")) if agent == "desk" else 0)
    return RunRecord(
        workflow, agent, "completed", 1, json.dumps(told), requests, activities, answers, began=0, ended=20
    )


def _token(model_step: str) -> str:
    return f"token {model_step}"


def of_run(workflow: str, /, **changes: object) -> Callable[[Evidence], Evidence]:
    """Change a run."""
    return lambda evidence: replace(
        evidence,
        runs=[replace(run, **changes) if run.workflow == workflow else run for run in evidence.runs],  # type: ignore[arg-type]
    )


def of_activity(step: str, /, **changes: object) -> Callable[[Evidence], Evidence]:
    """Change an activity of a history."""

    def changed(run: RunRecord) -> RunRecord:
        activities = [replace(one, **changes) if one.step == step else one for one in run.activities]  # type: ignore[arg-type]
        return replace(run, activities=activities)

    return lambda evidence: replace(evidence, runs=[changed(run) for run in evidence.runs])


def of_lines(step: str, event: str = "", /, **changes: object) -> Callable[[Evidence], Evidence]:
    """Change what the bodies of a step wrote."""

    def changed(line: Line) -> Line:
        hit = line.step == step and event in ("", line.event)
        return replace(line, **changes) if hit else line  # type: ignore[arg-type]

    return lambda evidence: replace(evidence, lines=[changed(line) for line in evidence.lines])


def also(*lines: Line) -> Callable[[Evidence], Evidence]:
    """Have bodies write more."""
    return lambda evidence: replace(evidence, lines=[*evidence.lines, *lines])


def without_lines(step: str, event: str) -> Callable[[Evidence], Evidence]:
    """Have the bodies of a step write less."""
    return lambda evidence: replace(
        evidence, lines=[line for line in evidence.lines if (line.step, line.event) != (step, event)]
    )


def asking(*questions: Question) -> Callable[[Evidence], Evidence]:
    """Have more asked."""
    return lambda evidence: replace(evidence, questions=[*evidence.questions, *questions])


def without_questions(kind: str) -> Callable[[Evidence], Evidence]:
    """Have nothing of a kind asked."""
    return lambda evidence: replace(evidence, questions=[one for one in evidence.questions if one.kind != kind])


def told(workflow: str, **results: str) -> Callable[[Evidence], Evidence]:
    """Have a run give other results."""

    def changed(run: RunRecord) -> RunRecord:
        return replace(run, output=json.dumps({**json.loads(run.output), **results}))

    return lambda evidence: replace(
        evidence, runs=[changed(run) if run.workflow == workflow else run for run in evidence.runs]
    )


AGAIN = Line(
    "begin", "desk:note/A", DESK, _first(DESK), "desk:note/A", 2, "key desk:note/A", _token("desk:model/3"), pid=2, at=6
)
PAID_AGAIN = Line(
    "effect", "payer:pay/A", PAYER, _first(PAYER), "other", 1, "key payer:pay/A", _token("payer:model/0"), pid=1, at=4
)

BAD: dict[str, list[Callable[[Evidence], Evidence]]] = {
    "ended_well": [of_run(DESK, status="failed"), of_run(DESK, status="running"), of_run(DESK, requests=9)],
    "one_sub_run": [
        of_run(PAYER, workflow="run-2/payer"),
        lambda evidence: replace(evidence, runs=[*evidence.runs, replace(evidence.runs[1], workflow=f"{PAYER}2")]),
    ],
    "recorded_once": [
        of_activity("desk:note/A", status="timed_out"),
        of_activity("desk:model/1", status="timed_out"),
        of_activity("desk:note/A", step="desk:look/B"),
        of_activity("desk:note/A", step="desk:sing/A"),
        of_activity("payer:pay/A", status="completed"),
    ],
    "none_failed": [of_activity("desk:note/A", status="failed"), of_activity("desk:note/A", status="open")],
    "repeated_only_when_lost": [
        also(AGAIN),
        also(replace(AGAIN, attempt=1)),
        also(replace(AGAIN, attempt=1, event="effect")),
        without_lines("desk:note/A", "effect"),
        lambda evidence: replace(evidence, kills=[]),
        lambda evidence: replace(evidence, kills=[replace(KILL, pid=3)]),
        lambda evidence: replace(evidence, kills=[replace(KILL, at=-1)]),
        lambda evidence: replace(evidence, kills=[replace(KILL, at=4)]),
        lambda evidence: replace(evidence, kills=[], outages=[Outage(50, 60)]),
    ],
    "approved_once": [
        also(PAID_AGAIN),
        without_lines("payer:pay/A", "effect"),
        of_lines("desk:note/A", step="desk:erase/B"),
    ],
    "one_key_each": [
        of_lines("desk:note/A", "effect", key="another"),
        of_lines("desk:note/A", key=""),
        of_lines("desk:note/A", key="key desk:look/B"),
        of_lines("desk:ask-charge/A", key="another"),
    ],
    "asked_once": [
        asking(Question(DESK, "5", "approval", "desk:refund/A", "approve")),
        asking(Question(DESK, "5", "approval", "desk:note/A", "approve")),
        without_questions("approval"),
        of_run(DESK, answers=["1", "2", "3"]),
        of_run(DESK, answers=["1", "1", "2", "3", "4"]),
        of_run(DESK, answers=["1", "2", "3", "4", "5"]),
    ],
    "asked_about_every_loss": [
        without_questions("outcome"),
        asking(Question(PAYER, "3", "outcome", "payer:pay/A", "happened")),
        asking(Question(DESK, "5", "outcome", "desk:note/A", "happened")),
        of_activity("desk:note/A", status="timed_out"),
        of_activity("payer:pay/A", pid=2),
    ],
    "right_results": [
        told(DESK, **{"note/A": "another"}),
        told(DESK, **{"erase/B": "desk:erase/B"}),
        told(DESK, **{"more/A": "desk:erase/B"}),
        of_lines("desk:refund/B", "effect", result=f"{ASKED_AMOUNT} desk:refund/B"),
        of_activity("desk:note/A", attempt=7),
    ],
    "right_answers": [of_lines("desk:note/A", token="another"), of_lines("desk:ask-charge/A", token="another")],
    "no_failed_tasks": [of_run(DESK, failed_tasks=["Nondeterminism"])],
}


def test_a_good_run_breaks_no_rule() -> None:
    assert violations(good()) == []


def test_a_good_run_with_its_sub_agent_inside_breaks_no_rule() -> None:
    assert violations(good_inside()) == []


INSIDE: dict[str, list[Callable[[Evidence], Evidence]]] = {
    "one_sub_run": [lambda evidence: replace(evidence, runs=[*evidence.runs, good().runs[1]])],
    "recorded_once": [of_activity("payer:check/A", status="timed_out"), of_activity("payer:model/1", step="payer:x/A")],
    "approved_once": [without_lines("payer:pay/A", "effect")],
    "one_key_each": [of_lines("payer:check/A", key="key payer:record/A"), of_lines("payer:check/A", key="")],
    "asked_once": [of_run(DESK, answers=["1", "2", "3", "4", "5"])],
    "asked_about_every_loss": [without_questions("outcome")],
    "right_results": [
        told(DESK, **{"delegate/A": "nothing"}),
        told(DESK, **{"delegate/A": json.dumps({"check/A": "another", "pay/A": "payer:pay/A", "record/A": "x"})}),
        of_lines("payer:check/A", "effect", result="another"),
    ],
    "right_answers": [of_lines("payer:check/A", token="another"), of_lines("desk:ask-charge/A", token="another")],
}


@pytest.mark.parametrize(
    ("rule", "worsen"),
    [(rule, worsen) for rule, worsenings in INSIDE.items() for worsen in worsenings],
    ids=[f"{rule}-{number}" for rule, worsenings in INSIDE.items() for number in range(1, len(worsenings) + 1)],
)
def test_each_rule_finds_what_breaks_it_inside(rule: str, worsen: Callable[[Evidence], Evidence]) -> None:
    found = violations(worsen(good_inside()))

    assert any(violation.startswith(f"{rule}: ") for violation in found), found


def test_an_outage_of_the_server_excuses_what_was_not_recorded_then() -> None:
    assert violations(replace(good(), kills=[], outages=[Outage(1.8, 2.5)])) == []


@pytest.mark.parametrize(
    ("rule", "worsen"),
    [(rule, worsen) for rule, worsenings in BAD.items() for worsen in worsenings],
    ids=[f"{rule}-{number}" for rule, worsenings in BAD.items() for number in range(1, len(worsenings) + 1)],
)
def test_each_rule_finds_what_breaks_it(rule: str, worsen: Callable[[Evidence], Evidence]) -> None:
    found = violations(worsen(good()))

    assert any(violation.startswith(f"{rule}: ") for violation in found), found


def test_every_rule_is_shown_to_find_something() -> None:
    assert {rule.__name__ for rule in RULES} == BAD.keys()


TASKS = [TaskRecord(DESK, "success", 1, good().runs[0].output)]


def test_a_task_that_succeeded_with_the_result_of_its_one_run_breaks_no_rule() -> None:
    assert list(wrong_tasks(TASKS, good().runs, [])) == []


@pytest.mark.parametrize(
    ("tasks", "worsen", "still_open", "found"),
    [
        ([replace(TASKS[0], state="failed", tries=4)], {}, [], "run-1: its task is failed, in try 4"),
        ([replace(TASKS[0], value=None)], {}, [], "run-1: its task has another result"),
        ([*TASKS, replace(TASKS[0], workflow="run-2")], {}, [], "run-2: was never started"),
        ([], {}, [], "run-1: is of no task"),
        (TASKS, {"executions": 2}, [], "run-1: was started 2 times"),
        (TASKS, {}, ["run-1/other"], "run-1/other: is still open"),
    ],
)
def test_what_is_wrong_with_a_task_is_found(
    tasks: list[TaskRecord], worsen: dict[str, object], still_open: list[str], found: str
) -> None:
    assert list(wrong_tasks(tasks, of_run(DESK, **worsen)(good()).runs, still_open)) == [found]
