"""Temporal's tracing interceptors, with what Interlock knows of its runs. Loaded only where there are spans."""

import os
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Status, get_current_span
from temporalio import activity, workflow
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.client import OutboundInterceptor, QueryWorkflowInput
from temporalio.contrib.opentelemetry import (
    OpenTelemetryInterceptor,
    ReplaySafeTracerProvider,
    TracingInterceptor,
    create_tracer_provider,
)
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from interlock.contracts import names

_REMEMBERED = 20_000
_OF_TEMPORAL = "temporalio."


def interceptor(provider: Any) -> ClientInterceptor:
    """The interceptor for a client, which its workers take over.

    provider: of this process. Only Temporal's replay-safe one can hold spans of replayed code open; with any other one
    such spans begin and end at once.
    """
    if isinstance(provider, ReplaySafeTracerProvider):
        return _Spans()
    return _MomentarySpans(provider.get_tracer(_OF_TEMPORAL))


def otlp_provider(service: str) -> ReplaySafeTracerProvider:
    """A provider that sends spans by OTLP, as OpenTelemetry's own variables say.

    service: the name of the service when they name none.
    """
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: service}))
    provider = create_tracer_provider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(DiscreetExporter(_otlp_exporter())))
    return provider


class DiscreetExporter(SpanExporter):
    """Sends each span once, and of an error in a span of Temporal's no more than its type.

    An error's text may quote a prompt, a tool's arguments or a key. A span comes twice when a worker has to do a
    workflow task again.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._sent: OrderedDict[tuple[int, int], None] = OrderedDict()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        return self._exporter.export([_discreet(span) for span in spans if self._is_new(span)])

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)

    def _is_new(self, span: ReadableSpan) -> bool:
        identity = (span.context.trace_id, span.context.span_id)
        if identity in self._sent:
            return False
        self._sent[identity] = None
        if len(self._sent) > _REMEMBERED:
            self._sent.popitem(last=False)
        return True


class _WithoutQueries(OutboundInterceptor):
    """Questions change nothing, and who waits for a run asks often: they get no spans."""

    def __init__(self, traced: OutboundInterceptor, untraced: OutboundInterceptor) -> None:
        super().__init__(traced)
        self._untraced = untraced

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        return await self._untraced.query_workflow(input)


class _Spans(OpenTelemetryInterceptor):
    def __init__(self) -> None:
        super().__init__(add_temporal_spans=True)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _WithoutQueries(super().intercept_client(next), next)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_CallFacts(next))

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> Any:
        traced: Any = super().workflow_interceptor_class(input)

        class Inbound(traced):  # type: ignore[misc]
            def __init__(self, next: WorkflowInboundInterceptor) -> None:
                super().__init__(_RunFacts(next))

            async def handle_query(self, input: HandleQueryInput) -> Any:
                return await self.next.handle_query(input)

        return Inbound


class _MomentarySpans(TracingInterceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        return _WithoutQueries(super().intercept_client(next), next)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return super().intercept_activity(_CallFacts(next))


class _CallFacts(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        span = get_current_span()
        span.set_attribute("interlock.attempt", activity.info().attempt)
        tool = getattr(input.args[0], "name", None) if input.args else None
        if isinstance(tool, str):
            span.set_attribute("interlock.tool", tool)
        return await super().execute_activity(input)


class _RunFacts(WorkflowInboundInterceptor):
    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        run: Any = workflow.instance()
        if workflow.info().workflow_type == names.AGENT_WORKFLOW:
            get_current_span().set_attribute("interlock.agent", run.state().agent)
        return await super().execute_workflow(input)


def _discreet(span: ReadableSpan) -> ReadableSpan:
    scope = span.instrumentation_scope
    if scope is None or not scope.name.startswith(_OF_TEMPORAL):
        return span
    attributes = dict(span.attributes or {})
    for event in span.events:
        if event.name == "exception" and event.attributes:
            attributes["error.type"] = event.attributes.get("exception.type", "")
    return ReadableSpan(
        span.name,
        span.context,
        span.parent,
        span.resource,
        attributes,
        [event for event in span.events if event.name != "exception"],
        span.links,
        span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )


def _otlp_exporter() -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    transport = "grpc" if protocol == "grpc" else "http"
    exporter: SpanExporter = import_module(
        f"opentelemetry.exporter.otlp.proto.{transport}.trace_exporter"
    ).OTLPSpanExporter()
    return exporter
