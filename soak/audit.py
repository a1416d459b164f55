"""The rules that the evidence is held against. Each says what it found wrong, naming the run and the step."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf

from soak.evidence import Activity, Evidence, RunRecord
from soak.ledger import Line
from soak.script import ASKED_AMOUNT, EDITED_AMOUNT, REJECTED, RUNS, SCRIPTS, Call, calls_of, model_steps, step_name

UNREPORTED_SECONDS = 2.0
"""What had its effect so shortly before an outage may not have been reported."""

DYING_SECONDS = 1.0
"""A worker that kills itself says so first, and its other threads may write for that much longer."""


class Facts:
    """The evidence, looked up by run and step."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.runs = evidence.runs

    def agents(self, run: RunRecord) -> Sequence[str]:
        """The agents whose steps the run has."""
        return RUNS[self.evidence.adapter].get(run.agent, [run.agent])

    def calls(self, run: RunRecord) -> list[Call]:
        """The calls that the run makes."""
        return [call for agent in self.agents(run) for call in calls_of(agent)]

    def has_step(self, run: RunRecord, call: Call) -> bool:
        """Whether an activity makes the call; none runs an agent that is a part of the run."""
        return call.delegate not in self.agents(run)

    @cached_property
    def lines(self) -> dict[tuple[str, str], list[Line]]:
        """What the bodies of each step told."""
        found: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for line in self.evidence.lines:
            if line.event != "death":
                found[line.call].append(line)
        return dict(found)

    @cached_property
    def completed(self) -> dict[tuple[str, str], Activity]:
        """The activities whose completion was recorded, by execution and activity id."""
        return {
            (one.run, one.activity): one for run in self.runs for one in run.activities if one.status == "completed"
        }

    def begun(self, run: RunRecord, step: str) -> list[Line]:
        """Where bodies of the step began."""
        return [line for line in self.lines.get((run.workflow, step), []) if line.event == "begin"]

    def effects(self, run: RunRecord, step: str) -> list[Line]:
        """The effects of the step."""
        return [line for line in self.lines.get((run.workflow, step), []) if line.event == "effect"]

    def asked(self, run: RunRecord, step: str, kind: str) -> list[str]:
        """What the operator said to each question of this kind about the step."""
        questions = self.evidence.questions
        return [one.said for one in questions if (one.workflow, one.step, one.kind) == (run.workflow, step, kind)]

    def effect(self, run: RunRecord, step: str) -> Line | None:
        """The effect that counts: that of the recorded attempt, or the one that the operator found to have happened."""
        for line in self.effects(run, step):
            done = self.completed.get(line.of_activity)
            if done and done.attempt == line.attempt:
                return line
        if "happened" not in self.asked(run, step, "outcome"):
            return None
        return next(reversed(self.effects(run, step)), None)

    def lost(self, pid: int, since: float, until: float, before: float) -> bool:
        """Whether what a worker did from `since` to `until` was lost `before` it was done again: the worker was killed,
        or the server was away around then."""
        killed = any(kill.pid == pid and since - DYING_SECONDS <= kill.at <= before for kill in self.evidence.kills)
        return killed or any(
            outage.began - UNREPORTED_SECONDS <= until and since <= outage.ended and outage.began <= before
            for outage in self.evidence.outages
        )


def ended_well(facts: Facts) -> Iterator[str]:
    """Each run completed, and counted each model call once."""
    for run in facts.runs:
        if run.status != "completed":
            yield f"{run.workflow}: is {run.status}"
        elif run.requests != (wanted := sum(len(model_steps(agent)) for agent in _with_sub_agents(run.agent))):
            yield f"{run.workflow}: counts {run.requests} model calls instead of {wanted}"


def one_sub_run(facts: Facts) -> Iterator[str]:
    """The agent in a tool was one run, however often its tool began; none where it is a part of the run."""
    for run in facts.runs:
        if run.agent == "desk":
            count = sum(other.workflow.startswith(f"{run.workflow}/") for other in facts.runs)
            if count != len(RUNS[facts.evidence.adapter]) - 1:
                yield f"{run.workflow}: started {count} runs of its sub-agent"


