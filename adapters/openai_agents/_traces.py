"""The SDK's own traces. It sends prompts and tool calls to OpenAI unless it is told not to."""

from typing import Any

from agents import set_trace_provider
from agents.tracing import get_trace_provider
from agents.tracing.processors import default_processor
from agents.tracing.provider import DefaultTraceProvider
from temporalio.openai_agents._temporal_trace_provider import TemporalTraceProvider
from temporalio.openai_agents._trace_interceptor import OpenAIAgentsContextPropagationInterceptor


def keep_here() -> None:
    """Take the SDK's exporter out of this process. Processors that the user has added stay."""
    provider = get_trace_provider()
    if isinstance(provider, DefaultTraceProvider):
        added = provider._multi_processor._processors
        provider.set_processors([one for one in added if one is not default_processor()])


def send() -> Any:
    """Have the SDK trace runs too, each span once however often a run is replayed.

    Returns the worker's interceptor that takes the trace of a run to its steps.
    """
    if not traced():
        set_trace_provider(TemporalTraceProvider())
    return OpenAIAgentsContextPropagationInterceptor(add_temporal_spans=False)


def traced() -> bool:
    """Whether runs are traced by the SDK in this process."""
    return isinstance(get_trace_provider(), TemporalTraceProvider)
