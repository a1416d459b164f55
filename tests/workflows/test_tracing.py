"""A run and the runs of its tools are one connected trace, with each span once, however often it is replayed."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import opentelemetry.trace
import pytest
from agents import function_tool
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import Tool
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from temporalio.client import WorkflowHistory
from temporalio.common import RetryPolicy
from temporalio.contrib.opentelemetry import create_tracer_provider
from temporalio.worker import Replayer

from interlock import Client, Interlock, RunFailedError, tracing
from interlock.contracts import names
from interlock.server import EmbeddedServer
from interlock.spans import DiscreetExporter
from interlock.testing import eventually
from interlock.worker import make_replayer, run_worker
from tests.openai_agents import scripts as openai_scripts
from tests.replay.agents import make_app
from tests.replay.export import path_of
from tests.workflows.scripts import Script, agent, call

SECRET = "4111-1111"
# Of the run, and of the run that its tool starts.
CALLS = {
    "agent__support__model_request": 3,
    "agent__support__toolset__<agent>__call_tool": 2,
    "agent__payer__model_request": 2,
    "agent__payer__toolset__<agent>__call_tool": 1,
    "describe_tool": 2,
}
TEMPORAL = {
    "StartWorkflow:AgentWorkflow": 2,
    "RunWorkflow:AgentWorkflow": 2,
    "SignalExternalWorkflow:report_sub_run": 2,
    "HandleSignal:report_sub_run": 2,
    **{f"StartActivity:{name}": times for name, times in CALLS.items()},
    **{f"RunActivity:{name}": times for name, times in CALLS.items()},
}
# The agent in the tool is entered twice: where the tool calls it, and in its own run.
PYDANTIC_AI = {
    "invoke_agent support": 1,
    "invoke_agent payer": 2,
    "chat scripted": 5,
    "execute_tool delegate": 1,
    "execute_tool pay": 2,
}
DECISION = {
    "StartWorkflowUpdate:submit_decision": 1,
    "ValidateUpdate:submit_decision": 1,
    "HandleUpdate:submit_decision": 1,
}


@pytest.fixture
def spans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What this process exports, with a tracer provider as the parameter makes it; a process can set one only once."""
    exporter = InMemorySpanExporter()
    provider = getattr(request, "param", create_tracer_provider)()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@asynccontextmanager
async def working(app: Interlock, client: Client, *, cached: int) -> AsyncIterator[None]:
    stop = asyncio.Event()
    worker = asyncio.create_task(run_worker(app, client, stop, max_cached_workflows=cached))
    try:
        yield
    finally:
        stop.set()
        await worker


def make_agents(*, instrumented: bool) -> Interlock:
    def capabilities() -> list[Any]:
        return [Instrumentation(settings=InstrumentationSettings(include_content=False))] if instrumented else []

    pay = Tool(lambda card: f"paid by {card}", name="pay", requires_approval=True)
    payer_script = Script([call("pay", "p", card=SECRET)], "inner done")
    payer = agent(payer_script, name="payer", tools=[pay], capabilities=capabilities())

    async def delegate(task: str) -> Any:
        return (await payer.run(task)).output

    script = Script([call("delegate", "d", task=SECRET)], [call("pay", "p", card=SECRET)], f"done with {SECRET}")
    return Interlock([agent(script, tools=[delegate, pay], capabilities=capabilities()), payer])


async def waiting(client: Client) -> str | None:
    """The run of the queue that waits for a decision. It is not asked itself: a question replays it."""
    query = f"TaskQueue = '{client.task_queue}' AND {names.ATTRIBUTE_PENDING_APPROVALS} > 0"
    found = [run.id async for run in client.temporal.list_workflows(query)]
    return found[0] if found else None


def traces_of(spans: InMemorySpanExporter) -> list[list[ReadableSpan]]:
    """All spans by their trace, the largest first."""
    traces: dict[int, list[ReadableSpan]] = {}
    for span in spans.get_finished_spans():
        assert span.context is not None
        traces.setdefault(span.context.trace_id, []).append(span)
    return sorted(traces.values(), key=len, reverse=True)


def counted(trace: list[ReadableSpan]) -> dict[str, int]:
    return dict(Counter(span.name for span in trace))


def is_connected(trace: list[ReadableSpan]) -> bool:
    """Whether each span but one has its parent in the trace, and none is there twice."""
    ids = [span.context.span_id for span in trace if span.context]
    roots = [span for span in trace if span.parent is None]
    return len({*ids}) == len(ids) and len(roots) == 1 and all(s.parent.span_id in ids for s in trace if s.parent)


