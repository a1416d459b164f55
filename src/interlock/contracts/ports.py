"""What workflow code and the adapters' deterministic halves promise each other."""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from interlock.contracts.payloads import (
    Json,
    JudgeVerdict,
    MadeCall,
    Outcome,
    RequestKind,
    Retry,
    RunInput,
    RunOutput,
    StepResult,
    Ticket,
    Usage,
)


@dataclass(frozen=True)
class Unreadable:
    """Stands for a message, or a value in a history, that cannot be read. why: it quotes nothing of what was there."""

    why: str


@dataclass(frozen=True)
class GatedCall:
    """One tool call that must not run before somebody has said so.

    kind: as in `ApprovalRequest`. arguments: the prepared ones, as plain JSON.
    check: turns edited arguments into the JSON form that will run, or raises ValueError saying what is wrong.
    judge: asks the agent's judges, as an activity; None when there are none.
    question: as in `ApprovalRequest`.
    """

    kind: RequestKind
    agent_path: tuple[str, ...]
    toolset: str
    tool: str
    description: str
    call_id: str
    arguments: dict[str, Json]
    metadata: Json
    check: Callable[[Mapping[str, Json]], dict[str, Json]]
    judge: Callable[[], Awaitable[JudgeVerdict]] | None = None
    question: str = ""


@dataclass(frozen=True)
class Ruling:
    """How a gated call goes on.

    outcome: as in `Receipt`. arguments: the ones to run. edited: whether they differ
    from what was asked. reason: for the model; empty when nobody gave one. result: of a completed call.
    ticket: what the tool's activity checks; set when approved.
    """

    outcome: Outcome
    arguments: dict[str, Json]
    edited: bool = False
    reason: str = ""
    result: Json = None
    ticket: Ticket | None = None


class Gate(Protocol):
    """Where a gated call waits. Many may wait at once; each goes on at its own answer."""

    async def ask(self, call: GatedCall) -> Ruling:
        """Wait for the ruling. Cancelling the wait withdraws the request."""
        ...

    def count(self, usage: Usage) -> None:
        """Take what the run's own agents have used so far; the last call counts."""
        ...


@dataclass(frozen=True)
class FailedStep:
    """A step that has failed for good.

    kind, agent_path, label: as in `StuckStep`. error: what ends the run when nobody has the step run again.
    check_limits: raises ValueError, saying why, for usage limits the agent cannot take, and with True also for those
    that leave it no request; None where limits are no help.
    """

    kind: str
    agent_path: tuple[str, ...]
    label: str
    error: Exception
    check_limits: Callable[[dict[str, Json], bool], object] | None = None


class Recovery(Protocol):
    """Where a step that has failed for good keeps its run until somebody has the step run again."""

    async def wait(self, step: FailedStep) -> Retry:
        """Wait until the step is to run again. Raises its error when nobody asks for that in time."""
        ...

    def agents_of(self, key: str) -> tuple[int, int]:
        """How many runs of agents the tool call with this key has started, and how many of them have ended."""
        ...

    async def end_agents(self, key: str) -> None:
        """End the runs of agents that the tool call with this key has started and left open: it has settled, so nobody
        waits for them."""
        ...


@dataclass(frozen=True)
class Continuation:
    """Where an agent stands between two requests to its model, for another execution to go on from.

    messages: the conversation as the framework's JSON, ending with the request that is to be made.
    usage: of the run's own agents so far. usage_limits: as they stand. calls: tool calls made so far.
    made: what `CallScope.still_made` says.
    """

    messages: list[Json]
    usage: Usage
    usage_limits: dict[str, Json] | None
    calls: int
    made: Mapping[str, MadeCall] = field(default_factory=dict)


class AgentRunner(Protocol):
    """The deterministic half of an adapter for one agent: runs it in the workflow."""

    async def run(
        self, run: RunInput, gate: Gate, recovery: Recovery, is_long: Callable[[], bool]
    ) -> RunOutput | Continuation:
        """Run the agent to its end, or to where `is_long` says, between two requests to its model, that the execution's
        history has become long.

        Raises ApplicationError, not retried, with the type of what ended the run: an input the agent cannot take
        (`InvalidInputError`), or whatever the framework's loop, a hook, a validator or a tool raised. What running
        again can help against is kept with `recovery` first.
        """
        ...


class ToolCatalog(Protocol):
    """What a worker knows of the tools of its agents."""

    def fingerprint(self, agent: str, toolset: str, tool: str) -> str:
        """The fingerprint of a tool as this worker's code has it. Raises MisconfiguredError when there is none."""
        ...


class SubRuns(Protocol):
    """Starts runs from inside a tool's activity."""

    async def run(self, workflow_id: str, run: RunInput, *, not_before: datetime) -> RunOutput:
        """Start the run, or attach to it when it is already there, and wait for its end.

        not_before: a run that ended without an output before this time is started over.
        Raises RunFailedError when it ended without an output.
        """
        ...

    async def cancel(self, workflow_id: str) -> None:
        """Ask the run to end, if it has not ended."""
        ...

    async def is_over(self, workflow_id: str) -> bool:
        """Whether the run has ended."""
        ...


class Histories(Protocol):
    """Reads what runs have recorded."""

    async def result(self, step: StepResult) -> Any:
        """The stored payload that completed an activity. Raises RefusedError when it is no longer there."""
        ...


Runners = Mapping[str, AgentRunner]


class Body(Protocol):
    """What runs the body of one tool call: an activity or a workflow, once it has begun."""

    handle: Any

    def begun(self, handle: Any) -> Any:
        """Take the handle, and hand it on."""
        ...


@dataclass(frozen=True)
class ActivityPlan:
    """How the activities that are started in this context are shown and retried.

    summary: one line, no secrets. retries: a Temporal `RetryPolicy` in place of the one they are started with, whose
    never-retried error types stay; None leaves it. call: a digest of the tool call that is made. body: of that call;
    one that has begun is not begun again.
    """

    summary: str
    retries: Any = None
    call: str = ""
    body: Body | None = None


activity_plan: ContextVar[ActivityPlan | None] = ContextVar("interlock_activity_plan", default=None)

place: ContextVar[str] = ContextVar("interlock_place", default="")
"""Where in the run the current code belongs, as `places.step_parts` says; empty for the run's own agent."""
