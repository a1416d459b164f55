"""The journal of every stored history, and what it makes of histories that are older, newer, damaged or hostile."""

import base64
import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload as TemporalPayload
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from interlock.contracts.payloads import Usage
from interlock.journal import HistoryReader, Journal, Request, Step, read_journal
from interlock.journal.html import page
from tests.unit.stored import (
    NAMES,
    activity_type,
    after,
    asked_in_full,
    decision,
    event,
    history,
    journal_of,
    payload_of,
    payloads,
    rewritten,
    scheduled,
    set_value,
    signal,
    value_of,
    workflow_task,
)

OPEN = {"awaiting_approval", "awaiting_tool_result", "running", "stuck"}


def seen(journal: Journal) -> list[tuple[str, str, str]]:
    """Each step in three words."""
    return [(step.kind, step.name, step.outcome or step.status) for step in journal.steps]


def request_of(journal: Journal, number: str) -> Request:
    (found,) = (one for one in journal.requests if one.request_id == number)
    return found


@pytest.mark.parametrize("name", NAMES)
async def test_each_scheduled_activity_is_one_step_at_its_position(name: str) -> None:
    document = history(name)
    journal = await journal_of(document)

    assert [step.position for step in journal.steps] == list(range(1, len(journal.steps) + 1))
    assert [(str(step.event_id), "recall_step" if step.reused else step.activity_type) for step in journal.steps] == [
        (one["eventId"], activity_type(one)) for one in scheduled(document)
    ]
    assert journal.history_events == len(document["events"])


@pytest.mark.parametrize("name", NAMES)
async def test_a_journal_ends_as_its_run_did(name: str) -> None:
    journal = await journal_of(name)

    ending = name.partition("-")[0]
    assert journal.status in (OPEN if ending == "open" else {ending})
    assert (journal.ended_at is None) == (ending == "open")
    assert (journal.error is not None) == (journal.status == "failed")


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("completed")])
async def test_what_the_steps_used_is_what_the_run_says_it_used(name: str) -> None:
    journal = await journal_of(name)

    assert journal.usage is not None
    # A run of an older release does not say of how many calls it knows no price.
    assert journal.totals.usage.model_copy(update={"unpriced": journal.usage.unpriced}) == journal.usage


@pytest.mark.parametrize("name", NAMES)
async def test_a_journal_comes_back_from_its_json(name: str) -> None:
    journal = await journal_of(name)

    assert Journal.model_validate_json(journal.model_dump_json()) == journal
    assert journal.model_dump(mode="json")["format"] == "interlock-journal-1"


@pytest.mark.parametrize("name", ["completed-judge", "completed-by-signals", "open-awaiting-approval"])
async def test_a_position_never_changes_while_the_run_goes_on(name: str) -> None:
    events = WorkflowHistory.from_json("stored", json.dumps(history(name))).events
    places = {step.event_id: step.position for step in (await read_journal(events)).steps}

    for count in range(1, len(events) + 1):
        so_far = await read_journal(events[:count])
        assert {step.event_id: step.position for step in so_far.steps}.items() <= places.items()


async def test_a_run_with_decisions_is_told_step_by_step() -> None:
    journal = await journal_of("completed-decisions")

    assert seen(journal) == [
        ("model", "scripted", "calls refund ×3, look_up"),
        ("description", "refund", "completed"),
        ("description", "refund", "completed"),
        ("description", "refund", "completed"),
        ("tool", "look_up", "returned"),
        ("tool", "refund", "returned"),
        ("tool", "refund", "returned"),
        ("model", "scripted", "answers"),
    ]
    first = journal.steps[0]
    assert (first.agent_path, first.attempts, first.bytes_in, first.bytes_out) == (("support",), 1, 7527, 1357)
    assert first.usage == Usage(requests=1, input_tokens=53, output_tokens=26, unpriced=1)
    assert first.seconds == pytest.approx(0.012046, abs=1e-6)
    assert first.scheduled_at <= (first.started_at or first.scheduled_at) <= (first.ended_at or first.scheduled_at)
    assert journal.steps[5].arguments == {"order": "A-1003", "amount": 30.0}
    assert (journal.agent, journal.requested_by, journal.summary) == ("support", "ann", "support: Refund everything.")