async def run_with_two_workers(server: EmbeddedServer, app: Interlock, *, cached: int) -> None:
    """A run that is approved by one worker in its tool's run, and by another one in its own."""
    client = await Client.connect(server.address, task_queue=f"traced-{uuid.uuid4().hex[:8]}")

    async def run_waits() -> bool:
        return await waiting(client) == run.id

    async with working(app, client, cached=cached):
        run = await client.start("support", f"pay with {SECRET}")
        sub_run = await eventually(partial(waiting, client))
        await client.attach(sub_run).decide("1", "approve")
        await eventually(run_waits)
    async with working(app, client, cached=cached):
        await run.decide("1", "approve", reason=SECRET)
        assert (await run.result()).output == f"done with {SECRET}"
        assert (await run.state()).status == "completed"  # A question, and a replay of the whole run for it.


@pytest.mark.parametrize(
    ("instrumented", "cached"),
    [(False, 0), (True, 0), (True, 1_000)],
    ids=["uncached", "pydantic-ai-uncached", "cached"],
)
async def test_a_run_is_one_trace_with_each_span_once(
    server: EmbeddedServer, spans: InMemorySpanExporter, instrumented: bool, cached: int
) -> None:
    await run_with_two_workers(server, make_agents(instrumented=instrumented), cached=cached)

    of_the_run, *of_decisions = traces_of(spans)
    assert counted(of_the_run) == {**TEMPORAL, **(PYDANTIC_AI if instrumented else {})}
    assert [counted(trace) for trace in of_decisions] == [DECISION, DECISION]
    assert all(map(is_connected, (of_the_run, *of_decisions)))
    everything = "".join(span.to_json() for span in spans.get_finished_spans())
    assert SECRET not in everything
    assert "Query" not in everything


@pytest.mark.parametrize("cached", [0, 1_000], ids=["uncached", "cached"])
async def test_a_run_of_agents_of_the_other_framework_is_one_trace_too(
    server: EmbeddedServer, spans: InMemorySpanExporter, cached: int
) -> None:
    pay = function_tool(lambda card: f"paid by {card}", name_override="pay", needs_approval=True, strict_mode=False)
    inner_script = openai_scripts.Script([openai_scripts.call("pay", "p", card=SECRET)], "inner done")
    payer = openai_scripts.agent(inner_script, name="payer", tools=[pay])
    script = openai_scripts.Script([openai_scripts.call("delegate", "d", input=SECRET)], f"done with {SECRET}")
    app = Interlock([openai_scripts.agent(script, tools=[payer.as_tool("delegate", "")])])
    client = await Client.connect(server.address, task_queue=f"traced-{uuid.uuid4().hex[:8]}")
    async with working(app, client, cached=cached):
        run = await client.start("support", f"pay with {SECRET}")
        await eventually(partial(waiting, client))
    async with working(app, client, cached=cached):
        await run.decide("1", "approve", reason=SECRET)
        assert (await run.result()).output == f"done with {SECRET}"
        assert (await run.state()).status == "completed"

    calls = {"agent__support__model_request": 2, "agent__payer__model_request": 2, "agent__payer__call_tool": 1}
    of_the_run, of_the_decision = traces_of(spans)
    assert counted(of_the_run) == {
        "StartWorkflow:AgentWorkflow": 1,
        "RunWorkflow:AgentWorkflow": 1,
        **{f"{do}Activity:{name}": n for do in ("Start", "Run") for name, n in (calls | {"describe_tool": 1}).items()},
    }
    assert counted(of_the_decision) == DECISION
    assert all(map(is_connected, (of_the_run, of_the_decision)))
    assert {
        (attributes.get("interlock.tool"), attributes.get("interlock.attempt"))
        for span in of_the_run
        if span.name.startswith("RunActivity:agent__payer") and (attributes := span.attributes or {})
    } == {(None, 1), ("pay", 1)}
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


@pytest.mark.parametrize("spans", [TracerProvider], ids=["plain"], indirect=True)
async def test_spans_of_any_other_provider_come_once_too(server: EmbeddedServer, spans: InMemorySpanExporter) -> None:
    """What is done in a run then has spans without a length, and who decided has a link to the run's."""
    await run_with_two_workers(server, make_agents(instrumented=False), cached=0)

    of_the_run, *of_decisions = traces_of(spans)
    assert counted(of_the_run) == {
        **TEMPORAL,
        "CompleteWorkflow:AgentWorkflow": 2,
        "ValidateUpdate:submit_decision": 2,
        "HandleUpdate:submit_decision": 2,
    }
    assert is_connected(of_the_run)
    assert [counted(trace) for trace in of_decisions] == [{"StartWorkflowUpdate:submit_decision": 1}] * 2
    assert SECRET not in "".join(span.to_json() for span in spans.get_finished_spans())


