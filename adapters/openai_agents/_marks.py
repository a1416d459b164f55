"""What a user says of a tool, and what a tool can ask of the run it belongs to."""

from collections.abc import Sequence
from typing import TypeVar

from agents import FunctionTool, HostedMCPTool, RunContextWrapper
from agents.mcp import MCPServer
from agents.tool_context import ToolContext

from interlock.adapters._calls import current_key
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.limits import Limit, time_limit
from interlock.contracts.payloads import TimeLimit
from interlock.contracts.ports import event_sink

Tool = TypeVar("Tool", bound=FunctionTool)
Gated = TypeVar("Gated", bound=FunctionTool | HostedMCPTool | MCPServer)

_IDEMPOTENT = "_interlock_idempotent"
TIME_LIMIT = "_interlock_time_limit"
"""The attribute that holds the time limit of a tool's, or a server's, requests."""


def idempotent(tool: Tool) -> Tool:
    """Declare that running a call of the tool twice is the same as running it once, and return the tool.

    An approved call of such a tool has as many attempts as its retry policy gives it; of any other it has one.
    """
    setattr(tool, _IDEMPOTENT, True)
    return tool


def is_idempotent(tool: FunctionTool) -> bool:
    """Whether the tool was declared to be."""
    return getattr(tool, _IDEMPOTENT, False) is True


def approval(
    tool: Gated,
    limit: Limit | None = None,
    *,
    after_seconds: float | None = None,
    then: str = "deny",
    to: Sequence[str] = (),
) -> Gated:
    """Limit the time that requests for a tool's approval wait, and return the tool. No limit approves.

    tool: or an MCP server, for the requests of all its tools, or a `HostedMCPTool`.
    after_seconds: since the request was opened. then: `deny`: the call does not run, and the model is told that nobody
    answered; `fail`: the run ends with `ApprovalTimeoutError`; `escalate`: the request stays open, and says to whom
    (`to`) it was escalated. limit: several such stages, `[{"after_seconds": 3600, "then": "escalate", "to": ["ops"]},
    ...]`, in place of one; an empty list waits on.
    Raises MisconfiguredError for what is no time limit.
    """
    name = str(getattr(tool, "name", tool))
    if (limit is None) is (after_seconds is None):
        raise MisconfiguredError(f"The time limit of {name!r} takes either after_seconds or a list of stages.")
    stage = {"after_seconds": after_seconds, "then": then, "to": to}
    try:
        setattr(tool, TIME_LIMIT, time_limit(stage if limit is None else limit))
    except ValueError as error:
        raise MisconfiguredError(f"The time limit of {name!r} is none: {error}.") from None
    return tool


def limit_of(tool: FunctionTool | HostedMCPTool | MCPServer | None) -> TimeLimit | None:
    """The time limit that was set; None when none was."""
    limit: TimeLimit | None = getattr(tool, TIME_LIMIT, None)
    return limit


def idempotency_key(ctx: ToolContext[object]) -> str:
    """A key for one tool call, to hand to whatever the tool calls: the same in every attempt of the call.

    It stays the same over attempts, replays, resets and restarts of workers and servers; another call, also one with
    equal arguments, has another. 32 hex digits in a run; outside of one, the framework's own id of the call.
    """
    return current_key.get() or ctx.tool_call_id


def progress(
    ctx: RunContextWrapper[object], done: float | None = None, total: float | None = None, text: str = ""
) -> None:
    """Tell whoever watches the run how far a tool is: done of total, with a word about it, or any of these.

    Cheap, and may be called as often as you like, from any thread: of what comes fast only the latest is recorded. It
    does nothing where the run is not streamed.
    """
    if (sink := event_sink.get()) is not None:
        sink.progress(done, total, text)