async def test_a_decision_says_who_when_and_what_ran() -> None:
    journal = await journal_of("completed-decisions")
    told = [(one.request_id, one.outcome, one.edited, one.asked_by, one.steps) for one in journal.requests]

    assert told == [
        ("1", "approved", False, 2, (7,)),
        ("2", "rejected", False, 3, ()),
        ("3", "approved", True, 4, (6,)),
    ]
    answer = request_of(journal, "2").answer
    assert answer is not None
    assert (answer.by, answer.verdict, answer.reason, answer.via) == ("bob", "reject", "too late", "update")
    assert request_of(journal, "3").executed == {"order": "A-1003", "amount": 30.0}
    assert request_of(journal, "3").label == "refund: order A-1003, amount 300.00"
    assert request_of(journal, "1").waited_seconds == pytest.approx(0.200936, abs=1e-6)
    assert (journal.totals.people, round(journal.totals.waited_seconds, 6)) == (3, 0.200936)


async def test_judges_answer_for_themselves() -> None:
    journal = await journal_of("completed-judge")
    told = [(one.outcome, one.judged_by, one.answer and (one.answer.by, one.answer.via)) for one in journal.requests]

    assert told == [
        ("approved", 8, ("judge", "judge")),
        ("approved", 6, ("ann", "update")),
        ("rejected", 7, ("judge", "judge")),
    ]
    assert [step.outcome for step in journal.steps if step.kind == "judge"] == ["ask", "reject", "approve"]
    assert journal.totals.people == 1


async def test_the_word_of_a_predicate_is_a_step() -> None:
    journal = await journal_of("completed-predicate")

    assert [one for one in seen(journal) if one[0] == "predicate"] == [
        ("predicate", "transfer", "needs no approval"),
        ("predicate", "transfer", "needs approval"),
    ]


async def test_a_repeated_signal_changes_nothing_and_says_so() -> None:
    journal = await journal_of("completed-by-signals")

    for number in ("1", "2"):
        request = request_of(journal, number)
        assert request.answer is not None
        assert (request.outcome, request.answer.via) == ("approved", "signal")
        assert [one.ignored for one in request.ignored] == ["the request was settled already"]


async def test_results_from_outside_are_told_with_who_reported_them() -> None:
    journal = await journal_of("completed-tool-results")
    told = [(one.tool, one.kind, one.outcome, one.answer and one.answer.verdict) for one in journal.requests]

    assert told == [("pick", "tool_result", "failed", "fail"), ("render", "tool_result", "completed", "complete")]
    assert journal.steps[1].outcome == "waits for its result"
    answers = [one.answer for one in journal.requests if one.answer]
    assert [answer.reason for answer in answers] == ["no colors", ""]
    assert [answer.result for answer in answers] == [None, {"url": "https://example.com/receipt"}]


async def test_a_run_of_a_tool_is_linked_to_the_step_that_started_it() -> None:
    journal = await journal_of("completed-sub-run")
    child = await journal_of("completed-sub-run-child")
    (link,) = journal.sub_runs

    assert (link.workflow_id, link.agent, link.position) == ("completed-sub-run/payer-01a22965-2-1", "payer", 2)
    assert (link.status, link.usage) == ("ended", child.usage)
    assert journal.steps[1].sub_runs == (link.workflow_id,)
    assert {step.agent_path for step in child.steps} == {("support", "payer")}
    assert child.parent_id == "completed-sub-run"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("open-awaiting-approval", "awaiting_approval"),
        ("open-asked-whether-it-happened", "awaiting_approval"),
        ("open-awaiting-sub-run", "running"),
        ("open-stuck", "stuck"),
    ],
)
async def test_an_open_run_says_what_it_waits_for(name: str, status: str) -> None:
    assert (await journal_of(name)).status == status


