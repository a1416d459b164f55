"""An answer never reaches a call that the reviewer did not see."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic_ai import Tool
from pydantic_ai.toolsets import FunctionToolset
from temporalio.exceptions import ApplicationError

from interlock import Interlock, RefusedError
from interlock.adapters._worker import check_ticket
from interlock.adapters.pydantic_ai.worker import PydanticAIAdapter
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Ticket
from interlock.retries import Retries
from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.workflows.scripts import Script, agent, call


def asking_about(tool: Callable[..., str], script: Script) -> Interlock:
    return Interlock([agent(script, tools=[Tool(tool, name="refund", requires_approval=True)])])


async def test_an_answer_is_refused_when_a_new_build_would_run_other_arguments(server: EmbeddedServer) -> None:
    ran: list[bool] = []

    def before(order: str) -> str:
        return "before"

    def after(order: str, everything: bool = True) -> str:
        ran.append(everything)
        return "after"

    script = Script([call("refund", "a", order="A-1")], "done")
    async with running(asking_about(before, script), server) as app:
        run = await app.client.start("support", "refund")
        (request,) = await app.requests(run, 1)
        task_queue = app.client.task_queue
    async with running(asking_about(after, script), server, task_queue=task_queue) as app:
        run = app.client.attach(run.id)
        with pytest.raises(RefusedError, match="not the one this answer was given for"):
            await run.decide(request.request_id, "approve", digest=request.digest)
        (now,) = await run.approvals()
        assert now.arguments == {"order": "A-1", "everything": True}
        await run.decide(now.request_id, "reject", digest=now.digest)
        await run.result()

        assert ran == []


@pytest.fixture
def adapter() -> PydanticAIAdapter:
    refunds = FunctionToolset([Tool(lambda order: order, name="refund")], id="refunds")
    others = FunctionToolset([Tool(lambda order: order, name="void")], id="others")
    return PydanticAIAdapter({"support": agent(Script("done"), toolsets=[refunds, others])}, Retries())


def ticket(adapter: PydanticAIAdapter, **changed: Any) -> Ticket:
    fields = {
        "request_id": "1",
        "agent": "support",
        "toolset": "refunds",
        "tool": "refund",
        "arguments_digest": digest({"order": "A-1"}),
        "fingerprint": adapter.fingerprint("support", "refunds", "refund"),
    }
    return Ticket(**{**fields, **changed})


def test_the_approved_call_passes_the_check(adapter: PydanticAIAdapter) -> None:
    check_ticket(adapter, ticket(adapter), {"order": "A-1"})


@pytest.mark.parametrize(
    ("changed", "arguments", "what"),
    [
        ({}, {"order": "A-2"}, "the arguments"),
        ({}, {"order": "A-1", "more": 1}, "the arguments"),
        ({"toolset": "others"}, {"order": "A-1"}, "the tool"),
        ({"tool": "void"}, {"order": "A-1"}, "the tool"),
        ({"fingerprint": "another"}, {"order": "A-1"}, "the tool"),
    ],
)
def test_anything_else_is_refused_before_the_tool_runs(
    adapter: PydanticAIAdapter, changed: dict[str, Any], arguments: dict[str, Any], what: str
) -> None:
    with pytest.raises(ApplicationError, match=f"{what} of .* changed; it is asked for again") as refused:
        check_ticket(adapter, ticket(adapter, **changed), arguments)
    assert refused.value.non_retryable
    assert refused.value.type == "ToolChangedError"


def test_a_tool_of_another_schema_or_description_is_another_tool() -> None:
    def fingerprint(refund: Callable[..., str], description: str = "Refund an order.") -> str:
        toolset = FunctionToolset([Tool(refund, name="refund", description=description)], id="refunds")
        of = PydanticAIAdapter({"support": agent(Script("done"), toolsets=[toolset])}, Retries())
        return of.fingerprint("support", "refunds", "refund")

    def by_number(order: int) -> str:
        return "done"

    def by_name(order: str) -> str:
        return "done"

    assert fingerprint(by_number) == fingerprint(by_number)
    assert fingerprint(by_number) != fingerprint(by_name)
    assert fingerprint(by_number) != fingerprint(by_number, "Refund all orders.")
