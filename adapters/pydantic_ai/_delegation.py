"""What an agent that runs inside a tool's activity finds of the worker around it."""

from contextvars import ContextVar
from typing import Any, Protocol

from pydantic_ai import RunContext
from pydantic_ai.run import AgentRunResult


class Delegating(Protocol):
    """A worker that can start runs for agents inside its activities."""

    async def delegate(self, agent: str, ctx: RunContext[Any]) -> AgentRunResult[Any]:
        """Run the agent as a run of its own and hand its result back."""
        ...


current_worker: ContextVar[Delegating | None] = ContextVar("interlock_current_worker", default=None)