async def test_spans_say_the_agent_the_tool_and_the_attempt(
    server: EmbeddedServer, spans: InMemorySpanExporter
) -> None:
    script = Script([call("look", "l")], "done")
    client = await Client.connect(server.address, task_queue=f"facts-{uuid.uuid4().hex[:8]}")
    async with working(Interlock([agent(script, tools=[Tool(lambda: "x", name="look")])]), client, cached=0):
        await (await client.start("support", "go")).result()

    (trace,) = traces_of(spans)
    facts = {
        span.name: {name: value for name, value in (span.attributes or {}).items() if name.startswith("interlock.")}
        for span in trace
        if span.name.startswith("Run")
    }
    assert facts == {
        "RunWorkflow:AgentWorkflow": {"interlock.agent": "support"},
        "RunActivity:agent__support__model_request": {"interlock.attempt": 1},
        "RunActivity:agent__support__toolset__<agent>__call_tool": {"interlock.attempt": 1, "interlock.tool": "look"},
    }


async def test_a_run_that_nobody_traced_at_its_start_is_one_trace_all_the_same(
    server: EmbeddedServer, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await Client.connect(server.address, task_queue=f"untraced-{uuid.uuid4().hex[:8]}")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(opentelemetry.trace, "_TRACER_PROVIDER", None)
        starter = await Client.connect(server.address, task_queue=client.task_queue)
    script = Script([call("look", "l")], "done")
    async with working(Interlock([agent(script, tools=[Tool(lambda: "x", name="look")])]), client, cached=0):
        await (await starter.start("support", "go")).result()

    (trace,) = traces_of(spans)
    assert is_connected(trace)
    assert counted(trace)["RunWorkflow:AgentWorkflow"] == 1


async def test_an_error_is_its_type_and_nothing_more(server: EmbeddedServer, spans: InMemorySpanExporter) -> None:
    def charge() -> str:
        raise LookupError(f"no such card: {SECRET}")

    script = Script([call("charge", "c")], "done")
    once = {"temporal": {"retry_policy": RetryPolicy(maximum_attempts=1)}}
    app = Interlock([agent(script, tools=[Tool(charge, metadata=once)])])
    client = await Client.connect(server.address, task_queue=f"errors-{uuid.uuid4().hex[:8]}", stuck_seconds=0)
    async with working(app, client, cached=0):
        with pytest.raises(RunFailedError, match=SECRET):
            await (await client.start("support", "go")).result()

    discreet = InMemorySpanExporter()
    DiscreetExporter(discreet).export(spans.get_finished_spans())
    (trace,) = traces_of(discreet)
    failed = [span for span in trace if "call_tool" in span.name and span.name.startswith("Run")]
    assert [(span.status.is_ok, (span.attributes or {})["error.type"]) for span in failed] == [(False, "LookupError")]
    assert SECRET not in "".join(span.to_json() for span in trace)


def test_a_span_that_comes_again_is_not_sent_again() -> None:
    """As it does when a worker died after it had sent a workflow task's spans and before the server had the task."""
    kept, again = InMemorySpanExporter(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(again))
    provider.get_tracer("any").start_span("one").end()
    exporter = DiscreetExporter(kept)
    for _ in range(2):
        exporter.export(again.get_finished_spans())

    assert [span.name for span in kept.get_finished_spans()] == ["one"]


@pytest.mark.parametrize("ending", ["completed-decisions", "open-awaiting-sub-run", "failed-hook"])
async def test_a_history_stored_without_spans_replays_with_them_and_makes_none(
    ending: str, spans: InMemorySpanExporter
) -> None:
    config = make_replayer(make_app()).config()
    config["interceptors"] = [*tracing.interceptors(), *config["interceptors"]]
    await Replayer(**config).replay_workflow(WorkflowHistory.from_json(ending, path_of(ending).read_text()))

    assert spans.get_finished_spans() == ()


async def test_a_run_that_goes_on_in_another_execution_stays_one_trace(spans: InMemorySpanExporter) -> None:
    short = await EmbeddedServer.start(
        port=0, ui=False, dynamic_config={"limit.historyCount.suggestContinueAsNew": "40"}
    )
    client = await Client.connect(short.address, task_queue="continued")
    script = Script(*([call("look", f"l{number}")] for number in range(6)), "done")
    async with working(Interlock([agent(script, tools=[Tool(lambda: "x", name="look")])]), client, cached=0):
        await (await client.start("support", "go")).result()
    await short.stop()

    (trace,) = traces_of(spans)
    runs = [span for span in trace if span.name == "RunWorkflow:AgentWorkflow"]
    assert is_connected(trace)
    assert len(runs) > 1
    assert all(span.status.is_ok for span in runs)
    assert counted(trace)["RunActivity:agent__support__model_request"] == 7
