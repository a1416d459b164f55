"""What goes into the run of an agent that a tool runs, and what comes back as the SDK's own result."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agents import (
    Agent,
    ItemHelpers,
    MessageOutputItem,
    ModelResponse,
    ReasoningItem,
    RunContextWrapper,
    RunItem,
    RunResult,
    ToolCallItem,
    ToolCallOutputItem,
    Usage,
)
from agents.exceptions import AgentsException
from agents.run import DEFAULT_MAX_TURNS
from agents.run_state import _deserialize_message_output_item, _deserialize_tool_call_raw_item
from openai.types.responses import ResponseReasoningItem
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError

from interlock.adapters.openai_agents._results import typed_output
from interlock.adapters.openai_agents._scope import sdk_usage
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import Account, Json, Parent, RunInput, RunOptions, RunOutput
from interlock.contracts.ports import event_sink

_STAY = ("session", "hooks", "run_config", "error_handlers", "conversation_id")


class SubRunFailedError(AgentsException):
    """An agent that a tool ran as a run of its own ended without an output. Not retried."""


def sub_run_input(
    agent: Agent[Any], input: Any, options: Mapping[str, Any], deps: Json
) -> Callable[[Parent, Account | None, str], RunInput]:
    """The input of the new run, from what the agent was run with, as a function of what `Delegation.run` knows.
    deps: its context as JSON.

    Raises ApplicationError (`MisconfiguredError`, not retried) that names what cannot travel to a run of its own.
    """
    stay = [name for name in _STAY if options.get(name)]
    prompt = _prompt(input)
    if prompt is None:
        stay.append("an input that is not text or a list of the SDK's items as JSON")
    if stay or prompt is None:
        raise misconfigured(
            f"Agent {agent.name!r} is run inside of a run with {', '.join(stay)}. There it is a run of its own, which "
            "these do not reach. Give the agent itself what it needs, and the app its RunConfig and RunHooks; context, "
            "max_turns and previous_response_id may be given."
        )

    def make(parent: Parent, account: Account | None, key_root: str) -> RunInput:
        try:
            return RunInput(
                agent=agent.name,
                prompt=prompt,
                deps=deps,
                usage_limits={"max_turns": options.get("max_turns", DEFAULT_MAX_TURNS)},
                previous_response_id=options.get("previous_response_id"),
                auto_previous_response_id=bool(options.get("auto_previous_response_id")),
                parent=parent,
                options=RunOptions(stream=event_sink.get() is not None),
                account=account,
                key_root=key_root,
            )
        except ValidationError:
            raise misconfigured(f"Agent {agent.name!r} is run inside of a run without an input; give it one.") from None

    return make


def sub_run_result(
    agent: Agent[Any], agents: Mapping[str, Agent[Any]], input: Any, options: Mapping[str, Any], output: RunOutput
) -> RunResult:
    """The output of the run as the agent would have given it. What the run has used is added to the context that it
    was given. agents: that the run may have ended with, by name."""
    wrapper = wrapped(options)
    wrapper.usage.add(sdk_usage(output.usage))
    last = agents.get(output.last_agent, agent)
    return RunResult(
        input=input,
        new_items=list(_items(last, (output.messages or [])[output.new_from :], _count(input))),
        raw_responses=[ModelResponse([], Usage(), output.last_response_id)] if output.last_response_id else [],
        final_output=typed_output(last, output.output),
        input_guardrail_results=[],
        output_guardrail_results=[],
        tool_input_guardrail_results=[],
        tool_output_guardrail_results=[],
        context_wrapper=wrapper,
        _last_agent=last,
        max_turns=options.get("max_turns", DEFAULT_MAX_TURNS),
    )


def wrapped(options: Mapping[str, Any]) -> RunContextWrapper[Any]:
    """The context that an agent is run with. The SDK takes it in its wrapper too."""
    given = options.get("context")
    return given if isinstance(given, RunContextWrapper) else RunContextWrapper(given)


def misconfigured(message: str) -> ApplicationError:
    """The end of a step whose code has to be changed."""
    return ApplicationError(message, type=MisconfiguredError.__name__, non_retryable=True)


def _prompt(input: Any) -> str | list[Json] | None:
    if isinstance(input, str):
        return input
    if not isinstance(input, list):
        return None
    try:
        items: list[Json] = from_json(to_json(input))
        return items
    except ValueError:
        return None


def _count(input: Any) -> int:
    return len(ItemHelpers.input_to_new_input_list(input))


def _items(agent: Agent[Any], said: Iterable[Any], given: int) -> Iterable[RunItem]:
    """What the run has added to the conversation. given: how many of the first items are its input."""
    for at, raw in enumerate(said):
        if at < given:
            continue
        if raw.get("role") == "assistant":
            yield MessageOutputItem(agent=agent, raw_item=_deserialize_message_output_item(raw))
        elif raw.get("type") == "function_call_output":
            yield ToolCallOutputItem(agent=agent, raw_item=raw, output=raw.get("output"))
        elif raw.get("type") == "reasoning":
            yield ReasoningItem(agent=agent, raw_item=ResponseReasoningItem.model_validate(raw))
        else:
            yield ToolCallItem(agent=agent, raw_item=_deserialize_tool_call_raw_item(raw))
