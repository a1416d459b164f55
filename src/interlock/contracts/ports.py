"""What workflow code and the adapters' deterministic halves promise each other."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol

from interlock.contracts.payloads import (
    Account,
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
    TimeLimit,
    Usage,
)
from interlock.contracts.sessions import OpenTurn, SessionState, TurnClaim, TurnEnd, TurnEnded, TurnReceipt


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
    ruled: called with the request's id, the ruling and who gave it, at the moment in which it is given.
    time_limit: of the request, as the tool has it; None when the tool says nothing.
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
    ruled: "Callable[[str, Ruling, str], None] | None" = None
    time_limit: TimeLimit | None = None


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


class ModelCall(Protocol):
    """One call of a model that is under way."""

    def used(self, usage: Usage) -> None:
        """Take what the call has used: at once, from what its activity returned, attempts that failed included."""
        ...


class CallsInside(Protocol):
    """The model calls that the code of one step makes by itself.

    key: what the step names itself by in `StepCalls`; empty without a budget, when it need not ask.
    """

    key: str

    def used(self, usage: Usage) -> None:
        """Take what the step says, at its end, that they have used; also when it has failed."""
        ...


class Gate(Protocol):
    """Where a gated call waits. Many may wait at once; each goes on at its own answer."""

    @property
    def account(self) -> Account | None:
        """The keeper of the run's budget, for the inputs of runs that the run's tools start; None without a budget."""
        ...

    async def ask(self, call: GatedCall) -> Ruling:
        """Wait for the ruling. Cancelling the wait withdraws the request.

        Raises ApplicationError (`ApprovalTimeoutError`, not retried), which has to end the run, when nobody has
        answered in time and the request's time limit says so.
        """
        ...

    def model_call(self, agent_path: tuple[str, ...]) -> AbstractAsyncContextManager[ModelCall]:
        """Enter it around every single call of a model, in the workflow, with nothing else inside than its activity.

        Entering waits while the run's budget is used up. Raises ApplicationError (`BudgetUsedUpError`, not retried),
        which has to end the run, when it stays so.
        """
        ...

    def step(self) -> AbstractContextManager[CallsInside]:
        """Enter it around an activity whose code may make model calls by itself: each asks by the update
        `begin_model_call`. One that has no room does not wait there: enter `model_call`, which waits, and start again.
        """
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

    @property
    def keeps(self) -> bool:
        """Whether a run is kept at all; otherwise a step that has failed for good ends it at once."""
        ...

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
    agent: whose turn it is, by name; empty for the run's own. previous_response_id: of the answer that the messages go
    on from, where the provider keeps it. used_tools: the agents that have used tools, by name, where that matters.
    deps: as the run's tools have changed them; null when they stay as given.
    new_from: as in `RunOutput`.
    made: what `CallScope.still_made` says. reviews_left: as in `Carried`.
    """

    messages: list[Json]
    usage: Usage
    usage_limits: dict[str, Json] | None
    calls: int
    agent: str = ""
    previous_response_id: str | None = None
    used_tools: Sequence[str] = ()
    deps: Json = None
    new_from: int = 0
    made: Mapping[str, MadeCall] = field(default_factory=dict)
    reviews_left: int | None = None


