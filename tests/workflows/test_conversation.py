"""What model calls go on from when hooks of the user's come between."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec._utils import DurableModel
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestContext

from interlock import Interlock, Settings
from interlock.activities import conversation as kept
from interlock.contracts import names
from interlock.histories import StoredHistories
from interlock.server import EmbeddedServer
from interlock.testing import running
from interlock.workflows import conversation
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call

TURNS = [[call("look", f"c{n}", order=f"{n}" * 500)] for n in range(4)]


def look(order: str) -> str:
    return order


@pytest.fixture(autouse=True)
def every_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_WORTHWHILE_BYTES", 0)


async def test_nothing_goes_on_from_a_call_that_never_left_its_task(
    run_app: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = DurableModel.request

    async def given_up_at_first(self: DurableModel, *args: Any) -> ModelResponse:
        first = asyncio.ensure_future(request(self, *args))
        for _ in range(50):
            await asyncio.sleep(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        return await request(self, *args)

    monkeypatch.setattr(DurableModel, "request", given_up_at_first)
    script = Script(*TURNS, "done")
    async with run_app(Interlock([agent(script, tools=[look])])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert script.results() == {f"c{n}": f"{n}" * 500 for n in range(4)}


async def test_a_conversation_that_a_hook_shortens_is_told_as_it_is(run_app: Running) -> None:
    script = Script(*TURNS, "done")
    seen: list[list[ModelMessage]] = []

    def last_two(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[:1] + messages[1:][-2:]

    class Shortening(AbstractCapability[Any]):
        async def before_model_request(
            self, ctx: RunContext[Any], request_context: ModelRequestContext
        ) -> ModelRequestContext:
            request_context.messages = last_two(request_context.messages)
            return request_context

    def remember(messages: list[ModelMessage]) -> Any:
        seen.append(messages)
        turn = len(seen) - 1
        return TURNS[turn] if turn < 4 else "done"

    script = Script(remember, remember, *[remember] * 3)
    async with run_app(Interlock([agent(script, tools=[look], capabilities=[Shortening()])])) as app:
        assert (await (await app.client.start("support", "go")).result()).output == "done"

    assert [len(messages) for messages in seen] == [1, 3, 3, 3, 3]
    assert [part.content for part in seen[-1][-1].parts if hasattr(part, "content")] == ["3" * 500]


async def test_a_call_whose_conversation_is_lost_is_written_whole_when_it_is_retried(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(self: StoredHistories, workflow_id: str, run_id: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(kept, "_KEPT_BYTES", 0)
    monkeypatch.setattr(StoredHistories, "model_calls", nothing)
    script = Script(*TURNS, "done")
    app = Interlock([agent(script, tools=[look])], settings=Settings(stuck_seconds=60))
    async with running(app, server) as at_work:
        run = await at_work.client.start("support", "go", stuck_seconds=60)
        await at_work.state(run, lambda state: bool(state.stuck))
        assert [one.error_type for one in (await run.state()).stuck] == [names.CONVERSATION_LOST]
        monkeypatch.setattr(kept, "_KEPT_BYTES", 1_000_000)  # The history stays as it is.
        await run.retry()
        assert (await run.result()).output == "done"

    assert script.results() == {f"c{n}": f"{n}" * 500 for n in range(4)}