async def test_of_two_requests_to_cancel_the_first_is_told() -> None:
    def later(document: dict[str, Any]) -> None:
        after(38, {**event(document, 37), "eventId": "9000", "eventTime": "2026-11-29T23:00:00Z"})(document)

    once, twice = await journal_of("cancelled-waiting"), await journal_of("cancelled-waiting", later)
    assert once.cancel_requested_at is not None
    assert twice.cancel_requested_at == once.cancel_requested_at


@pytest.mark.parametrize(
    ("name", "outcomes"),
    [
        ("cancelled-waiting", ["withdrawn"] * 3),
        ("open-awaiting-approval", ["open", "approved", "open"]),
        ("failed-outcome-unknown", ["approved"]),
    ],
)
async def test_what_nobody_answered_is_open_and_at_the_end_withdrawn(name: str, outcomes: list[str]) -> None:
    assert [one.outcome for one in (await journal_of(name)).requests] == outcomes


async def test_a_failure_is_told_by_what_was_raised() -> None:
    unknown, broken = await journal_of("failed-outcome-unknown"), await journal_of("failed-approved-tool")

    assert unknown.error_type == "OutcomeUnknownError"
    assert str(unknown.error).startswith("OutcomeUnknownError: It is not known whether the approved call of 'stall'")
    assert (unknown.steps[2].status, unknown.steps[2].error_type) == ("timed_out", "TimeoutError")
    assert (broken.steps[2].status, broken.steps[2].error) == ("failed", "ValueError: it is broken")
    assert broken.error == "ValueError: it is broken"


async def test_the_values_that_did_not_fit_are_not_in_the_error() -> None:
    """They may be secrets, and the cause of the failure quotes them."""
    journal = await journal_of("failed-invalid-deps")

    assert journal.error_type == "InvalidInputError"
    assert "high" not in journal.model_dump_json()


# Answers that a run did not take.


async def test_an_answer_that_came_before_the_request_was_open_did_not_count() -> None:
    """The run handles messages first: one that arrives together with the description finds nothing open."""
    early = after(18, signal("decide_approval", decision("1", "reject", "eve")))
    request = request_of(await journal_of("completed-decisions", early), "1")

    assert request.answer is not None
    assert request.answer.by == "ann"
    assert [(one.by, one.ignored) for one in request.ignored] == [("eve", "the request was not open yet")]


async def test_the_answer_that_led_to_the_call_is_the_one_that_counted() -> None:
    """An approval with arguments that do not fit leaves the request open; only the run knows that it was one."""
    unfit = decision("1", "approve", "eve", arguments={"order": "A-1001", "amount": "lots"})
    request = request_of(
        await journal_of("completed-by-signals", after(19, signal("decide_approval", unfit), workflow_task())), "1"
    )

    assert request.answer is not None
    assert (request.answer.by, request.edited, request.steps) == ("ann", False, (3,))
    assert [(one.by, one.ignored) for one in request.ignored] == [
        ("eve", "it was not valid"),
        ("ann", "the request was settled already"),
    ]


async def test_an_accepted_update_shows_that_an_earlier_signal_did_not_count() -> None:
    """A rejection leaves no trace by which the signal could be told to have been for another request."""
    stale = after(33, signal("decide_approval", decision("2", "reject", "eve")), workflow_task())
    request = request_of(await journal_of("completed-decisions", stale), "2")

    assert request.answer is not None
    assert (request.answer.by, [one.by for one in request.ignored]) == ("bob", ["eve"])


async def test_answers_to_requests_that_there_never_were_are_kept_apart() -> None:
    strays = after(
        33,
        signal("decide_approval", decision("77", "approve", "eve")),
        signal("decide_approval", 7),
        signal("complete_tool_call", {"call_id": "nobody's", "result": 1}),
    )
    journal = await journal_of("completed-decisions", strays)

    assert [(one.request_id, one.by) for one in journal.stray] == [("77", "eve"), ("", ""), ("nobody's", "")]
    assert [one.outcome for one in journal.requests] == ["approved", "rejected", "approved"]


