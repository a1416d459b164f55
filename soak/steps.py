"""Which step of the script an activity is, told from its type and its first argument."""

import json
from typing import Any

from temporalio.common import RawValue

from interlock.contracts import names
from soak.script import answers_in, step_name

_CALL_TOOL, _MODEL_REQUEST, _PREDICATE = "__call_tool", "__model_request", "__predicate"


def step_of(activity_type: str, argument: Any) -> str:
    """The step's name. argument: as the activity takes it, or the JSON that is in the history."""
    if isinstance(argument, RawValue):
        argument = json.loads(argument.payload.data)
    if activity_type == names.DESCRIBE_TOOL:
        question = "describe-outcome" if _of(argument, "kind") == "outcome" else "describe"
        order = _of(argument, "arguments")["order"]
        return step_name(_of(argument, "agent"), f"{question}/{_of(argument, 'tool')}/{order}")
    agent = activity_type.removeprefix("agent__").partition("__")[0]
    if activity_type.endswith(_CALL_TOOL):
        context = _of(argument, "serialized_run_context")
        approved = context.get("tool_call_approved", False) or "interlock_ticket" in context
        tool = _of(argument, "name")
        asking = "ask-" if tool == "charge" and not approved else ""
        return step_name(agent, f"{asking}{tool}/{_of(argument, 'tool_args')['order']}")
    if activity_type.endswith(_PREDICATE):
        tool = _of(argument, "slot").partition(":")[2]
        return step_name(agent, f"ask-{tool}/{_of(argument, 'given')['arguments']['order']}")
    if activity_type.endswith(_MODEL_REQUEST) and isinstance(argument, dict) and "input" in argument:
        return step_name(agent, f"model/{answers_in(argument['input'])}")
    if activity_type.endswith(_MODEL_REQUEST):
        answers = [message for message in _of(argument, "messages") if _of(message, "kind") == "response"]
        return step_name(agent, f"model/{len(answers)}")
    return activity_type


def _of(argument: Any, field: str) -> Any:
    return argument[field] if isinstance(argument, dict) else getattr(argument, field)
