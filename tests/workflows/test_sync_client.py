"""The client for code that is not async."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest
from pydantic_ai import Tool

from interlock import Interlock, RefusedError, RunFailedError, SyncClient, UnavailableError
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.workflows.scripts import Script, agent, call


def use(address: str, task_queue: str) -> None:
    with SyncClient(address, task_queue=task_queue) as client:
        run = client.start("support", "go")
        request = next(iter_requests(client, run))
        client.decide(run, request, verdict="approve")
        assert client.result(run).output == "done"
        assert client.report(run).status == "completed"
        assert [step.kind for step in client.steps(run)] == ["model", "tool", "model"]
        with pytest.raises(RefusedError, match="is completed already"):
            client.cancel(run)
        with pytest.raises(RefusedError, match="completed: it waits for nothing"):
            client.complete_tool_call(run, "a", result=1)
        with pytest.raises(RefusedError, match="completed: it waits for nothing"):
            client.retry(run)
        kinds = [event.kind for event in client.events(run, from_offset=1)]
        assert (kinds[0], kinds[-1]) == ("step_started", "run_ended")
        assert next(client.events(run)).kind == "run_started"
        other = client.start("support", "go again")
        client.cancel(other)
        with pytest.raises(RunFailedError):
            client.result(other)


def iter_requests(client: SyncClient, run: str) -> Iterator[str]:
    while True:
        with suppress(UnavailableError):  # Of the runs that other tests have left open, none has a worker.
            yield from (request.request_id for request in client.approvals() if request.workflow_id == run)


async def test_every_method_waits_for_its_answer(own_server: EmbeddedServer) -> None:
    refund = Tool(lambda: "refunded", name="refund", requires_approval=True)
    async with running(Interlock([agent(Script([call("refund", "a")], "done"), tools=[refund])]), own_server) as app:
        await asyncio.get_running_loop().run_in_executor(None, partial(use, own_server.address, app.client.task_queue))