def recorded_once(facts: Facts) -> Iterator[str]:
    """Each step of the script was completed once, by its activity or by the operator's word, and no other was."""
    for run in facts.runs:
        done = Counter(one.step for one in run.activities if one.status == "completed")
        wanted = {step for agent in facts.agents(run) for step in model_steps(agent)}
        for call in facts.calls(run):
            if call.verdict != "reject" and facts.has_step(run, call):
                wanted.add(call.step)
                done[call.step] += facts.asked(run, call.step, "outcome").count("happened")
            if call.name == "charge/A":
                wanted.add(step_name(call.agent, "ask-charge/A"))
        yield from (
            f"{run.workflow}: {step} completed {done[step]} times" for step in sorted(wanted) if done[step] != 1
        )
        known = wanted | {one.step for one in run.activities if ":describe" in one.step}
        yield from (f"{run.workflow}: {step} is not in the script" for step in sorted(set(done) - known))


def none_failed(facts: Facts) -> Iterator[str]:
    """No activity failed, and none was left open."""
    for run in facts.runs:
        for one in run.activities:
            if one.status not in ("completed", "timed_out"):
                yield f"{run.workflow}: {one.step} is {one.status}"


def repeated_only_when_lost(facts: Facts) -> Iterator[str]:
    """A body ran again only when the attempt before it was lost with its worker, unrecorded."""
    attempts: dict[tuple[tuple[str, str], int], list[Line]] = defaultdict(list)
    for lines in facts.lines.values():
        for line in lines:
            attempts[line.of_activity, line.attempt].append(line)
    for (activity, attempt), lines in attempts.items():
        events, done = [line.event for line in lines], facts.completed.get(activity)
        where = f"{lines[0].workflow}: {lines[0].step}, attempt {attempt}"
        if events.count("begin") != 1 or events.count("effect") > 1:
            yield f"{where} wrote {', '.join(events)}"
        elif done and attempt > done.attempt:
            yield f"{where} ran although attempt {done.attempt} was recorded as completed"
        elif done and attempt == done.attempt:
            if "effect" not in events:
                yield f"{where} was recorded as completed without its effect"
        elif not _was_lost(facts, lines):
            yield f"{where} was not recorded, and neither its worker nor the server was lost"


def approved_once(facts: Facts) -> Iterator[str]:
    """What was approved had its effect once; what was rejected never began."""
    for run, call in _calls(facts):
        count = len(facts.effects(run, call.step))
        if call.runs_once and count != 1:
            yield f"{run.workflow}: {call.step} had its effect {count} times"
        if call.verdict == "reject" and facts.begun(run, call.step):
            yield f"{run.workflow}: {call.step} ran although it was rejected"


def one_key_each(facts: Facts) -> Iterator[str]:
    """Every attempt of a call saw the same idempotency key, and no other call saw it."""
    keys: dict[tuple[str, str], set[str]] = defaultdict(set)
    # What says that `charge` asks is its body in one framework, which has the key of the call, and not in the other.
    keyless = (":model/",) if facts.evidence.adapter == "pydantic-ai" else (":model/", ":ask-")
    for (workflow, step), lines in facts.lines.items():
        if not any(kind in step for kind in keyless):
            keys[workflow, step.replace(":ask-", ":")] |= {line.key for line in lines}
    owners: dict[str, tuple[str, str]] = {}
    for (workflow, step), seen in sorted(keys.items()):
        if len(seen) != 1 or "" in seen:
            yield f"{workflow}: {step} saw {len(seen)} idempotency keys"
        for key in seen:
            if owners.setdefault(key, (workflow, step)) != (workflow, step):
                yield f"{workflow}: {step} has the key of {' '.join(owners[key])}"


def asked_once(facts: Facts) -> Iterator[str]:
    """Each gated call was asked about once, no other was, and each question has one accepted answer in the history."""
    for run, call in _calls(facts):
        count = len(facts.asked(run, call.step, "approval"))
        if count != (1 if call.verdict else 0):
            yield f"{run.workflow}: approval of {call.step} was asked for {count} times"
    for run in facts.runs:
        answers = Counter(run.answers)
        for question in facts.evidence.questions:
            if question.workflow == run.workflow and answers.pop(question.request_id, 0) != 1:
                yield f"{run.workflow}: request {question.request_id} ({question.step}) has not one accepted answer"
        yield from (f"{run.workflow}: request {one} was answered and never seen" for one in answers)


