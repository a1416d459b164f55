"""The words on the wire: what was written by any release is read by this one, and says the same."""

import inspect
import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import ValidationError
from pydantic_ai import Agent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError

from interlock import Client, Interlock
from interlock.activities.describe import DescribeTool
from interlock.activities.errors import typed_errors
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts import errors, names, payloads, sessions
from interlock.contracts.errors import (
    InterlockError,
    MisconfiguredError,
    RefusedError,
    RunFailedError,
    UnavailableError,
)
from interlock.contracts.payloads import (
    Decision,
    Parent,
    Payload,
    RunInput,
    SubRun,
    ToolDescription,
    ToolQuestion,
    Usage,
)
from interlock.server import EmbeddedServer
from interlock.worker import make_worker
from interlock.workflows.agent import AgentWorkflow
from interlock.workflows.session import SessionWorkflow

GOLDEN = Path(__file__).parent / "golden"
MODELS = {
    name: model
    for name, model in {**vars(payloads), **vars(sessions)}.items()
    if isinstance(model, type) and issubclass(model, Payload) and model.model_fields
}
FILES = sorted(path for path in GOLDEN.glob("*.json") if path.name.partition(".")[0] in MODELS)


def newest(model: str) -> Path:
    """The golden of a payload by the latest release that changed it."""
    return max(
        (path for path in FILES if path.name.startswith(f"{model}.") and path.name.split(".")[1].isdigit()),
        key=lambda path: [int(number) for number in path.name.split(".")[1:-1]],
    )


