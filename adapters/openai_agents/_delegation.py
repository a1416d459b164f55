"""What an agent that the code of a step runs finds of the worker around it."""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from agents import Agent, RunResult, RunResultStreaming
from temporalio import activity


class Counted(Protocol):
    """One run of an agent that is not the app's. options: of `Runner.run`, with which its model calls are counted."""

    options: dict[str, Any]

    def close(self, *_: object) -> None:
        """The run has ended, and with it the calls of it that have failed."""
        ...


class Delegating(Protocol):
    """The step that the current code belongs to, of a worker that can start runs for agents."""

    def delegates(self, agent: Agent[Any]) -> bool:
        """Whether the agent becomes a run of its own. Raises ApplicationError (`MisconfiguredError`) where it has to,
        and cannot."""
        ...

    async def delegate(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResult:
        """Run the agent as a run of its own and hand its result back."""
        ...

    def delegate_sync(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResult:
        """`delegate` for a tool that works in a thread."""
        ...

    def delegate_streamed(self, agent: Agent[Any], input: Any, options: Mapping[str, Any]) -> RunResultStreaming:
        """`delegate` for code that reads events: they come when the run has ended."""
        ...

    def counted(self, options: Mapping[str, Any]) -> Counted:
        """What an agent that is not the app's is run with, so that its model calls count as those of the run."""
        ...


current_step: ContextVar[Delegating | None] = ContextVar("interlock_openai_step", default=None)


def step_here() -> Delegating | None:
    """The step that the current code belongs to."""
    return current_step.get() if activity.in_activity() else None
