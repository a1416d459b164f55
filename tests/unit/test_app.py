"""An app that cannot run durably says so where it is made, in one line that says what to do."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from interlock import Interlock, MisconfiguredError, Retries, Settings
from interlock.adapters.pydantic_ai import Durable


def durable(name: str = "support", **options: Any) -> Agent[Any, Any]:
    return Agent(TestModel(), name=name, capabilities=[Durable()], **options)


def cut_in_half(order: str) -> str:
    """Look an order up \ud83d."""
    return order


def cut_in_a_parameter(order: str) -> str:
    """Look an order up.

    Args:
        order: Its number \ude00.
    """
    return order


class Connection:
    """A dependency that lives in one process only."""


@dataclass
class HoldsOne:
    tenant: str
    connection: Connection


class Tenant(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("agents", "message"),
    [
        ([], r"Interlock\(agents=\[\]\) has no agents\. Give it at least one\."),
        ([durable(), durable()], r"Two agents have the name 'support'\. Give each a name of its own\."),
        (
            [Agent(TestModel(), capabilities=[Durable(name="x")])],
            r'An agent has no name\. Give it one where it is made: Agent\(\.\.\., name="support"\)\.',
        ),
        (
            [Agent(TestModel(), name="s" * 201, capabilities=[Durable()])],
            r"The name of agent 's{40}'\.\.\. has 201 characters; at most 200 fit\.",
        ),
        (
            [Agent(TestModel(), name="plain")],
            r"Agent 'plain' has no `Durable\(\)`: .* Add `capabilities=\[Durable\(\)\]` from interlock\.adapters",
        ),
        (
            [durable(), "support"],
            r"builtins\.str is not an agent that Interlock can run\. Give it agents of pydantic-ai",
        ),
        ([None], r"builtins\.NoneType is not an agent"),
        ([Agent], r"is not an agent"),
        ([TestModel()], r"TestModel is not an agent"),
        ([durable(deps_type=Connection)], r"dependency type Connection of agent 'support' cannot travel .* Make it a"),
        ([durable(deps_type=HoldsOne)], r"dependency type HoldsOne of agent 'support' cannot travel"),
        ([durable(deps_type=Connection | None)], r"dependency type .*Connection \| None of agent 'support' cannot"),
        ([durable(deps_type=list[Connection])], r"dependency type list.* of agent 'support' cannot"),
        (durable(), r"takes a list of agents"),
        ([durable(tools=[cut_in_half])], r"Tool 'cut_in_half' of agent 'support' has '\\ud83d' in its name, its doc"),
        ([durable(tools=[cut_in_a_parameter])], r"Tool 'cut_in_a_parameter' of agent 'support' has '\\ude00' in its"),
    ],
    ids=[
        "none",
        "twice",
        "no-name",
        "long-name",
        "not-durable",
        "text",
        "null",
        "class",
        "model",
        "deps",
        "deps-inside",
        "deps-or",
        "deps-list",
        "no-list",
        "tool-text",
        "parameter-text",
    ],
)
def test_an_app_that_cannot_work_is_refused_in_one_line(agents: Any, message: str) -> None:
    with pytest.raises(MisconfiguredError, match=message) as refused:
        Interlock(agents)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"toolsets": [FunctionToolset([])]}, r"need to have a unique `id` .* `FunctionToolset\(id=\.\.\.\)`"),
        (
            {"toolsets": [FunctionToolset([], id="x"), FunctionToolset([], id="x")]},
            "Two toolsets have the same `id` 'x'",
        ),
        ({"model": None}, "needs to have a `model`"),
    ],
    ids=["toolset-id", "toolset-ids", "no-model"],
)
def test_an_agent_that_cannot_be_recorded_is_refused_where_it_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Agent(**{"model": TestModel(), **options}, name="support", capabilities=[Durable()])


@pytest.mark.parametrize("deps_type", [Tenant, Tenant | None, str, dict[str, int], type(None)], ids=str)
def test_dependencies_that_can_travel_are_taken(deps_type: Any) -> None:
    agent = durable(deps_type=deps_type)

    assert Interlock([agent]).agents == {"support": agent}


def test_agents_are_found_by_name() -> None:
    one, other = durable("one"), durable("other")

    assert Interlock([one, other]).agents == {"one": one, "other": other}


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_QUEUE", "refunds")
    monkeypatch.setenv("INTERLOCK_TOOL_TIMEOUT_SECONDS", "1.5")
    monkeypatch.setenv("INTERLOCK_MAX_CACHED_RUNS", "0")
    monkeypatch.setenv("INTERLOCK_SOMETHING_ELSE", "x")
    settings = Interlock([durable()]).settings

    assert (settings.task_queue, settings.tool_timeout_seconds, settings.max_cached_runs) == ("refunds", 1.5, 0)
    assert settings.lost_worker_seconds == Settings.model_fields["lost_worker_seconds"].default


def test_what_is_given_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_TASK_QUEUE", "from-the-environment")

    assert Settings.read(task_queue="given").task_queue == "given"
    assert Interlock([durable()], settings=Settings.read(task_queue="given")).settings.task_queue == "given"


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("task_queue", "", "at least 1 character"),
        ("tool_timeout_seconds", "ten", "valid number"),
        ("tool_timeout_seconds", "0", "greater than 0"),
        ("tool_timeout_seconds", "nan", "finite number"),
        ("tool_timeout_seconds", "inf", "finite number"),
        ("lost_worker_seconds", "-1", "greater than 0"),
        ("max_cached_runs", "-1", "greater than or equal to 0"),
        ("max_cached_runs", "1.5", "valid integer"),
        ("max_concurrent_activities", "0", "greater than or equal to 1"),
        ("graceful_shutdown_seconds", "soon", "valid number"),
        ("graceful_shutdown_seconds", "inf", "finite number"),
    ],
)
def test_a_setting_that_cannot_be_used_names_its_variable(
    field: str, value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"INTERLOCK_{field.upper()}"
    monkeypatch.setenv(variable, value)

    with pytest.raises(MisconfiguredError, match=f"A setting cannot be used: {variable}: .*{problem}") as refused:
        Interlock([durable()])
    assert "\n" not in str(refused.value)


def test_every_bad_setting_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_MAX_CACHED_RUNS", "-1")

    with pytest.raises(MisconfiguredError, match=r"INTERLOCK_TASK_QUEUE: .*; INTERLOCK_MAX_CACHED_RUNS: "):
        Settings.read(task_queue="")


def test_settings_stay_as_they_were_read() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.read().task_queue = "other"


def test_without_a_policy_of_its_own_no_call_is_tried_for_ever() -> None:
    retries = Retries()
    assert (retries.model.maximum_attempts, retries.of_tool("any").maximum_attempts) == (10, 5)


@pytest.mark.parametrize("given", ["support", ["support"], True, {1: 2}, {"other": 1}, {"support": "3"}], ids=str)
def test_a_review_is_said_of_agents_by_their_names(given: Any) -> None:
    with pytest.raises(MisconfiguredError, match=r"review"):
        Interlock([durable()], review=given)
