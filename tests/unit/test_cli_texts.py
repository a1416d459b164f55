"""What the command line prints: harmless, exact, and ready to be copied."""

import io
import json
import logging
import shlex
import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from interlock.cli._console import line, plain, to_json
from interlock.cli._format import duration
from interlock.cli._logs import log_to_stderr
from interlock.cli._progress import Progress
from interlock.cli._requests import (
    commands_for,
    request_document,
    request_text,
    requests_table,
    stuck_text,
    waiting_text,
)
from interlock.cli._runs import steps_table
from interlock.contracts.payloads import ApprovalRequest, RequestKind, RunState, StuckStep
from interlock.journal import RunEvent, Step

NOW = datetime.now(UTC)
EVIL = "A\x1b[31m\x9b2J\x07\r\u202eB [bold]x[/]\ud800"


def request(
    arguments: dict[str, Any] | None = None,
    *,
    kind: RequestKind = "approval",
    id: str = "run-1",
    number: str = "1",
    question: str = "",
) -> ApprovalRequest:
    return ApprovalRequest(
        workflow_id=id,
        run_id="r",
        request_id=number,
        kind=kind,
        agent_path=("lead", "support"),
        tool="refund",
        description="Pay an order back.",
        call_id="c1",
        arguments={"order": "A-1", "amount": 42.0} if arguments is None else arguments,
        digest="d",
        question=question,
        requested_at=NOW,
    )


def event(kind: str, **more: Any) -> RunEvent:
    return RunEvent(offset=0, at=NOW, kind=kind, agent_path=("support",), **more)


def shown(renderable: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_characters_that_act_on_a_terminal_are_shown_as_escapes() -> None:
    assert plain(EVIL) == r"A\x1b[31m\x9b2J\x07\r\u202eB [bold]x[/]\ud800"
    assert plain("Grüße,\n\t👩‍🚒 שלום") == "Grüße,\n\t👩‍🚒 שלום"
    assert line("a\n\n b\x00") == r"a b\x00"


def test_json_is_harmless_and_says_the_same() -> None:
    text = to_json({"order": EVIL, "hidden": "\U000e0041"})

    assert json.loads(text) == {"order": EVIL, "hidden": "\U000e0041"}
    assert text == plain(text)


@pytest.mark.parametrize("width", [80, 10_000])
def test_a_table_of_requests_shows_arguments_exactly_and_harmlessly(width: int) -> None:
    text = shown(requests_table([request({"order": EVIL, "amount": "42"})]), width)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text  # Not taken for markup.
    assert 'amount "42"' in text
    assert all(len(row) <= width for row in text.splitlines())


def test_a_long_argument_is_cut_in_the_table_and_says_so_but_is_whole_where_it_is_decided() -> None:
    long = request({"text": "x" * 1_000})

    assert "702 characters more; --json shows all" in shown(requests_table([long]), 10_000)
    assert "x" * 1_000 in shown(request_text(long), 10_000)


def test_an_edit_is_shown_with_what_it_replaces_adds_and_leaves_out() -> None:
    text = shown(request_text(request(), edited={"amount": 10, "note": "n"}))

    assert 'order "A-1" -> -' in text
    assert "amount 42.0 -> 10" in text
    assert 'note - -> "n"' in text


def test_the_commands_that_settle_a_request_can_be_pasted_into_a_shell() -> None:
    approve, reject = commands_for(request(id="ticket 7; rm -rf $HOME"))
    (complete,) = commands_for(request(kind="tool_result"))

    assert shlex.split(approve)[-3:] == ["ticket 7; rm -rf $HOME", "1", "--approve"]
    assert shlex.split(reject)[-3:] == ["--reject", "--reason", "TEXT"]
    assert complete == "interlock tools complete run-1 1 --result JSON"


def test_a_call_of_unknown_outcome_is_asked_about_with_its_own_commands() -> None:
    asked = request(kind="outcome", question="It ended with OSError. Did it happen?")

    assert [shlex.split(command)[5] for command in commands_for(asked)] == ["--happened", "--not-happened", "--give-up"]
    assert "refund: order A-1, amount 42.00  was approved; did it happen?" in shown(waiting_text(asked))
    assert "It ended with OSError. Did it happen?" in shown(request_text(asked))


def test_a_stuck_step_is_shown_with_its_reason_and_the_command_that_helps() -> None:
    step = StuckStep(
        step_id="1",
        kind="tool",
        agent_path=("support",),
        label="send: number 2",
        error_type="OSError",
        message=EVIL,
        since=NOW,
        ends_at=NOW,
    )
    label, why, command = stuck_text("run 1", step)

    assert shown(label).startswith("! send: number 2  is stuck (until ")
    assert shown(why).strip() == f"OSError: {line(EVIL)}"
    assert shlex.split(shown(command)) == ["interlock", "runs", "retry", "run 1"]
    assert shlex.split(shown(stuck_text("run 1", step, alone=False)[-1]))[-2:] == ["--step", "1"]


def test_a_request_document_begins_with_the_promised_keys() -> None:
    keys = list(request_document(request()))

    assert keys[:6] == ["workflow_id", "request_id", "agent_path", "tool", "arguments", "requested_at"]
    assert {"kind", "description", "digest"} <= set(keys)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (0.42, "0.4 s"), (75, "75 s"), (150, "2 min"), (10_800, "3 h"), (500_000, "6 d")],
)
def test_time_spans_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_progress_without_a_terminal_adds_one_line_for_each_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    waiting = RunState(status="awaiting_approval", agent="support", requests=[request()])
    decided = {"request_id": "1", "name": "refund", "status": "approved", "by": "ann", "text": EVIL}

    progress = Progress("run-1")
    with progress.live():
        progress.event("run-1", event("step_started", step=1, text="model m, turn 1"))
        progress.event("run-1", event("text", step=1, text=f"I look.\n{EVIL}"))
        progress.event("run-1", event("attempt_failed", step=1, attempt=1, error="OSError"))
        progress.event("run-1", event("text", step=1, text=f"I look again.\n{EVIL}"))
        progress.event("run-1", event("call", step=1, name="refund", call_id="c1"))
        progress.event(
            "run-1",
            event("step_finished", step=1, step_kind="model", text="calls refund", status="completed", attempt=2),
        )
        progress.state(waiting)
        progress.state(waiting)
        progress.event("run-1", event("approval_escalated", request_id="1", name="refund", text=f"ops, {EVIL}"))
        progress.event("run-1", event("approval_decided", arguments={"order": "A-2"}, **decided))
        progress.event("run-1", event("step_started", step=2, text="refund"))
        progress.event("run-1", event("progress", step=2, done=1, total=2))
        progress.event("run-1", event("step_finished", step=2, status="completed", attempt=2))
        progress.event("run-1/below", event("step_started", step=1, text="look"))
        progress.event("run-1/below", event("step_finished", step=1, status="failed", error="OSError"))

    assert isinstance(sys.stderr, io.StringIO)
    assert [row.split("  ")[0] for row in sys.stderr.getvalue().splitlines() if row.strip()] == [
        "! model m, turn 1: attempt 1 failed: OSError",
        "✓ model m, turn 1",
        "",
        "",
        "? refund: order A-1, amount 42.00",
        "",
        "",
        f"? refund (request 1) is escalated to ops, {line(EVIL)}",
        f"✓ refund (request 1) approved by ann, arguments edited: {line(EVIL)}",
        "✓ refund",
        "✗ support: look",
    ]
    assert "    I look again.\n" in sys.stderr.getvalue()
    assert "2 attempts" in sys.stderr.getvalue()
    assert "    interlock approvals decide run-1 1 --approve\n" in sys.stderr.getvalue()


