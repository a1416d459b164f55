"""What the Temporal UI shows of an open run: true to what it waits for, and nothing of it made by a model."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from interlock.contracts.masking import MASK, call_label
from interlock.contracts.payloads import ApprovalRequest, RunState, Settled, StuckStep, SubRun, Usage
from interlock.workflows.view import details

AT = datetime(2026, 11, 2, 9, 30, 15, tzinfo=UTC)


def request(**fields: Any) -> ApprovalRequest:
    known: dict[str, Any] = {"workflow_id": "ticket-7", "run_id": "r", "request_id": "1", "agent_path": ("support",)}
    known |= {"tool": "refund", "call_id": "call_1", "arguments": {"order": "A-1001", "amount": 42.0}, "digest": "d"}
    return ApprovalRequest.model_validate({**known, "requested_at": AT, **fields})


def settled(**fields: Any) -> Settled:
    known = {"request_id": "1", "tool": "refund", "label": "refund: order A-1001", "outcome": "approved", "at": AT}
    return Settled.model_validate({**known, **fields})


def stuck(**fields: Any) -> StuckStep:
    known = {"step_id": "1", "kind": "tool", "agent_path": ("support",), "label": "send: number 2", "since": AT}
    return StuckStep.model_validate({**known, "ends_at": AT, **fields})


def state(status: Any = "running", **fields: Any) -> RunState:
    return RunState(status=status, agent="support", **fields)


def lines(shown: str) -> list[str]:
    return [line.rstrip() for line in shown.splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("running", "**support** · running"),
        ("awaiting_approval", "**support** · awaiting approval"),
        ("awaiting_tool_result", "**support** · awaiting tool result"),
        ("completed", "**support** · completed"),
        ("failed", "**support** · failed"),
        ("cancelled", "**support** · cancelled"),
    ],
)
def test_a_run_at_rest_says_what_it_is_and_nothing_more(status: str, line: str) -> None:
    assert details(state(status), []) == line


def test_an_open_request_shows_what_will_run_and_the_command_that_decides_it() -> None:
    shown = lines(details(state("awaiting_approval", requests=[request(agent_path=("support", "payer"))]), []))

    assert shown[1:] == [
        "### Waits for a person",
        "- request 1: **refund: order A-1001, amount 42.00** (support / payer), since 2026-11-02 09:30:15 UTC",
        "  `interlock approvals decide ticket-7 1 --approve`",
    ]


def test_a_call_that_runs_outside_shows_the_command_that_gives_its_result() -> None:
    shown = lines(details(state("awaiting_tool_result", requests=[request(kind="tool_result")]), []))

    assert shown[2].startswith("- the result of **refund: order A-1001, amount 42.00** (support)")
    assert shown[3].startswith("  `interlock tools complete ticket-7 ")
    assert shown[3].endswith(" --result JSON`")


def test_requests_are_shown_in_their_order() -> None:
    requests = [request(request_id=str(n), arguments={"order": f"A-{n}"}) for n in (1, 2, 10)]
    shown = lines(details(state("awaiting_approval", requests=requests), []))

    assert [line.partition(":")[0] for line in shown if line.startswith("- ")] == [
        "- request 1",
        "- request 2",
        "- request 10",
    ]


def test_a_secret_is_masked_here_too() -> None:
    shown = details(state("awaiting_approval", requests=[request(arguments={"api_key": "hunter2"})]), [])

    assert "hunter2" not in shown
    assert "masked" in shown


def test_activities_in_flight_and_agents_at_work_are_shown() -> None:
    runs = [
        SubRun(workflow_id="ticket-7/payer-1", agent="payer"),
        SubRun(workflow_id="ticket-7/reader-1", agent="reader", usage=Usage(requests=1)),
    ]
    shown = lines(details(state(sub_runs=runs), ["model scripted, turn 1", "look up: order A-1001"]))

    assert shown[1:] == [
        "### Now",
        "- model scripted, turn 1",
        "- look up: order A-1001",
        "### Agents at work",
        "- payer: `ticket-7/payer-1`",
    ]


def test_a_stuck_step_shows_what_failed_and_the_command_that_has_it_run_again() -> None:
    shown = details(state("stuck", stuck=[stuck(error_type="OSError", message="no route")]), [], "ticket-7")

    assert [line.strip() for line in lines(shown)] == [
        "**support** · stuck",
        "### Stuck",
        "- **send: number 2** has failed for good: OSError: no route. The run ends by this at 2026-11-02 09:30:15 UTC "
        "unless it is retried",
        "`interlock runs retry ticket-7`",
    ]


def test_a_call_of_unknown_outcome_shows_the_commands_that_settle_it() -> None:
    shown = details(state("awaiting_approval", requests=[request(kind="outcome", question="Did it happen?")]), [])

    assert "did **refund: order A-1001, amount 42.00** (support) happen? Did it happen?" in shown
    assert "`interlock approvals decide ticket-7 1 --happened --result JSON`" in shown
    assert "`interlock approvals decide ticket-7 1 --not-happened`" in shown


def test_what_was_decided_shows_by_whom_how_and_why() -> None:
    decided = [
        settled(by="ann", edited=True),
        settled(request_id="2", outcome="rejected", by="bob", reason="too much"),
        settled(request_id="3", outcome="withdrawn"),
    ]
    shown = lines(details(state(settled=decided), []))

    assert shown[1:] == [
        "### Decided",
        "- request 1, refund: order A-1001: approved by ann, arguments edited",
        "- request 2, refund: order A-1001: rejected by bob: too much",
        "- request 3, refund: order A-1001: withdrawn",
    ]


def test_only_the_last_ten_decisions_are_shown() -> None:
    shown = details(state(settled=[settled(request_id=str(n)) for n in range(1, 31)]), [])

    assert [line.partition(",")[0] for line in lines(shown)[2:]] == [f"- request {n}" for n in range(21, 31)]


PARSER = MarkdownIt("commonmark").enable(["strikethrough", "table"])
TRUSTED = {"heading", "paragraph", "bullet_list", "list_item", "strong", "inline", "text", "code_inline"}


def pieces(shown: str) -> list[Token]:
    found = PARSER.parse(shown)
    return [piece for token in found for piece in (token, *(token.children or []))]


def kinds(shown: str) -> list[str]:
    return [piece.type.removesuffix("_open").removesuffix("_close") for piece in pieces(shown)]


def read(shown: str) -> str:
    """The text as a person reads it in the rendered page."""
    text = [piece.content if piece.type in ("text", "code_inline") else " " for piece in pieces(shown) if piece.level]
    return " ".join("".join(text).split())


EVIL = [
    "[approve](https://evil.example)",
    "![x](https://evil.example/x.png)",
    "<https://evil.example>",
    "<script>alert(1)</script>",
    "<b onclick=x>b</b>",
    "x\n\n# Waits for nobody\n\n- item",
    "x\r\r# Waits for nobody\r- item",
    "x\u2028# heading",
    "**bold** _it_ ~~gone~~ `code` ``",
    "|a|b|\n|-|-|\n|c|d|",
    "[ref]: https://evil.example",
    "&lt;b&gt; &#91;x&#93;(y)",
    "***\n---\n===",
    "> quote",
    "\\",
    "`",
    "a`b``c",
]


def everywhere(text: str) -> tuple[RunState, list[str]]:
    """A run that has a text in every place where a model or an outsider could put one."""
    readable = text.encode(errors="replace").decode()
    asked = {"arguments": {"note": text, text or "x": 1}, "call_id": text or "x", "workflow_id": text or "x"}
    return RunState(
        status="awaiting_approval",
        agent=text or "x",
        requests=[
            request(**asked, agent_path=("support", text)),
            request(**asked, agent_path=("support", text), kind="tool_result"),
            request(**asked, agent_path=("support", text), kind="outcome", question=text),
        ],
        stuck=[stuck(label=text, error_type=text, message=text)],
        settled=[settled(by=text, reason=text, label=f"refund: note {text}")],
        # Text that is no Unicode cannot be in the report of a sub-run: it is refused.
        sub_runs=[SubRun(workflow_id=readable or "x", agent=f"payer{readable}")],
    ), [f"refund: note {text}"]


@pytest.mark.parametrize("text", EVIL)
def test_text_of_a_model_or_a_reviewer_never_becomes_markdown(text: str) -> None:
    harmless, evil = (details(*everywhere(one)) for one in ("x", text))

    assert set(kinds(evil)) - {"hardbreak", "softbreak"} <= TRUSTED
    assert [kind for kind in kinds(evil) if kind not in ("text", "softbreak")] == [
        kind for kind in kinds(harmless) if kind not in ("text", "softbreak")
    ]


@pytest.mark.parametrize("text", [*EVIL, "https://evil.example", "Größe 寸法 \N{PARTY POPPER}", "A-1001 (42.00)"])
def test_a_person_reads_the_text_as_it_is(text: str) -> None:
    arguments = {"note": text}
    shown = details(state("awaiting_approval", requests=[request(arguments=arguments)]), [])

    assert call_label("refund", arguments) in read(shown)
    assert MASK not in read(shown)


@settings(max_examples=60, deadline=None)
@given(st.text("a 1.-+*_`[](){}<>#|!~&;:\\\"'/=\n\r\t\u2028\ud800\x00", max_size=12))
@example("1. x")
@example("- x")
@example("+ x")
def test_no_text_at_all_becomes_markdown(text: str) -> None:
    shown = details(*everywhere(text))

    assert set(kinds(shown)) - {"hardbreak", "softbreak"} <= TRUSTED
    assert kinds(shown).count("heading") == kinds(shown).count("bullet_list") == 2 * 5