def holds(whole: Any, part: Any) -> bool:
    """Whether every value of a part is in the whole, at the same place."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return len(whole) == len(part) and all(map(holds, whole, part))
    return bool(whole == part)


@pytest.mark.parametrize("model", MODELS)
def test_every_payload_has_a_golden_that_shows_each_of_its_fields(model: str) -> None:
    """Without one: dump an example of the payload, with a value of its own in every field, into the folder."""
    assert any(path.name.startswith(f"{model}.") for path in FILES), f"{GOLDEN} has no {model}.<release>.json"
    golden = json.loads(newest(model).read_text())

    assert set(golden) == set(MODELS[model].model_fields)


@pytest.mark.parametrize("model", MODELS)
def test_the_newest_golden_comes_back_exactly(model: str) -> None:
    golden = json.loads(newest(model).read_text())
    loaded = MODELS[model].model_validate_json(json.dumps(golden))

    assert json.loads(loaded.model_dump_json()) == golden
    assert MODELS[model].model_validate_json(loaded.model_dump_json()) == loaded


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_golden_of_any_release_loads_and_loses_nothing(path: Path) -> None:
    golden = json.loads(path.read_text())
    model = MODELS[path.name.partition(".")[0]]
    known = {name: value for name, value in golden.items() if name in model.model_fields}

    assert holds(json.loads(model.model_validate(golden).model_dump_json()), known)


def test_a_payload_with_a_field_of_a_later_release_loads_without_it() -> None:
    loaded = Decision.model_validate_json((GOLDEN / "Decision.with-a-later-field.json").read_text())

    assert loaded == Decision.model_validate_json(newest("Decision").read_text())


@pytest.mark.parametrize("model", MODELS)
def test_a_field_that_this_release_does_not_know_is_left_out(model: str) -> None:
    golden = json.loads(newest(model).read_text())
    loaded = MODELS[model].model_validate({**golden, "a_later_field": {"x": 1}})

    assert "a_later_field" not in loaded.model_dump()


@pytest.mark.parametrize("model", MODELS)
def test_a_message_cannot_be_changed_after_it_was_made(model: str) -> None:
    loaded = MODELS[model].model_validate_json(newest(model).read_text())
    field = next(iter(MODELS[model].model_fields))

    with pytest.raises(ValidationError, match="frozen"):
        setattr(loaded, field, getattr(loaded, field))


def test_every_name_that_is_stored_is_pinned() -> None:
    """Add a new name to golden/names.json too. A name that is there is never edited: histories hold it."""
    pinned = json.loads((GOLDEN / "names.json").read_text())
    constants = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(names).items()
        if name.isupper()
    }

    made = {
        "judge_activity": names.judge_activity("support"),
        "review_note": names.review_note(3),
        "session_workflow": names.session_workflow("customer-7"),
        "model_activity": names.model_activity("support"),
        "tool_activity": names.tool_activity("support"),
        "callback_activity": names.callback_activity("support", "hook"),
        "list_tools_activity": names.list_tools_activity("support"),
    }
    assert {**constants, **made} == pinned


def test_no_two_names_are_equal() -> None:
    values = [value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)]

    assert sorted(values) == sorted(set(values))


async def test_every_name_that_a_worker_registers_is_in_names(server: EmbeddedServer) -> None:
    judged = Agent(
        "test", name="support", capabilities=[HandleDeferredToolCalls(lambda ctx, requests: None), Durable()]
    )
    registered = make_worker(Interlock([judged]), await Client.connect(server.address))[0].config()
    activities = {str(activity._Definition.must_from_callable(one).name) for one in registered["activities"]}
    # The framework's integration makes names from the agent's; the stored histories pin those.
    own = {name for name in activities if not name.startswith("agent__") or name.endswith(names.JUDGE_SUFFIX)}
    definitions = [workflow._Definition.must_from_class(one) for one in registered["workflows"]]
    handlers = {name for one in definitions for name in (one.name, *one.signals, *one.updates, *one.queries)}

    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert handlers <= known
    assert own <= {*known, names.judge_activity("support")}
    assert {names.DESCRIBE_TOOL, names.judge_activity("support")} <= own


def test_every_handler_takes_one_payload_and_gives_one() -> None:
    definitions = [workflow._Definition.must_from_class(one) for one in (AgentWorkflow, SessionWorkflow)]
    handlers: list[Any] = [one for of in definitions for one in (*of.signals.values(), *of.updates.values())]

    for handler in handlers:
        (message,) = [kind for name, kind in get_type_hints(handler.fn).items() if name != "return"]
        assert issubclass(message, Payload)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"prompt": ""}, "must not be empty"),
        ({"prompt": " \n\t"}, "must not be empty"),
        ({"prompt": []}, "must not be empty"),
        ({"prompt": None}, "prompt"),
        ({"prompt": 7}, "prompt"),
        ({"agent": ""}, "agent"),
        ({"agent": "x" * 201}, "agent"),
        ({"message_history": "hello"}, "message_history"),
        ({"model_settings": []}, "model_settings"),
    ],
    ids=str,
)
def test_a_run_that_asks_for_nothing_or_in_the_wrong_form_is_no_input(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RunInput.model_validate({"agent": "support", "prompt": "help", **fields})


@pytest.mark.parametrize("prompt", ["0", ["text"], [{"kind": "image-url"}], " x "])
def test_a_prompt_stays_as_it_was_given(prompt: Any) -> None:
    assert RunInput(agent="support", prompt=prompt).prompt == prompt


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("Decision", {"reason": "x" * 2_001}),
        ("Decision", {"verdict": "maybe"}),
        ("Decision", {"decided_at": "2026-11-02T09:30:15"}),
        ("ToolCompletion", {"error": "x" * 10_001}),
        ("ToolCompletion", {"completed_by": "x" * 201}),
        ("RunState", {"status": "sleeping"}),
    ],
    ids=str,
)
def test_a_message_out_of_bounds_is_refused(model: str, fields: dict[str, Any]) -> None:
    golden = json.loads(newest(model).read_text())

    with pytest.raises(ValidationError, match=next(iter(fields))):
        MODELS[model].model_validate({**golden, **fields})


def test_the_statuses_are_those_that_are_promised() -> None:
    promised = {"running", "awaiting_approval", "awaiting_tool_result", "stuck", "completed", "failed", "cancelled"}

    assert set(get_args(payloads.RunStatusName)) == promised


def test_usage_adds_up_field_by_field() -> None:
    one = Usage.model_validate({name: place for place, name in enumerate(Usage.model_fields, start=1)})

    assert (one + one).model_dump() == {name: value * 2 for name, value in one.model_dump().items()}
    assert one + Usage() == one


FAMILIES = (MisconfiguredError, UnavailableError, RefusedError)


def test_every_error_belongs_to_one_of_three_families_under_one_root() -> None:
    raised = [error for _, error in inspect.getmembers(errors, inspect.isclass) if error is not InterlockError]

    assert set(FAMILIES) <= set(raised)
    for error in raised:
        assert sum(issubclass(error, family) for family in FAMILIES) == 1, error
        assert issubclass(error, InterlockError)


def test_a_failed_run_says_which_run_ended_how() -> None:
    error = RunFailedError("too many turns", workflow_id="ticket-7", status="failed", error_type="UsageLimitExceeded")

    assert (str(error), error.workflow_id, error.status, error.error_type) == (
        "too many turns",
        "ticket-7",
        "failed",
        "UsageLimitExceeded",
    )


@pytest.mark.parametrize(
    ("error", "kind", "retried"),
    [
        (MisconfiguredError("no such agent"), "MisconfiguredError", False),
        (UnavailableError("no answer"), "UnavailableError", True),
        (RefusedError("not open"), "RefusedError", False),
        (RunFailedError("ended", workflow_id="w", status="failed"), "RunFailedError", False),
        (InterlockError("on purpose"), "InterlockError", False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_leaves_an_activity_by_its_type_and_only_the_unavailable_are_retried(
    error: InterlockError, kind: str, retried: bool
) -> None:
    @typed_errors
    async def fails() -> None:
        raise error

    with pytest.raises(ApplicationError, match=str(error)) as left:
        await fails()
    assert (left.value.type, left.value.non_retryable, left.value.__cause__) == (kind, not retried, error)


async def test_other_errors_and_results_leave_an_activity_as_they_are() -> None:
    @typed_errors
    async def halve(number: int) -> float:
        return 1 / number

    assert await halve(2) == 0.5
    with pytest.raises(ZeroDivisionError, match="division by zero"):
        await halve(number=0)


def test_temporal_still_sees_what_a_wrapped_activity_takes_and_gives() -> None:
    described = activity._Definition.must_from_callable(DescribeTool.describe_tool)

    assert (described.arg_types, described.ret_type) == ([ToolQuestion], ToolDescription)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [nested(101), [{"a": float("inf")}], float("nan")], ids=["deep", "infinite", "no number"]
)
@pytest.mark.parametrize(
    "field", ["Decision.result", "Decision.arguments", "ToolCompletion.result", "Retry.usage_limits"]
)
def test_a_sender_cannot_make_a_run_hold_what_nobody_can_read(field: str, value: Any) -> None:
    model, name = field.split(".")
    now = "2026-11-01T12:00:00Z"
    record = {"request_id": "1", "call_id": "1", "verdict": "approve", **dict.fromkeys(TIMES, now)}
    given = value if name == "result" else {"value": value}
    with pytest.raises(ValidationError, match=r"is nested more than 100 deep|numbers have to be finite"):
        MODELS[model].model_validate({**record, name: given})
    assert MODELS[model].model_validate({**record, name: nested(100) if name == "result" else {"value": nested(99)}})


TIMES = ["decided_at", "completed_at", "requested_at"]


@pytest.mark.parametrize("workflow_id", ["x" * 1_001, "é" * 501, ""], ids=["long", "long in bytes", "empty"])
def test_ids_of_runs_that_no_server_takes_are_refused(workflow_id: str) -> None:
    with pytest.raises(ValidationError, match=r"at most 1,000 bytes|at least 1 character"):
        SubRun(workflow_id=workflow_id, agent="support")
    with pytest.raises(ValidationError, match=r"at most 1,000 bytes|at least 1 character"):
        Parent(workflow_id=workflow_id, run_id="01a229d4-6920-7aa1-a1fd-6476ab78ff26", agent_path=())