async def test_an_answer_of_the_wrong_kind_does_not_count() -> None:
    wrong = after(33, signal("complete_tool_call", {"call_id": "2", "result": 1}), workflow_task())
    request = request_of(await journal_of("completed-decisions", asked_in_full(), wrong), "2")

    assert request.outcome == "rejected"
    assert [one.ignored for one in request.ignored] == ["it does not answer what was asked"]


# What newer runs write.


async def test_a_question_that_holds_the_request_says_what_was_proposed() -> None:
    asked = asked_in_full(order="A-1003", amount=300.0, api_key="sk-1234567890abcdef1234")
    request = request_of(await journal_of("completed-decisions", asked), "3")

    assert request.proposed == {"order": "A-1003", "amount": 300.0, "api_key": "[masked]"}
    assert (request.kind, request.call_id, request.edited) == ("approval", "r3", True)


@pytest.mark.parametrize(
    ("proposed", "edited"),
    [({"order": "A-1001", "amount": 10.0}, False), ({"order": "A-1001", "amount": 10.0, "pin": "1"}, True)],
)
async def test_edited_is_what_did_not_run_as_proposed(proposed: dict[str, Any], edited: bool) -> None:
    assert request_of(await journal_of("completed-decisions", asked_in_full(**proposed)), "1").edited is edited


@pytest.mark.parametrize(
    ("verdict", "outcome"), [("happened", "happened"), ("not_happened", "not_happened"), ("give_up", "given_up")]
)
async def test_a_person_who_settles_what_happened_is_told_like_any_other(verdict: str, outcome: str) -> None:
    def about_outcome(document: dict[str, Any]) -> None:
        (question,) = payloads(event(document, 14)["activityTaskScheduledEventAttributes"]["input"])
        set_value(question, {**value_of(question), "kind": "outcome"})
        (answer,) = payloads(event(document, 44)["workflowExecutionUpdateAcceptedEventAttributes"]["acceptedRequest"])
        set_value(answer, {**value_of(answer), "verdict": verdict, "result": {"token": "abc", "paid": 20}})

    request = request_of(await journal_of("completed-decisions", asked_in_full(), about_outcome), "2")

    assert (request.kind, request.outcome) == ("outcome", outcome)
    assert request.answer is not None
    assert request.answer.result == {"token": "[masked]", "paid": 20}


def timer(kind: str, **attributes: Any) -> dict[str, Any]:
    name = {"started": "STARTED", "fired": "FIRED", "canceled": "CANCELED"}[kind]
    summary = {"userMetadata": {"summary": payload_of("stuck: refund: order A-1")}} if kind == "started" else {}
    return {"eventType": f"EVENT_TYPE_TIMER_{name}", f"timer{kind.title()}EventAttributes": attributes, **summary}


async def test_a_stuck_step_and_its_retry_are_told() -> None:
    retry = {"step": "1", "requested_by": "ann", "requested_at": "2026-11-29T22:20:52Z", "reason": "it is up again"}
    stuck = after(
        33,
        {**timer("started", timerId="1", startToFireTimeout="60s"), "eventId": "8000"},
        signal("retry_run", {**retry, "usage_limits": {"request_limit": 9}}),
        timer("canceled", timerId="1", startedEventId="8000"),
    )
    journal = await journal_of("completed-decisions", stuck)

    assert [(one.label, one.outcome) for one in journal.stuck] == [("refund: order A-1", "retried")]
    (told,) = journal.retries
    assert (told.by, told.step, told.reason, told.via) == ("ann", "1", "it is up again", "signal")
    assert told.usage_limits == {"request_limit": 9}


