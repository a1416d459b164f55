"""What a user says of a tool, and what a tool can ask of the run it belongs to."""

from typing import TypeVar

from agents import FunctionTool, RunContextWrapper
from agents.tool_context import ToolContext

from interlock.adapters._calls import current_key
from interlock.contracts.ports import event_sink

Tool = TypeVar("Tool", bound=FunctionTool)

_IDEMPOTENT = "_interlock_idempotent"


def idempotent(tool: Tool) -> Tool:
    """Declare that running a call of the tool twice is the same as running it once, and return the tool.

    An approved call of such a tool has as many attempts as its retry policy gives it; of any other it has one.
    """
    setattr(tool, _IDEMPOTENT, True)
    return tool


def is_idempotent(tool: FunctionTool) -> bool:
    """Whether the tool was declared to be."""
    return getattr(tool, _IDEMPOTENT, False) is True


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
