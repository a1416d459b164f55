"""The SDK's own traces: nothing leaves the worker unless its user says so, and then each span once."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from agents import TracingProcessor, function_tool, set_trace_provider
from agents.tracing import get_trace_provider
from agents.tracing.processors import default_processor
from agents.tracing.provider import DefaultTraceProvider

from interlock import Interlock
from interlock.settings import Settings
from tests.conftest import Running
from tests.openai_agents.scripts import Script, agent, call


class Kept(TracingProcessor):
    def __init__(self) -> None:
        self.spans: list[Any] = []

    def on_trace_start(self, trace: Any) -> None: ...

    def on_trace_end(self, trace: Any) -> None: ...

    def on_span_start(self, span: Any) -> None: ...

    def on_span_end(self, span: Any) -> None:
        self.spans.append(span)

    def shutdown(self) -> None: ...

    def force_flush(self) -> None: ...


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[DefaultTraceProvider]:
    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    before = get_trace_provider()
    made = DefaultTraceProvider()
    set_trace_provider(made)
    yield made
    set_trace_provider(before)


@function_tool
def look(order: str) -> str:
    return "broken"


def build(**settings: Any) -> Interlock:
    script = Script([call("look", "a", order="A-1")], "done")
    return Interlock([agent(script, tools=[look])], settings=Settings(stuck_seconds=0, **settings))


async def test_a_worker_takes_the_exporter_out_and_leaves_what_the_user_added(
    run_app: Running, provider: DefaultTraceProvider
) -> None:
    kept = Kept()
    provider.register_processor(default_processor())
    provider.register_processor(kept)
    async with run_app(build()) as app:
        await (await app.client.start("support", "go")).result()

        assert tuple(provider._multi_processor._processors) == (kept,)
        assert kept.spans == []


async def test_traces_that_are_wanted_have_each_span_once(run_app: Running, provider: DefaultTraceProvider) -> None:
    kept = Kept()
    provider.register_processor(kept)
    async with run_app(build(openai_traces=True)) as app:
        await (await app.client.start("support", "go")).result()

    kinds = Counter(span.span_data.type for span in kept.spans)
    assert len({span.span_id for span in kept.spans}) == len(kept.spans)
    assert (kinds["agent"], kinds["function"]) == (1, 1)
