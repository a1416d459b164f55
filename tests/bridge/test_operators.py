"""What the operators are to Airflow."""

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator, task
from airflow.serialization.serialized_objects import SerializedBaseOperator  # type: ignore[attr-defined]

from interlock.bridge import (
    AgentWorkflowOperator,
    TemporalSignalOperator,
    TemporalWorkflowOperator,
    TemporalWorkflowSensor,
)
from interlock.bridge.outcome import Waited, own_event


@pytest.mark.parametrize(
    "operator", [AgentWorkflowOperator, TemporalWorkflowOperator, TemporalSignalOperator, TemporalWorkflowSensor]
)
def test_no_argument_hides_what_the_scheduler_needs(operator: Any) -> None:
    """A templated field is set on the scheduler's copy of the task, whatever Airflow itself means by the name."""
    scheduled = SerializedBaseOperator(task_id="any")
    assert not [name for name in operator.template_fields if hasattr(scheduled, name)]
    assert not [name for name in operator.template_fields if hasattr(BaseOperator, name)]


def test_each_argument_is_in_the_documentation_and_those_that_are_templates_are_marked() -> None:
    text = (Path(__file__).parents[2] / "docs" / "airflow.md").read_text()
    _, _, section = text.partition("### What it is given")
    rows = [line.split("|") for line in section.partition("### What it leaves")[0].splitlines() if line[:2] == "| "]
    # In a table for several operators, theirs is the first column.
    cells = [row[2] if len(row) == 6 else row[1] for row in rows]
    named = dict(re.findall(r"`(\w+)`(°?)", " ".join(cells)))
    operators: list[Any] = [
        AgentWorkflowOperator,
        TemporalWorkflowOperator,
        TemporalSignalOperator,
        TemporalWorkflowSensor,
    ]
    ours = [
        inspect.signature(one.__init__)
        for operator in operators
        for one in operator.__mro__
        if one.__module__.startswith("interlock.") and "__init__" in vars(one)
    ]
    arguments = {name for signature in ours for name in signature.parameters} - {"self", "kwargs"}
    templates = {name for operator in operators for name in operator.template_fields}

    assert named.keys() == arguments
    assert {name for name, mark in named.items() if mark} == templates


@task.agent_workflow(agent="support", prompt="help")
def two_prompts() -> str:
    return "help"


def agent(**options: Any) -> AgentWorkflowOperator:
    return AgentWorkflowOperator(task_id="any", agent="support", prompt="help", **options)


def billing(**options: Any) -> TemporalWorkflowOperator:
    return TemporalWorkflowOperator(task_id="any", workflow="Billing", **options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: agent(on_retry="atach"), "on_retry='atach' is not known; it is one of 'attach', 'new'."),
        (lambda: agent(wait_timeout=30), "wait_timeout=30 is a int; it is a timedelta."),
        (lambda: agent(poll_seconds="30"), "poll_seconds='30' is not known; it is a number above zero."),
        (lambda: agent(assignees="olga"), "assignees='olga' is a text; it is a list of the ids of Airflow users."),
        (lambda: billing(run_timeout=30), "run_timeout=30 is a int; it is a timedelta."),
        (two_prompts, "@task.agent_workflow takes no prompt: the function returns it."),
    ],
)
def test_a_wrong_argument_is_named_when_the_dag_is_read(make: Callable[[], Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(said)}$"):
        make()


def test_an_event_that_is_meant_for_another_wait_says_only_that_it_is_time_to_look() -> None:
    """It would end this task by another's result, or by the deadline of an earlier try."""
    now = datetime.now(UTC)
    own = Waited(temporal_conn_id="t", workflow_id="mine", run_id="r-2", began_at=now)
    others = [own.model_copy(update={"workflow_id": "theirs"}), own.model_copy(update={"began_at": now - timedelta(1)})]
    kept = own.model_dump(mode="json")

    mine = {"kind": "timeout", "waited": kept}
    assert own_event(kept, mine) == own_event(None, mine) == (own, mine)
    for other in others:
        event = {"kind": "timeout", "error": "broken", "waited": other.model_dump(mode="json")}
        assert own_event(kept, event) == (own, {"kind": "begun"})