def test_a_log_line_carries_its_facts_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_stderr(verbose=False)
    try:
        raise ValueError("a\nb")
    except ValueError:
        logging.getLogger("interlock.worker").warning("tool.blocked", extra={"tool": "refund"}, exc_info=True)

    said = capsys.readouterr().err
    assert said.endswith("WARNING tool.blocked tool=refund (ValueError: a b)\n")


def test_a_question_that_a_run_cannot_answer_is_one_short_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = 'Failure { failure: Some(Failure { message: "[TMPRL1100] not \\"a\\"", source: "" }) }'
    log = SimpleNamespace(message="Failing legacy query request", fields={"run_id": "r1", "failure": failure})
    core = logging.getLogger("temporalio.core")
    monkeypatch.setattr(logging.root, "handlers", [])
    log_to_stderr(verbose=False)
    for fields in (log.fields, dict(reversed(log.fields.items()))):
        log.fields = fields
        core.warning("%s %s", log.message, log.fields, extra={"temporal_log": log})

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith(' WARNING Failing legacy query request failure=[TMPRL1100] not "a" run_id=r1\n')


def test_the_steps_of_several_agents_say_whose_they_are() -> None:
    def step(position: int, agent: str) -> Step:
        summary = "model scripted, turn 1"
        return Step(position=position, kind="model", agent=agent, name="scripted", summary=summary, scheduled_at=NOW)

    assert "Agent" not in shown(steps_table([step(1, "support")]))
    table = shown(steps_table([step(1, "support"), step(2, "payer")]))
    assert [row.split()[:2] for row in table.splitlines() if "scripted" in row] == [["1", "support"], ["2", "payer"]]
