"""Tools however they come: wrapped, renamed, made for each run; and what else reaches tools and models."""

import asyncio
import dataclasses
import enum
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import RunContext, Tool
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo
from pydantic_ai.tools import DeferredToolRequests, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, DynamicToolset, FunctionToolset, ToolsetTool
from temporalio import workflow

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable
from interlock.server import EmbeddedServer
from interlock.testing import running
from interlock.worker import make_replayer
from tests.conftest import Running, uncached
from tests.workflows.scripts import Script, agent, call


def pay(order: str) -> str:
    """Pay money back."""
    return f"paid {order}"


def gated() -> FunctionToolset[Any]:
    return FunctionToolset([Tool(pay, requires_approval=True)], id="money")


@pytest.mark.parametrize(
    ("toolset", "name"),
    [
        (gated().prefixed("bank"), "bank_pay"),
        (gated().renamed({"give": "pay"}), "give"),
        (gated().filtered(lambda ctx, tool: True), "pay"),
        (FunctionToolset([pay], id="money").prefixed("bank").approval_required(), "bank_pay"),
        (FunctionToolset([pay], id="money").approval_required().prefixed("bank"), "bank_pay"),
    ],
    ids=["prefixed", "renamed", "filtered", "gate around prefix", "prefix around gate"],
)
async def test_a_gated_tool_in_a_wrapped_toolset(run_app: Running, toolset: AbstractToolset[Any], name: str) -> None:
    script = Script([call(name, "a", order="A-1"), call(name, "b", order="A-2")], "done")
    async with run_app(Interlock([agent(script, toolsets=[toolset])])) as app:
        run = await app.client.start("support", "go")
        requests = {request.call_id: request for request in await app.requests(run, 2)}
        await run.decide(requests["a"].request_id, "approve", digest=requests["a"].digest)
        await run.decide(requests["b"].request_id, "approve", arguments={"order": "B-2"})
        await run.result()

        assert script.results() == {"a": "paid A-1", "b": "paid B-2"}


