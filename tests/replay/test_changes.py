"""Which changes to an agent a waiting run survives: measured with a real history, and what docs/upgrades.md says."""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from interlock import Interlock, Settings
from interlock.adapters.pydantic_ai import Durable
from interlock.replay import Replayed, Stored, replaying
from interlock.server import EmbeddedServer
from interlock.testing import running

PAGE = Path(__file__).parents[2] / "docs" / "upgrades.md"
ROW = re.compile(r"^\| (.+?) \| (yes|no) \| (stays|is asked again|-) \|", re.MULTILINE)


class Tenant(BaseModel):
    name: str


class LaterTenant(Tenant):
    level: int = 0


class OtherTenant(BaseModel):
    number: int


def look_up(order: str) -> str:
    """Say where an order is."""
    return f"{order} is lost"


def find(order: str) -> str:
    """Find an order."""
    return f"{order} found"


def count(ctx: RunContext[Any]) -> str:
    """Count, at the second time."""
    if ctx.retry == 0:
        raise ModelRetry("again")
    return "3"


def unused() -> str:
    """Do what no model asks for."""
    return "never"


def refund(order: str, amount: float) -> str:
    """Pay money back."""
    return f"refunded {amount:.2f} for {order}"


def transfer(amount: int) -> str:
    """Move money."""
    return f"moved {amount}"


TURNS = [
    [ToolCallPart("look_up", {"order": "A-1"}), ToolCallPart("find", {"order": "A-1"})],
    [ToolCallPart("transfer", {"amount": 5})],
    [ToolCallPart("count", {})],
    [ToolCallPart("count", {})],
    [ToolCallPart("refund", {"order": "A-1", "amount": 42.0})],
]


def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    turn = sum(isinstance(message, ModelResponse) for message in messages)
    return ModelResponse(parts=TURNS[turn] if turn < len(TURNS) else [TextPart("done")])


def over_limit(ctx: RunContext[Any], tool_def: Any, args: dict[str, Any]) -> bool:
    return bool(args["amount"] > 100)


def build(
    *,
    tools: Mapping[str, Tool[Any]] | None = None,
    without: str = "",
    turned: bool = False,
    toolsets: list[Any] | None = None,
    capabilities: list[Any] | None = None,
    durable: dict[str, Any] | None = None,
    more: list[Any] | None = None,
    **options: Any,
) -> Interlock:
    """The app, with what is changed. tools: instead of the ones of the same name, or beside them. turned: in order."""
    mine: dict[str, Tool[Any]] = {
        "look_up": Tool(look_up),
        "find": Tool(find),
        "count": Tool(count),
        "unused": Tool(unused),
        "refund": Tool(refund, requires_approval=True),
        **(tools or {}),
    }
    mine.pop(without, None)
    given: dict[str, Any] = {
        "name": "support",
        "deps_type": Tenant,
        "instructions": "Be kind.",
        "model": FunctionModel(answer, model_name="scripted"),
        **options,
    }
    support: Any = Agent(
        tools=list(mine.values())[:: -1 if turned else 1],
        toolsets=plus() if toolsets is None else toolsets,
        capabilities=[*(capabilities or []), Durable(**(durable or {}))],
        **given,
    )
    return Interlock([support, *(more or [])], settings=Settings(task_queue="changes"))


def plus(*toolsets: Any, transfers: Any = None) -> list[Any]:
    """The toolsets, with more, or with another one of transfers."""
    default = FunctionToolset([transfer], id="transfers").approval_required(over_limit)
    return [default if transfers is None else transfers, *toolsets]


def gated(function: Callable[..., Any], **options: Any) -> dict[str, Tool[Any]]:
    return {"refund": Tool(function, name="refund", requires_approval=True, **options)}


def refund_with_a_note(order: str, amount: float, note: str = "") -> str:
    """Pay money back."""
    return note


def refund_in(order: str, amount: float, currency: str) -> str:
    """Pay money back."""
    return currency


def find_with_a_limit(order: str, limit: int = 3) -> str:
    """Find an order."""
    return f"{order} {limit}"


def find_by_number(order: int) -> str:
    """Find an order."""
    return str(order)


def another() -> str:
    """Do something new."""
    return "new"


def judge(ctx: RunContext[Any], requests: Any) -> None:
    return None


class Hook(AbstractCapability[Any]):
    """Does something before each model request."""

    def __init__(self, does: Callable[[], Any]) -> None:
        self._does = does

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        if ctx.agent.name == "support":
            await self._does()
        return request_context


async def think() -> None:
    return None


guard: Any = Agent(FunctionModel(answer, model_name="guard"), name="guard", capabilities=[Durable()])
longer = {"start_to_close_timeout": timedelta(minutes=5)}