class AgentRunner(Protocol):
    """The deterministic half of an adapter for one agent: runs it in the workflow.

    framework: a name that never changes, such as `pydantic-ai`, for the JSON form of the messages that it takes
    (`RunInput.message_history`) and gives (`RunOutput.messages`). Agents of one framework can take turns in a session.
    """

    framework: str

    async def run(
        self, run: RunInput, gate: Gate, recovery: Recovery, is_long: Callable[[], bool]
    ) -> RunOutput | Continuation:
        """Run the agent to its end, or to where `is_long` says, between two requests to its model, that the execution's
        history has become long.

        Of a session it knows nothing: the conversation so far is `run.message_history`, and what the run adds to it is
        `output.messages[output.new_from:]`, so `new_from` has to say where the run's own messages begin.

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


class Prices(Protocol):
    """What calls of models cost."""

    def cost_usd(self, model: str, usage: Usage) -> Decimal | None:
        """What one call costs; None when the price is not known here. model: as the provider names it."""
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


class Sessions(Protocol):
    """Reaches the sessions on the server. Each method raises UnavailableError when nobody answers."""

    async def state(self, session_id: str) -> SessionState | None:
        """What the session says of itself; None when there is none."""
        ...

    async def messages(self, session_id: str) -> list[Json]:
        """The session's conversation."""
        ...

    async def take_turn(self, claim: TurnClaim) -> TurnReceipt:
        """Claim a turn; the first claim begins the session.

        Raises ApplicationError, not retried, with the session's own type and words when it takes no such turn.
        """
        ...

    async def end_turn(self, end: TurnEnd) -> TurnEnded:
        """Report the end of a turn."""
        ...

    async def is_over(self, turn: OpenTurn) -> bool:
        """Whether the run of a turn has ended, however it did."""
        ...


class Histories(Protocol):
    """Reads what runs have recorded."""

    async def result(self, step: StepResult) -> Any:
        """The stored payload that completed an activity. Raises RefusedError when it is no longer there."""
        ...

    async def model_calls(self, workflow_id: str, run_id: str) -> Mapping[str, Any]:
        """The stored inputs of a run's model calls, by the names of their steps. Raises RefusedError when there is no
        such run."""
        ...


class EventSink(Protocol):
    """Takes what a model or a tool says while it works, for whoever watches the run. It never waits and never raises.

    An adapter's activity that asks a model looks whether there is one in `event_sink`. If so it asks for a stream,
    gives each piece as it comes, and returns the whole answer as ever. It need not tell the last piece, nor a failure:
    what the answer holds beyond the pieces is read from the recorded step.
    """

    def text(self, delta: str) -> None:
        """The model's answer goes on."""
        ...

    def thinking(self, delta: str) -> None:
        """What the model thinks goes on."""
        ...

    def call(self, call_id: str, tool: str, delta: str) -> None:
        """The model writes a call: its arguments, as JSON, go on. Each time with the same id and the whole name."""
        ...

    def progress(self, done: float | None, total: float | None, text: str) -> None:
        """The tool is at done of total. Only the latest counts. May be called from any thread."""
        ...


Runners = Mapping[str, AgentRunner]


class Adapter(ToolCatalog, Protocol):
    """What a worker needs of the framework that its agents are written with."""

    @property
    def runners(self) -> Runners:
        """The deterministic half of each agent that a run can be started of."""
        ...

    @property
    def activities(self) -> Sequence[Callable[..., Any]]:
        """Models, tools and whatever else of the agents runs in activities."""
        ...

    @property
    def child_workflows(self) -> Sequence[type]:
        """Workflows that tools run in."""
        ...

    @property
    def payload_converter(self) -> type[Any]:
        """How the framework's values are written and read."""
        ...

    @property
    def interceptors(self) -> Sequence[Any]:
        """The interceptors of the worker."""
        ...

    def tools(self) -> Mapping[str, Sequence[str]]:
        """What each agent has of tools, by its name, as a person is shown it."""
        ...

    def unmade_models(self) -> Iterator[tuple[str, str, Exception]]:
        """The agents whose model, given by its name, cannot be made here: the agent, the model, and why. Nothing is
        asked of a provider."""
        ...

    async def close(self) -> None:
        """End what the activities hold open, once the worker has stopped."""
        ...


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

event_sink: ContextVar[EventSink | None] = ContextVar("interlock_event_sink", default=None)
"""Set in the activities of a run that is streamed."""

place: ContextVar[str] = ContextVar("interlock_place", default="")
"""Where in the run the current code belongs, as `places.step_parts` says; empty for the run's own agent."""
