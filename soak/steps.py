"""Which step of the script an activity is, told from its type, its first argument and its header."""

import json
from collections.abc import Mapping
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from interlock._rpc import header_text
from interlock.contracts import names
from soak.script import answers_in, step_name

_CALL_TOOL, _MODEL_REQUEST, _PREDICATE = "__call_tool", "__model_request", "__predicate"


class Steps:
    """Names the steps of one run, in their order: a model call says which one it goes on from, and not what was said
    until then."""

    def __init__(self) -> None:
        self._answers: dict[str, int] = {}

    def name(self, activity_type: str, argument: Any, headers: Mapping[str, Payload]) -> str:
        """The next step's name. argument: as the activity takes it, or the JSON that is in the history."""
        if isinstance(argument, RawValue):
            argument = json.loads(argument.payload.data)
        agent = activity_type.removeprefix("agent__").partition("__")[0]
        if activity_type == names.DESCRIBE_TOOL:
            question = "describe-outcome" if _of(argument, "kind") == "outcome" else "describe"
            order = _of(argument, "arguments")["order"]
            return step_name(_of(argument, "agent"), f"{question}/{_of(argument, 'tool')}/{order}")
        if activity_type.endswith(_CALL_TOOL):
            context = _of(argument, "serialized_run_context")
            approved = context.get("tool_call_approved", False) or "interlock_ticket" in context
            tool = _of(argument, "name")
            asking = "ask-" if tool == "charge" and not approved else ""
            return step_name(agent, f"{asking}{tool}/{_of(argument, 'tool_args')['order']}")
        if activity_type.endswith(_PREDICATE):
            tool = _of(argument, "slot").partition(":")[2]
            return step_name(agent, f"ask-{tool}/{_of(argument, 'given')['arguments']['order']}")
        if activity_type.endswith(_MODEL_REQUEST):
            return step_name(agent, f"model/{self._answers_before(argument, header_text(headers[names.HEADER_STEP]))}")
        return activity_type

    def _answers_before(self, argument: Any, step: str) -> int:
        is_openai = isinstance(argument, dict) and "input" in argument
        said, before = _of(argument, "input" if is_openai else "messages"), 0
        if isinstance(said, dict):
            said, before = said["then"], self._answers[said["follows"]]
        answers = answers_in(said) if is_openai else sum(_of(message, "kind") == "response" for message in said)
        self._answers[step] = before + answers
        return self._answers[step]


def _of(argument: Any, field: str) -> Any:
    return argument[field] if isinstance(argument, dict) else getattr(argument, field)