CHANGES: dict[str, Callable[[], Interlock]] = {
    "nothing": build,
    "what a tool does": lambda: build(
        tools={"find": Tool(lambda order: "nowhere", name="find", description="Find an order.")}
    ),
    "the agent's instructions": lambda: build(instructions=lambda ctx: "Be brief."),
    "the model or its settings": lambda: build(
        model=FunctionModel(answer, model_name="another"), model_settings={"temperature": 0.1}
    ),
    "the output type": lambda: build(output_type=LaterTenant),
    "the description of a tool that has run": lambda: build(tools={"find": Tool(find, description="Look for it.")}),
    "the description of a tool that waits": lambda: build(tools=gated(refund, description="Give it back.")),
    "the order of the tools": lambda: build(turned=True),
    "one tool more": lambda: build(tools={"another": Tool(another)}),
    "one toolset more, of functions": lambda: build(toolsets=plus(FunctionToolset([another], id="more"))),
    "one agent more in the app": lambda: build(more=[guard]),
    "without a tool that the run has not called": lambda: build(without="unused"),
    "one parameter with a default more, of a tool that has run": lambda: build(
        tools={"find": Tool(find_with_a_limit, name="find")}
    ),
    "one parameter with a default more, of a tool that waits": lambda: build(tools=gated(refund_with_a_note)),
    "one field with a default more in the dependencies": lambda: build(deps_type=LaterTenant),
    "the predicate of `approval_required`": lambda: build(
        toolsets=plus(transfers=FunctionToolset([transfer], id="transfers").approval_required(lambda *_: True))
    ),
    "more retries": lambda: build(retries=5),
    "time limits and retry policies of activities": lambda: build(durable={"activity_config": longer}),
    "a hook that neither waits nor calls anything": lambda: build(capabilities=[Hook(think)]),
    "the name of the agent": lambda: build(name="helper"),
    "the name of a tool that the run has called, or the tool is gone": lambda: build(without="find"),
    "the `id` of the toolset of such a tool": lambda: build(
        without="find", toolsets=plus(FunctionToolset([find], id="more"))
    ),
    "an approval for such a tool, where it needed none": lambda: build(
        tools={"find": Tool(find, requires_approval=True)}
    ),
    "no approval any more for a tool that waits": lambda: build(tools={"refund": Tool(refund)}),
    "`approval_required(...)` around a toolset that the run has used, or no longer": lambda: build(
        toolsets=plus(transfers=FunctionToolset([transfer], id="transfers"))
    ),
    "one parameter without a default more, of a tool that waits": lambda: build(tools=gated(refund_in)),
    "another type of a parameter, which earlier arguments do not fit": lambda: build(
        tools={"find": Tool(find_by_number, name="find")}
    ),
    "`sequential=True` for a tool that ran beside others": lambda: build(tools={"find": Tool(find, sequential=True)}),
    '`metadata={"temporal": False}` for a tool that the run has called': lambda: build(
        tools={"find": Tool(in_workflow, name="find", metadata={"temporal": False})}
    ),
    "fewer retries than the run has used": lambda: build(retries=0),
    "dependencies that the run's own do not fit": lambda: build(deps_type=OtherTenant),
    "a hook that calls a model or an agent, or sleeps": lambda: build(
        capabilities=[Hook(lambda: guard.run("Fine?"))], more=[guard]
    ),
    "a judge, where there was none": lambda: build(capabilities=[HandleDeferredToolCalls(judge)]),
    "one MCP server more": lambda: build(toolsets=plus(MCPToolset("http://127.0.0.1:1/mcp", id="shelf"))),
}


async def in_workflow(order: str) -> str:
    """Find an order."""
    return order


@pytest.fixture(scope="module")
async def waiting(server: EmbeddedServer) -> Stored:
    """The history of a run that has done much and waits for an approval."""
    async with running(build(), server) as app:
        run = await app.client.start("support", "go", deps={"name": "Ann"})
        await app.requests(run, 1)
        return Stored(await app.client.temporal.get_workflow_handle(run.id).fetch_history())


async def replayed(app: Interlock, stored: Stored) -> Replayed:
    async with replaying(app) as replay:
        return await replay(stored)


def fingerprint(app: Interlock) -> str:
    """What the approval of the waiting call is bound to."""
    return app.adapter().fingerprint("support", "<agent>", "refund")


def promised() -> dict[str, tuple[str, str]]:
    """What the page says: by change, whether a waiting run replays, and what becomes of the approval it waits for."""
    return {found[1]: (found[2], found[3]) for found in ROW.finditer(PAGE.read_text())}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.replace(" ", "-"))
async def test_a_change_does_to_waiting_runs_what_the_page_says(change: str, waiting: Stored) -> None:
    app = CHANGES[change]()
    found = await replayed(app, waiting)
    replays = found.outcome == "replays"
    approval = ("stays" if fingerprint(app) == fingerprint(build()) else "is asked again") if replays else "-"

    assert ("yes" if replays else "no", approval) == promised()[change], found.divergence and found.divergence.message


def test_the_page_promises_nothing_that_is_not_measured() -> None:
    assert list(promised()) == list(CHANGES)