@pytest.mark.parametrize(("step", "outcome"), [("1", "retried"), ("", "retried"), ("2", "given_up")])
@pytest.mark.parametrize("first", ["time", "retry"])
async def test_a_retry_in_the_task_in_which_the_time_is_over_counts(step: str, outcome: str, first: str) -> None:
    over = timer("fired", timerId="1", startedEventId="8000")
    retry = signal("retry_run", {"step": step, "requested_at": "2026-11-29T22:20:52Z"})
    started = {**timer("started", timerId="1", startToFireTimeout="60s"), "eventId": "8000"}
    both = [over, retry] if first == "time" else [retry, over]
    journal = await journal_of("completed-decisions", after(33, started, *both))

    assert [one.outcome for one in journal.stuck] == [outcome]


@pytest.mark.parametrize(("step", "outcome"), [("4", "retried"), ("1", "given_up")])
async def test_stuck_steps_are_numbered_over_the_executions_of_a_run(step: str, outcome: str) -> None:
    def change(document: dict[str, Any]) -> None:
        retry = signal("retry_run", {"step": step, "requested_at": "2026-11-29T22:20:52Z"})
        started = {**timer("started", timerId="1", startToFireTimeout="60s"), "eventId": "8000"}
        after(33, started, retry, timer("fired", timerId="1", startedEventId="8000"))(document)
        (given,) = document["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
        run = json.loads(base64.b64decode(given["data"]))
        given |= payload_of({**run, "carried": {"stuck": 3}})

    journal = await journal_of("completed-decisions", change)

    assert [one.outcome for one in journal.stuck] == [outcome]


async def test_a_step_that_was_stuck_when_its_run_ended_was_so_until_then() -> None:
    stuck = after(33, timer("started", timerId="1", startToFireTimeout="60s"))
    journal = await journal_of("completed-decisions", stuck)

    assert [(one.outcome, one.until) for one in journal.stuck] == [("ended", journal.ended_at)]


async def test_a_run_that_is_stuck_says_so() -> None:
    stuck = after(33, timer("started", timerId="1", startToFireTimeout="60s"))

    assert (await journal_of("open-awaiting-approval", stuck)).status == "stuck"


async def test_a_retry_that_was_refused_says_why() -> None:
    def update(document: dict[str, Any]) -> None:
        accepted = event(document, 44)["workflowExecutionUpdateAcceptedEventAttributes"]["acceptedRequest"]["input"]
        accepted["name"] = "submit_retry"
        accepted["args"] = {"payloads": [payload_of({"requested_by": "bob", "requested_at": "2026-11-29T22:20:52Z"})]}
        done = event(document, 46)["workflowExecutionUpdateCompletedEventAttributes"]
        done["outcome"] = {"failure": {"message": "nothing is stuck", "applicationFailureInfo": {"type": "Refused"}}}

    journal = await journal_of("completed-decisions", update)

    assert [(one.by, one.via, one.refused) for one in journal.retries] == [("bob", "update", "nothing is stuck")]


async def test_an_execution_that_goes_on_as_another_names_it() -> None:
    def continued(document: dict[str, Any]) -> None:
        document["events"][-1] = {
            **{name: document["events"][-1][name] for name in ("eventId", "eventTime")},
            "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
            "workflowExecutionContinuedAsNewEventAttributes": {"newExecutionRunId": "next"},
        }
        started = event(document, 1)["workflowExecutionStartedEventAttributes"]
        started["continuedExecutionRunId"] = "before"

    journal = await journal_of("completed-plain", continued)

    assert (journal.status, journal.continued_as, journal.continued_from) == ("continued", "next", "before")


async def test_a_step_that_was_in_flight_when_the_run_was_ended_is_abandoned() -> None:
    end = {
        "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED",
        "workflowExecutionTerminatedEventAttributes": {"reason": "password=hunter2 was seen"},
    }
    journal = await journal_of("open-awaiting-sub-run", after(14, end))

    assert [step.status for step in journal.steps] == ["completed", "abandoned"]
    assert (journal.status, journal.error) == ("terminated", "password=[masked] was seen")


async def test_a_run_of_a_tool_that_was_started_over_is_linked_twice() -> None:
    """Its call ran again by hand, after the first one had ended without an output."""

    def key(document: dict[str, Any]) -> None:
        payload = payloads(event(document, 13)["activityTaskScheduledEventAttributes"]["input"])[0]
        value = value_of(payload)
        context = {**value["serialized_run_context"], "interlock_key": "0123456789abcdef" * 2}
        set_value(payload, {**value, "serialized_run_context": context})

    report = {"workflow_id": "completed-sub-run/payer-0123456789abcdef-1", "agent": "payer"}
    reports = [
        {**report, "usage": None},
        {**report, "usage": {"requests": 1, "input_tokens": 5}},
        {**report, "usage": None},
    ]
    signals = [signal("report_sub_run", one) for one in reports]
    for number, one in enumerate(signals):
        attributes = one["workflowExecutionSignaledEventAttributes"]
        attributes["externalWorkflowExecution"] = {"workflowId": report["workflow_id"], "runId": f"run-{number // 2}"}
    journal = await journal_of("completed-sub-run", key, after(18, *signals))

    told = [(one.run_id, one.position, one.status) for one in journal.sub_runs if one.run_id.startswith("run-")]
    assert told == [("run-0", 2, "ended"), ("run-1", 2, "running")]
    assert len(journal.steps[1].sub_runs) == 2
    page(journal)


async def test_a_report_of_a_stranger_is_no_run_of_this_one() -> None:
    stranger = signal("report_sub_run", {"workflow_id": "somebody/else-1-1", "agent": "evil"})

    assert (await journal_of("completed-plain", after(4, stranger))).sub_runs == ()


async def test_a_child_workflow_is_linked_with_its_end() -> None:
    attributes = {"workflowId": "child-1", "workflowType": {"name": "Report"}}
    begun = {"startChildWorkflowExecutionInitiatedEventAttributes": attributes}
    failed = {"message": "no paper", "applicationFailureInfo": {"type": "PrinterError"}}
    ended = {"childWorkflowExecutionFailedEventAttributes": {"initiatedEventId": "8000", "failure": failed}}
    journal = await journal_of(
        "completed-plain",
        after(
            4,
            {"eventType": "EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED", **begun, "eventId": "8000"},
            {"eventType": "EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED", **ended},
        ),
    )

    assert [(one.workflow_id, one.workflow_type, one.status, one.error) for one in journal.sub_runs] == [
        ("child-1", "Report", "failed", "PrinterError: no paper")
    ]


# Workflows that are no runs of agents, and payloads that nobody can read.


def foreign(document: dict[str, Any]) -> None:
    event(document, 1)["workflowExecutionStartedEventAttributes"]["workflowType"]["name"] = "Invoices"
    for one in scheduled(document):
        one["activityTaskScheduledEventAttributes"]["activityType"]["name"] = "print_invoice"
        one["activityTaskScheduledEventAttributes"]["input"] = {"payloads": [payload_of({"invoice": 7})]}
        one.pop("userMetadata")


async def test_a_workflow_of_somebody_elses_is_shown_without_agents() -> None:
    journal = await journal_of("completed-plain", foreign)

    assert (journal.workflow_type, journal.agent, journal.agent_path) == ("Invoices", "", ())
    assert {(step.kind, step.name, step.summary, step.agent) for step in journal.steps} == {
        ("other", "print_invoice", "print_invoice", "")
    }
    assert [step.status for step in journal.steps] == ["completed"] * 5
    assert "Invoices" in page(journal)


def unreadable(document: dict[str, Any]) -> None:
    for payload in payloads(document):
        payload["metadata"]["encoding"] = base64.b64encode(b"binary/encrypted").decode()
        payload["data"] = base64.b64encode(b"\x00\xffnot for you").decode()


@pytest.mark.parametrize("name", NAMES)
async def test_what_cannot_be_decoded_is_shown_as_not_readable(name: str) -> None:
    document = history(name, unreadable)
    journal = await journal_of(document)

    assert len(journal.steps) == len(scheduled(document))
    assert not journal.readable
    assert not any(step.readable for step in journal.steps)
    assert "(not readable)" in page(journal) or not journal.steps
    assert [step.status for step in journal.steps] == [step.status for step in (await journal_of(name)).steps]


class Reversed(PayloadCodec):
    """Turns bytes around, as an encryption would."""

    async def encode(self, payloads: Sequence[TemporalPayload]) -> list[TemporalPayload]:
        return [
            TemporalPayload(metadata={"encoding": b"reversed"}, data=one.SerializeToString()[::-1]) for one in payloads
        ]

    async def decode(self, payloads: Iterable[TemporalPayload]) -> list[TemporalPayload]:
        return [TemporalPayload.FromString(one.data[::-1]) for one in payloads]


async def test_payloads_are_read_through_the_clients_codec() -> None:
    converter = dataclasses.replace(pydantic_data_converter, payload_codec=Reversed())
    document = history("completed-judge")
    plain = await journal_of(document)
    for payload in payloads([one for one in document["events"] if "SearchAttributes" not in str(one["eventType"])]):
        metadata = {name: base64.b64decode(value) for name, value in payload["metadata"].items()}
        (encoded,) = await Reversed().encode(
            [TemporalPayload(metadata=metadata, data=base64.b64decode(payload.get("data", "")))]
        )
        payload["metadata"] = {"encoding": base64.b64encode(b"reversed").decode()}
        payload["data"] = base64.b64encode(encoded.data).decode()
    journal = await journal_of(document, converter=converter)

    different = {"read_at", "history_bytes", "bytes_in", "bytes_out", "steps"}
    assert journal.model_dump(exclude=different) == plain.model_dump(exclude=different)
    sizes = {"bytes_in", "bytes_out"}
    assert [one.model_dump(exclude=sizes) for one in journal.steps] == [
        one.model_dump(exclude=sizes) for one in plain.steps
    ]
    assert all(one.bytes_in > before.bytes_in for one, before in zip(journal.steps, plain.steps, strict=True))


async def test_a_failure_whose_text_is_encoded_is_read_all_the_same() -> None:
    def encoded(document: dict[str, Any]) -> None:
        failure = document["events"][-1]["workflowExecutionFailedEventAttributes"]["failure"]["cause"]
        failure["message"] = "Encoded failure"
        failure["encodedAttributes"] = payload_of({"message": "the token=abcdef12 is gone", "stack_trace": ""})

    journal = await journal_of("failed-approved-tool", encoded)

    assert journal.error == "ValueError: the token=[masked] is gone"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("name", ["completed-judge", "completed-tool-results", "completed-sub-run"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
async def test_nothing_that_is_stored_can_make_the_reader_fail(name: str, data: st.DataObject) -> None:
    def nonsense(document: dict[str, Any]) -> None:
        for payload in payloads(document):
            old = value_of(payload)
            if data.draw(st.booleans()):
                set_value(payload, data.draw(JSON))
            elif isinstance(old, dict) and old:
                set_value(payload, {**old, data.draw(st.sampled_from(sorted(old))): data.draw(JSON)})

    journal = await journal_of(name, nonsense)

    assert len(journal.steps) == len(scheduled(history(name)))
    assert Journal.model_validate_json(journal.model_dump_json()) == journal
    page(journal)


@pytest.mark.parametrize("fork", [7, {"rulings": 7}, {"rulings": [7, {}, {"place": "", "decision": "yes"}]}], ids=str)
async def test_a_fork_that_is_nonsense_is_read_all_the_same(fork: Any) -> None:
    def forked(document: dict[str, Any]) -> None:
        (given,) = payloads(event(document, 1)["workflowExecutionStartedEventAttributes"]["input"])
        set_value(given, {**value_of(given), "fork": fork})
        for one in scheduled(document):
            header = {"interlock-step": {"metadata": {"encoding": ""}, "data": ""}}
            one["activityTaskScheduledEventAttributes"]["header"] = {"fields": header}

    assert [one.outcome for one in (await journal_of("completed-decisions", forked)).requests] == [
        *("approved", "rejected", "approved")
    ]


# Secrets, and sizes.

CANARIES = ("canary1234567890abcdef", "hunter2hunter2", "topsecretpin")


def with_secrets(document: dict[str, Any]) -> None:
    said = f"Bearer {CANARIES[0]}, password={CANARIES[1]}"
    rewritten(lambda text: text.replace("A-1001", said).replace("too late", said).replace('"ann"', f'"{said}"'))(
        document
    )
    for one in scheduled(document):
        for payload in payloads(one["activityTaskScheduledEventAttributes"]["input"]):
            value = value_of(payload)
            if isinstance(value, dict) and "tool_args" in value:
                set_value(payload, {**value, "tool_args": {**value["tool_args"], "apiKey": CANARIES[2]}})
            elif isinstance(value, dict) and "toolset" in value:
                set_value(payload, {**value, "request_id": "1", "arguments": {"pins": {"secret": CANARIES[2]}}})


@pytest.mark.parametrize(
    "name", ["completed-decisions", "completed-judge", "completed-by-signals", "completed-sub-run"]
)
async def test_no_secret_is_in_a_journal_or_on_its_page(name: str) -> None:
    journal = await journal_of(name, with_secrets)
    shown = journal.model_dump_json() + page(journal)

    assert [canary for canary in CANARIES if canary in json.dumps(history(name, with_secrets))] == []  # It is encoded.
    assert [canary for canary in CANARIES if canary in shown] == []
    assert "[masked]" in shown


@pytest.mark.parametrize("name", ["failed-approved-tool", "failed-model", "failed-hook"])
async def test_no_secret_is_in_an_error(name: str) -> None:
    def leaking(document: dict[str, Any]) -> None:
        rewritten(lambda text: text.replace("it is broken", f"token={CANARIES[1]}"))(document)
        rewritten(lambda text: text.replace("division by zero", f"token={CANARIES[1]}"))(document)
        rewritten(lambda text: text.replace("no such shelf", f"token={CANARIES[1]}"))(document)

    journal = await journal_of(name, leaking)

    assert str(journal.error).endswith("token=[masked]")
    assert CANARIES[1] not in journal.model_dump_json() + page(journal)


async def test_a_journal_stays_small_whatever_a_tool_is_called_with() -> None:
    large = {"text": "x" * 1_000_000, "many": list(range(10_000)), "deep": json.loads("[" * 90 + "]" * 90)}

    def swollen(document: dict[str, Any]) -> None:
        for one in scheduled(document):
            for payload in payloads(one["activityTaskScheduledEventAttributes"]["input"]):
                value = value_of(payload)
                if isinstance(value, dict) and "tool_args" in value:
                    set_value(payload, {**value, "tool_args": large})

    journal = await journal_of("completed-decisions", asked_in_full(**large), swollen)

    assert len(journal.model_dump_json()) < 100_000
    (arguments,) = {json.dumps(step.arguments) for step in journal.steps if step.kind == "tool"}
    assert "… (998,000 characters more)" in json.loads(arguments)["text"]


async def test_a_reader_tells_of_each_step_as_it_begins_and_ends() -> None:
    reader = HistoryReader(pydantic_data_converter)
    told: list[Step] = []
    for one in WorkflowHistory.from_json("stored", json.dumps(history("completed-without-a-tool"))).events:
        if step := await reader.read(one):
            told.append(step)

    assert [(step.position, step.status, step.attempts) for step in told] == [
        (1, "scheduled", 0),
        (1, "scheduled", 1),
        (1, "completed", 1),
    ]