async def test_a_toolset_made_for_each_run(run_app: Running) -> None:
    def made(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        return gated()

    script = Script([call("pay", "a", order="A-1")], "done")
    async with run_app(Interlock([agent(script, toolsets=[DynamicToolset(made, id="made")])])) as app:
        run = await app.client.start("support", "go")
        (request,) = await app.requests(run, 1)
        await run.decide(request.request_id, "approve", digest=request.digest)
        await run.result()

        assert script.results() == {"a": "paid A-1"}


class Kind(enum.Enum):
    FULL = "full"


class Line(BaseModel):
    price: Decimal
    on: date


@dataclasses.dataclass
class Note:
    text: str


VALUES: dict[str, tuple[Any, Any, Any]] = {
    "model": (Line, {"price": "1.50", "on": "2026-01-02"}, Line(price=Decimal("1.50"), on=date(2026, 1, 2))),
    "decimal": (Decimal, "12.340", Decimal("12.340")),
    "enum": (Kind, "full", Kind.FULL),
    "bytes": (bytes, "raw", b"raw"),
    "set": (set[int], [3, 1, 2], {1, 2, 3}),
    "dataclass": (Note, {"text": "x"}, Note("x")),
    "list of models": (list[Line], [{"price": 1, "on": "2026-01-02"}], [Line(price=Decimal(1), on=date(2026, 1, 2))]),
    "float": (float, 0.1, 0.1),
    "big": (int, 2**80, 2**80),
    "text": (str, "ü\u2028😀", "ü\u2028😀"),
    "optional": (int | None, None, None),
    "tuple": (tuple[int, str], [1, "x"], (1, "x")),
}


@uncached
async def test_approved_calls_get_their_arguments_as_what_they_are(run_app: Running) -> None:
    got: dict[str, list[Any]] = {kind: [] for kind in VALUES}

    def taking(kind: str) -> Tool[Any]:
        def take(value: Any) -> str:
            got[kind].append(value)
            return "taken"

        take.__annotations__ = {"value": VALUES[kind][0], "return": str}
        return Tool(take, name=kind.replace(" ", "_"), requires_approval=True)

    calls = [
        call(kind.replace(" ", "_"), f"{kind} {n}", value=given) for kind, (_, given, _) in VALUES.items() for n in "ab"
    ]
    script = Script(calls, "done")
    async with run_app(Interlock([agent(script, tools=[taking(kind) for kind in VALUES])])) as app:
        run = await app.client.start("support", "go")
        for request in await app.requests(run, len(calls)):
            kind, _, n = request.call_id.rpartition(" ")
            edited = {"value": VALUES[kind][1]} if n == "b" else None
            await run.decide(request.request_id, "approve", arguments=edited, digest=request.digest)
        await run.result()

    assert got == {kind: [meant, meant] for kind, (_, _, meant) in VALUES.items()}


async def test_model_settings_reach_the_model(run_app: Running) -> None:
    seen: list[Any] = []
    script = Script("done")

    def answer(messages: list[ModelMessage], info: AgentInfo) -> Any:
        seen.append(info.model_settings)
        return script._answer(messages, info)

    script.model.function = answer
    async with run_app(Interlock([agent(script)])) as app:
        await (await app.client.start("support", "go", model_settings={"temperature": 0.25})).result()

    assert seen[0]["temperature"] == 0.25


async def test_what_a_prepare_function_leaves_out_is_not_there(run_app: Running) -> None:
    def never(ctx: RunContext[Any], tool_def: ToolDefinition) -> ToolDefinition | None:
        return None

    script = Script([call("pay", "a", order="A-1")], "sorry")
    tool = Tool(pay, requires_approval=True, prepare=never)
    async with run_app(Interlock([agent(script, tools=[tool])])) as app:
        run = await app.client.start("support", "go")

        assert (await run.result()).output == "sorry"
        assert [step.kind for step in await run.steps()] == ["model", "model"]


class Counter(AbstractToolset[Any]):
    """A toolset of a class that the framework does not know. It does its work by itself, in a thread."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.places: list[bool] = []

    @property
    def id(self) -> str:
        return "counter"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        self.places.append(workflow.in_workflow())
        schema = {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]}
        definition = ToolDefinition(name="count", parameters_json_schema=schema, kind="unapproved")
        validator: Any = TypeAdapter(dict[str, int]).validator
        return {
            "count": ToolsetTool(
                toolset=self, tool_def=definition, max_retries=ctx.max_retries, args_validator=validator
            )
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        self.places.append(workflow.in_workflow())
        if not workflow.in_workflow():
            await asyncio.to_thread(self.done.append, tool_args["by"])
        if tool_args["by"] < 0:
            raise ModelRetry("not below zero")
        return f"counted {sum(self.done)}"


async def test_a_toolset_of_a_class_of_its_own_works_in_steps(run_app: Running) -> None:
    counter = Counter()
    script = Script([call("count", "a", by=2)], [call("count", "b", by=-1)], [call("count", "c", by=3)], "done")
    async with run_app(Interlock([agent(script, toolsets=[counter])])) as app:
        run = await app.client.start("support", "go")
        for _ in range(3):
            (request,) = await app.requests(run, 1)
            await run.decide(request.request_id, "approve", digest=request.digest)
        await run.result()

        assert counter.done == [2, -1, 3]
        assert not any(counter.places)
        assert script.results() == {"a": "counted 2", "b": "not below zero", "c": "counted 4"}


async def test_a_toolset_of_a_class_of_its_own_is_what_it_was_outside_of_runs() -> None:
    counter = Counter()
    script = Script([call("count", "a", by=2)], "done")
    requests = (await agent(script, toolsets=[counter], output_type=[str, DeferredToolRequests]).run("go")).output

    assert [one.tool_call_id for one in requests.approvals] == ["a"]
    assert counter.done == []


async def test_a_run_that_began_with_such_a_toolset_in_the_workflow_goes_on_there(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Interlock([agent(Script([call("count", "a", by=2)], "done"), toolsets=[Counter()])])
    monkeypatch.setattr(Durable, "_own_toolsets_are_steps", lambda self: False)  # As it was before.
    async with running(app, server) as at_work:
        run = await at_work.client.start("support", "go")
        (request,) = await at_work.requests(run, 1)
        await run.decide(request.request_id, "approve", digest=request.digest)
        await run.result()
        history = await run._handle.fetch_history()
    monkeypatch.undo()

    await make_replayer(app).replay_workflow(history)
