"""The installed program with a collector: what two workers and the command line send of one run, and what they show."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from interlock import Client
from interlock.contracts import names
from interlock.server import EmbeddedServer, free_port
from interlock.testing import eventually

ROOT = Path(__file__).parents[2]
SUPPORT = """
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

Agent.instrument_all(InstrumentationSettings(include_content=False))


def model(messages, info):
    if len(messages) == 1:
        return ModelResponse(parts=[ToolCallPart("refund", {"order": "A-1"})])
    return ModelResponse(parts=[TextPart("done")])


def refund(order: str) -> str:
    return f"refunded {order}"


support = Agent(FunctionModel(model), name="support", tools=[Tool(refund, requires_approval=True)],
                capabilities=[Durable()])
app = Interlock([support])
"""
SPANS = {
    "StartWorkflow:AgentWorkflow": 1,
    "RunWorkflow:AgentWorkflow": 1,
    "invoke_agent support": 1,
    "chat function:model:": 2,
    "execute_tool refund": 1,
    "StartActivity:agent__support__model_request": 2,
    "RunActivity:agent__support__model_request": 2,
    "StartActivity:describe_tool": 1,
    "RunActivity:describe_tool": 1,
    "StartActivity:agent__support__toolset__<agent>__call_tool": 1,
    "RunActivity:agent__support__toolset__<agent>__call_tool": 1,
}


class Collector:
    """What was sent by OTLP: spans, each with the service it is of, and how often metrics."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any]] = []
        self.metrics = 0

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            self.metrics += 1
            return
        assert path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            (service,) = (one.value.string_value for one in group.resource.attributes if one.key == "service.name")
            self.spans += [(service, span) for scope in group.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[tuple[str, Collector]]:
    """Its address, and what it got."""
    got = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", got
        listening.shutdown()
        thread.join()


@asynccontextmanager
async def worker(folder: Path, environment: dict[str, str]) -> AsyncIterator[None]:
    path = folder / f"{uuid.uuid4().hex}.log"

    async def works() -> bool:
        assert process.returncode is None, path.read_text()
        return "Worker for support" in path.read_text()

    with path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "interlock", "worker", "run", "support:app"],
            cwd=folder,
            env=environment,
            stderr=log,
        )
    try:
        await eventually(works, within_seconds=45)
        yield
    finally:
        process.terminate()
        status = await asyncio.wait_for(process.wait(), 30)
    assert status == 0, path.read_text()


def interlock(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "interlock", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


async def pending(client: Client, id: str, count: int) -> bool:
    description = await client.temporal.get_workflow_handle(id).describe()
    return description.search_attributes.get(names.ATTRIBUTE_PENDING_APPROVALS) == [count]


async def test_one_run_of_two_workers_is_one_trace_and_its_metrics_are_counted_once(
    server: EmbeddedServer, collector: tuple[str, Collector], tmp_path: Path
) -> None:
    """Without a workflow cache, so that each task replays the run."""
    endpoint, got = collector
    (tmp_path / "support.py").write_text(SUPPORT)
    client = await Client.connect(server.address, task_queue=f"telemetry-{tmp_path.name}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "OTEL_"))}
    environment = {
        **kept,
        "TEMPORAL_ADDRESS": server.address,
        "INTERLOCK_TASK_QUEUE": client.task_queue,
        "INTERLOCK_MAX_CACHED_RUNS": "0",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }
    metrics_address = f"127.0.0.1:{free_port()}"
    run = f"run-{tmp_path.name}"
    async with worker(tmp_path, {**environment, "OTEL_METRIC_EXPORT_INTERVAL": "200"}):
        interlock(environment, "runs", "start", "support", "--prompt", "secret", "--id", run)
        await eventually(partial(pending, client, run, 1))
    async with worker(
        tmp_path, {**environment, "INTERLOCK_METRICS_ADDRESS": metrics_address, "OTEL_SERVICE_NAME": "second"}
    ):
        interlock(environment, "approvals", "decide", run, "1", "--approve", "--reason", "secret")
        assert (await client.attach(run).result()).output == "done"
        metrics = read(f"http://{metrics_address}/metrics")

    (start,) = (span for _, span in got.spans if span.name.startswith("StartWorkflow:"))
    trace = [span for _, span in got.spans if span.trace_id == start.trace_id]
    assert Counter(span.name for span in trace) == SPANS
    assert len({span.span_id for span in trace}) == len(trace)
    assert {span.parent_span_id for span in trace} - {span.span_id for span in trace} == {b""}
    assert {service for service, _ in got.spans} == {"interlock", "second"}
    assert not any(b"secret" in span.SerializeToString() for _, span in got.spans)
    assert got.metrics > 0
    check_metrics(metrics)


def check_metrics(metrics: str) -> None:
    """What the second worker shows: the first opened the request, and a replay opens it no second time."""
    rows = [row for row in metrics.splitlines() if row.startswith("interlock_") and "_bucket" not in row]
    assert {re.sub(r"[{].*", "", row) for row in rows} == {
        "interlock_approvals_settled_total",
        "interlock_approval_wait_seconds_sum",
        "interlock_approval_wait_seconds_count",
    }
    (settled,) = (row for row in rows if row.startswith("interlock_approvals_settled_total"))
    assert 'agent="support",kind="approval"' in settled
    assert 'outcome="approved"' in settled
    assert settled.endswith(" 1")
    documented = {*re.findall(r"\btemporal_\w+(?=[{[])", (ROOT / "docs/operating.md").read_text())}
    shown = {*re.findall(r"^# TYPE (temporal_\w+)", metrics, re.MULTILINE)}
    assert len(documented) == 6
    assert {name.removesuffix("_bucket") for name in documented if "failed" not in name} <= shown
