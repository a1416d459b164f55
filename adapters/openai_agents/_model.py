"""Calls to models, as activities."""

import dataclasses
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    Handoff,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    Tool,
    TResponseInputItem,
)
from agents.items import TResponseStreamEvent
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage
from openai.types.responses.response_prompt_param import ResponsePromptParam
from pydantic.dataclasses import dataclass
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.openai_agents import ModelActivityParameters
from temporalio.openai_agents._invoke_model_activity import ActivityModelInput, AgentOutputSchemaInput
from temporalio.openai_agents._temporal_model_stub import _TemporalModelStub

from interlock.adapters._calls import HistoryIsLongError, planned
from interlock.adapters.openai_agents._scope import Asked, Scope, current_scope, usage_of
from interlock.adapters.openai_agents._settings import for_step, policy_of
from interlock.adapters.openai_agents._steps import step
from interlock.contracts import names
from interlock.contracts.payloads import Json
from interlock.contracts.payloads import Usage as Used
from interlock.contracts.ports import FailedStep

INSTANCE = "interlock:instance"
"""The model name that stands for the agent's own model object, which only the worker has."""

OF_ALL = "interlock:run"
"""The model name that stands for the model object of the app's run configuration."""

_PARAMETERS = ModelActivityParameters()


@dataclass
class Answer(ModelResponse):
    """A model's answer, with what it cost; None where nobody knows the price. No replay makes it another."""

    cost_usd: Decimal | None = None


class RequestInput(ActivityModelInput, total=False):
    """The request of the integration, with which run it belongs to."""

    serialized_run_context: dict[str, Json]


class RecordedModel(_TemporalModelStub):
    """The model of one agent: each request is a step of the run that the current code belongs to.

    name: as the worker resolves it; None for the agent's own model object, or the SDK's default.
    """

    def __init__(self, agent: Agent[Any], name: str | None) -> None:
        super().__init__(name, model_params=_PARAMETERS, agent=agent)
        self._agent_name = agent.name
        self._resets = agent.reset_tool_choice
        self._shown = type_of_model(agent) if name in (None, INSTANCE, OF_ALL) else str(name)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff[Any, Any]],
        tracing: ModelTracing,
        *,
        previous_response_id: str | None,
        conversation_id: str | None,
        prompt: ResponsePromptParam | None,
    ) -> ModelResponse:
        """See `Model`."""
        scope = current_scope.get()
        assert scope, "A recorded model is only used inside a run."
        scope.asked = Asked(self._agent_name, input, previous_response_id, frozenset(scope.used_tools))
        if scope.is_long():
            raise HistoryIsLongError
        request, _ = self._build_activity_input(
            system_instructions=system_instructions,
            input=input,
            model_settings=for_step(self._without_choice(scope, model_settings)),
            tools=tools,
            output_schema=output_schema if isinstance(output_schema, AgentOutputSchema) else None,
            handoffs=handoffs,
            tracing=tracing,
            previous_response_id=previous_response_id,
            conversation_id=conversation_id,
            prompt=prompt,
        )
        if output_schema is not None and request["output_schema"] is None:
            request["output_schema"] = _described(output_schema)
        scope.turns += 1
        told = scope.told(scope.path_to(self._agent_name))
        response = await self._ask(scope, {**request, "serialized_run_context": told})
        if any(item.type not in ("message", "reasoning") for item in response.output):
            scope.used_tools.add(self._agent_name)
        return scope.numbered(response, input)

    def _without_choice(self, scope: Scope, settings: ModelSettings) -> ModelSettings:
        """The settings without the choice of a tool, once there was one. The SDK takes it out by itself, but forgets
        about it where the run goes on in a loop of its own."""
        is_over = self._resets and self._agent_name in scope.used_tools
        return dataclasses.replace(settings, tool_choice=None) if is_over else settings

    async def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[TResponseStreamEvent]:
        """The whole answer as one event: what is streamed is what is recorded."""
        response = await self.get_response(*args, **named)
        yield ResponseCompletedEvent(type="response.completed", sequence_number=0, response=_as_event(response))

    async def _ask(self, scope: Scope, request: RequestInput) -> ModelResponse:
        label, path = f"model {self._shown}, turn {scope.turns}", scope.path_to(self._agent_name)
        while True:
            try:
                async with scope.gate.model_call(path) as call:
                    answer = await self._step(scope, label, request)
                    call.used(_used(answer))
                return answer
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise
                scope.over.append(error)
                step = f"model of {self._agent_name}, request {scope.turns}"
                await scope.recovery.wait(FailedStep("model", path, step, error))

    async def _step(self, scope: Scope, label: str, request: RequestInput) -> Answer:
        policy = policy_of(request["model_settings"], scope.retries.model)
        never = [*(policy.non_retryable_error_types or ()), "UserError"]
        with planned(label):
            activity = names.model_activity(self._agent_name)
            retries = dataclasses.replace(policy, non_retryable_error_types=never)
            answer: Answer = await step(activity, request, Answer, retries)
        return answer


def _used(answer: Answer) -> Used:
    used = usage_of(answer.usage, 0).model_copy(update={"requests": 1})
    return used.model_copy(update={"unpriced": 1} if answer.cost_usd is None else {"cost_usd": answer.cost_usd})


def _described(schema: AgentOutputSchemaBase) -> AgentOutputSchemaInput:
    """What a model is told of an output schema of the user's own, which the integration does not take."""
    plain = schema.is_plain_text()
    return AgentOutputSchemaInput(
        output_type_name=None if plain else schema.name(),
        is_wrapped=False,
        output_schema=None if plain else schema.json_schema(),
        strict_json_schema=schema.is_strict_json_schema(),
    )


def type_of_model(agent: Agent[Any]) -> str:
    """How an agent's model is shown."""
    if agent.model is None or isinstance(agent.model, str):
        return agent.model or "default"
    return str(getattr(agent.model, "model", None) or type(agent.model).__name__)


def _as_event(response: ModelResponse) -> Response:
    used = response.usage
    return Response(
        id=response.response_id or "",
        created_at=0,
        model="",
        object="response",
        output=response.output,
        tool_choice="auto",
        tools=[],
        parallel_tool_calls=True,
        usage=ResponseUsage(
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            total_tokens=used.total_tokens,
            input_tokens_details=used.input_tokens_details,
            output_tokens_details=used.output_tokens_details,
        ),
    )