def asked_about_every_loss(facts: Facts) -> Iterator[str]:
    """Whenever an approved call was lost the operator was asked what had happened, and only then."""
    for run, call in _calls(facts):
        lost = [one for one in run.activities if one.step == call.step and one.status == "timed_out"]
        asked = len(facts.asked(run, call.step, "outcome"))
        if asked != (len(lost) if call.runs_once else 0):
            yield f"{run.workflow}: the outcome of {call.step} was lost {len(lost)} times and asked for {asked} times"
        if (
            lost and not call.runs_once and call.name != "delegate/A"
        ):  # It waits for its agent over any number of workers.
            yield f"{run.workflow}: {call.step} timed out for good"
        for one in lost:
            if not facts.lost(one.pid, run.began, run.ended, run.ended):
                yield f"{run.workflow}: {call.step} timed out, and neither its worker nor the server was lost"


def right_results(facts: Facts) -> Iterator[str]:
    """Each run was told the result of the body that counts, of the arguments that were approved."""
    for run in facts.runs:
        yield from _right_results(facts, run, run.agent, run.output)


def _right_results(facts: Facts, run: RunRecord, agent: str, output: str) -> Iterator[str]:
    told = json.loads(output) if output.startswith("{") else {}
    if set(told) != {call.name for call in calls_of(agent)}:
        yield f"{run.workflow}: {agent} gives results of {', '.join(sorted(told))}"
    for call in calls_of(agent):
        if call.delegate and not facts.has_step(run, call):
            yield from _right_results(facts, run, call.delegate, str(told.get(call.name, "")))
            continue
        effect = facts.effect(run, call.step)
        wanted = REJECTED if call.verdict == "reject" else effect.result if effect else None
        if told.get(call.name) != wanted:
            yield f"{run.workflow}: was told another result of {call.step} than the ledger has"
        if call.name.startswith("refund/") and effect and not effect.result.startswith(f"{_amount(call)} "):
            yield f"{run.workflow}: {call.step} ran with another amount than was approved"


def right_answers(facts: Facts) -> Iterator[str]:
    """Each tool ran for the model answer that was recorded, not for one that was lost."""
    for run, call in _calls(facts):
        answer = facts.effect(run, step_name(call.agent, f"model/{call.turn}"))
        begun = [*facts.begun(run, call.step), *facts.begun(run, step_name(call.agent, f"ask-{call.name}"))]
        if any(answer is None or line.token != answer.token for line in begun):
            yield f"{run.workflow}: {call.step} ran for another model answer than the recorded one"


def no_failed_tasks(facts: Facts) -> Iterator[str]:
    """No workflow task failed."""
    for run in facts.runs:
        yield from (f"{run.workflow}: a workflow task failed: {why}" for why in run.failed_tasks)


RULES: Sequence[Callable[[Facts], Iterator[str]]] = (
    ended_well,
    one_sub_run,
    recorded_once,
    none_failed,
    repeated_only_when_lost,
    approved_once,
    one_key_each,
    asked_once,
    asked_about_every_loss,
    right_results,
    right_answers,
    no_failed_tasks,
)


def violations(evidence: Evidence) -> list[str]:
    """What is wrong with the evidence, with the rule that says so."""
    facts = Facts(evidence)
    return [f"{rule.__name__}: {found}" for rule in RULES for found in rule(facts)]


def _was_lost(facts: Facts, lines: Sequence[Line]) -> bool:
    """Whether an attempt was lost before the step was begun again."""
    begun, last = lines[0], lines[-1]
    again = min((one.at for one in facts.lines[begun.call] if one.event == "begin" and one.at > last.at), default=inf)
    return facts.lost(begun.pid, begun.at, last.at if last.event == "effect" else again, again)


def _calls(facts: Facts) -> Iterator[tuple[RunRecord, Call]]:
    return ((run, call) for run in facts.runs for call in facts.calls(run))


def _with_sub_agents(agent: str) -> list[str]:
    return list(SCRIPTS) if agent == "desk" else [agent]


def _amount(call: Call) -> int:
    return EDITED_AMOUNT if call.verdict == "edit" else ASKED_AMOUNT
