"""Time limits as people write them, where they are refused, and how a request with one is shown."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agents import Agent as OpenAIAgent
from agents import function_tool
from pydantic_ai import Agent, Tool
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from rich.console import Console
from temporalio.client import WorkflowHistory

from interlock import Interlock, MisconfiguredError
from interlock.adapters.openai_agents import approval
from interlock.adapters.pydantic_ai import Durable
from interlock.cli._requests import request_text, requests_table, waiting_text
from interlock.contracts.limits import limit_words, request_of_timer, time_limit, timer_summary
from interlock.contracts.payloads import ApprovalRequest, RunState, Stage
from interlock.journal import Step, read_journal
from interlock.journal._requests import Requests
from interlock.journal._words import settled, tone
from interlock.journal.html import page
from interlock.workflows.view import details

ROOT = Path(__file__).parents[2]
ESCALATE = {"after_seconds": 60, "then": "escalate", "to": ["ops-lead"]}
DENY = {"after_seconds": 3_600, "then": "deny"}

WRONG: dict[str, tuple[Any, str]] = {
    "not positive": ({"after_seconds": 0, "then": "deny"}, r"after_seconds: .*greater than 0"),
    "not finite": ({"after_seconds": float("inf"), "then": "deny"}, r"after_seconds: .*finite|less than"),
    "not a number": ({"after_seconds": "60", "then": "deny"}, r"after_seconds: .*valid number"),
    "not ascending": ([DENY | ESCALATE, DENY | {"after_seconds": 60}], "has to grow from stage to stage"),
    "approve": ({"after_seconds": 60, "then": "approve"}, r"then: .*'deny', 'fail' or 'escalate'"),
    "unknown word": ({"after_seconds": 60, "then": "deny", "unless": 1}, "a stage has no unless; it has after_seconds"),
    "nobody": ({"after_seconds": 60, "then": "escalate"}, "`escalate` needs `to`"),
    "to with deny": ({"after_seconds": 60, "then": "deny", "to": ["ann"]}, "`to` goes with `escalate`"),
    "a text for to": (ESCALATE | {"to": "ops-lead"}, r"to: .*tuple"),
    "after the end": ([DENY, ESCALATE | {"after_seconds": 7_200}], "nothing can follow 'deny'"),
    "no stage": (3_600, "not of type int"),
}


def pay() -> str:
    """Pay."""
    return ""


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_time_limit_is_refused_where_the_tool_is_made_or_registered(name: str) -> None:
    given, words = WRONG[name]
    durable = [Durable()]
    metadata = {"approval": given}
    in_toolset: list[Any] = [
        FunctionToolset([pay], id="one").with_metadata(**metadata).prefixed("x"),
        ExternalToolset([ToolDefinition(name="pay", metadata=metadata)], id="two"),
    ]
    with pytest.raises(MisconfiguredError, match=f"'support'.*'pay'.*{words}"):
        Interlock([Agent("test", name="support", tools=[Tool(pay, metadata=metadata)], capabilities=durable)])
    for toolset in in_toolset:
        with pytest.raises(MisconfiguredError, match=f"'support'.*{words}"):
            Interlock([Agent("test", name="support", toolsets=[toolset], capabilities=[Durable()])])
    with pytest.raises(MisconfiguredError, match=f"'pay'.*{words}"):
        approval(function_tool(pay), given)
    with pytest.raises(MisconfiguredError, match=f"approvals.*{words}"):
        Interlock([OpenAIAgent("support")], approvals=given)


def test_one_stage_is_the_same_as_a_list_of_it() -> None:
    assert time_limit(DENY) == time_limit([DENY]) == time_limit(Stage(after_seconds=3_600, then="deny"))
    assert time_limit([]).stages == ()
    with pytest.raises(MisconfiguredError, match="takes either after_seconds or a list"):
        approval(function_tool(pay), DENY, after_seconds=5)


def test_the_timer_of_a_stage_names_its_request() -> None:
    stage = Stage(after_seconds=1, then="escalate", to=("ops-lead", "cto"))

    assert timer_summary("12", stage) == "request 12: escalate"
    assert request_of_timer(timer_summary("12", stage)) == "12"
    assert request_of_timer("stuck: request 12: x") == ""


@pytest.mark.parametrize("folder", ["tests/replay/histories", "tests/replay/openai_agents/histories"])
async def test_the_journal_says_what_a_limit_made_of_a_request(folder: str) -> None:
    path = ROOT / folder / "AgentWorkflow.completed-limits.0.1.0.json"
    journal = await read_journal(WorkflowHistory.from_json("limits", path.read_text(encoding="utf-8")).events)
    denied, approved = journal.requests
    shown = page(journal)

    assert settled(denied).startswith("not answered in time after ")
    assert re.search(r", escalated to ops-lead at .* UTC: the call was denied$", settled(denied))
    assert re.search(r"^approved by ann after .*, escalated to ops-lead, cto at .* UTC$", settled(approved))
    assert (tone(denied), tone(approved)) == ("bad", "good")
    assert "the call was denied" in shown
    assert "escalated to ops-lead, cto at" in shown


@pytest.mark.parametrize("stages", [[ESCALATE, DENY], [DENY]], ids=["escalate", "deny"])
@pytest.mark.parametrize("taken", [True, False], ids=["taken", "refused"])
def test_an_update_that_came_with_the_end_of_the_time_counts(stages: list[Any], taken: bool) -> None:
    """The history has it behind the workflow task that took it, and that saw the limit reached."""
    opened = datetime(2026, 11, 2, 9, 30, tzinfo=UTC)
    step = Step(position=1, kind="description", agent="support", name="pay", summary="", scheduled_at=opened)
    requests = Requests()
    question = {"request_id": "1", "kind": "approval", "arguments": {}}
    asked = step.model_copy(update={"request_id": requests.ask(step, question, "pay"), "status": "completed"})
    requests.described(asked, {"fingerprint": "", "time_limit": {"stages": stages}}, 2)
    requests.began(2, opened)
    over = opened + timedelta(seconds=stages[0]["after_seconds"])
    requests.began(3, over)
    requests.reached("1", over, 3)
    decision = {"request_id": "1", "verdict": "approve", "decided_by": "ann", "decided_at": opened.isoformat()}
    if taken:
        requests.decide(decision, at=over, via="update", task=3, event_id=20)
        requests.confirm(20, {"request_id": "1"})
    (request,) = requests.all(over)
    escalates = stages[0] is ESCALATE

    assert request.outcome == ("approved" if taken else "open" if escalates else "timed_out")
    assert request.escalated_to == (("ops-lead",) if escalates and not taken else ())


REQUEST = ApprovalRequest(
    workflow_id="ticket-7",
    run_id="r",
    request_id="1",
    agent_path=("support",),
    tool="refund",
    call_id="a",
    arguments={"order": "A-1"},
    digest="d",
    requested_at=datetime(2026, 11, 2, 9, 30, tzinfo=UTC),
    escalated_at=datetime(2026, 11, 2, 10, 30, tzinfo=UTC),
    escalated_to=("ops-lead",),
    escalates_at=datetime(2026, 11, 2, 12, 0, tzinfo=UTC),
    escalates_to=("cto",),
    expires_at=datetime(2026, 11, 3, 9, 30, tzinfo=UTC),
    then="deny",
)


def test_everywhere_a_request_is_shown_it_says_to_whom_it_went_and_what_follows() -> None:
    words = (
        "escalated to ops-lead at 2026-11-02 10:30:00 UTC, goes to cto at 2026-11-02 12:00:00 UTC, "
        "is denied at 2026-11-03 09:30:00 UTC"
    )
    console = Console(width=400, force_terminal=False, color_system=None)
    with console.capture() as table:
        console.print(requests_table([REQUEST]))

    assert limit_words(REQUEST) == words
    assert limit_words(REQUEST.model_copy(update={"then": "fail"})).endswith("ends the run at 2026-11-03 09:30:00 UTC")
    assert words in table.get()
    assert words in waiting_text(REQUEST).plain
    assert words in request_text(REQUEST).plain
    assert words in details(RunState(status="awaiting_approval", agent="support", requests=[REQUEST]), [])
