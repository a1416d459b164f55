"""One frozen pydantic model per message on the wire.

Evolve one by adding a field with a default. Never rename, retype, remove or re-mean a field: histories hold the old
ones for as long as they are kept.
"""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

LONGEST_AGENT_NAME = 200
AgentName = Annotated[str, Field(min_length=1, max_length=LONGEST_AGENT_NAME)]
Json = Any
"""A value that is plain JSON: it comes back from a history as it went in."""

_DEEPEST = 100  # JSON that is nested 200 deep cannot be read, and what is sent ends up inside of messages and records.


def _travels(value: Json) -> Json:
    """JSON from a sender who may send anything has finite numbers and is not nested too deep."""
    for level in levels(value, _DEEPEST):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValueError("numbers have to be finite")
    return value


def levels(value: Json, deepest: int) -> Iterator[list[Json]]:
    """The values in a JSON value, level by level. Raises ValueError when there are more levels than these."""
    level = [value]
    for _ in range(deepest + 1):
        yield level
        inner = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in inner for item in items]
    if level:
        raise ValueError(f"is nested more than {deepest} deep")


def _short_enough(workflow_id: str) -> str:
    # A task that names a longer one is refused by the server, again and again.
    if len(workflow_id.encode()) > 1_000:
        raise ValueError("at most 1,000 bytes are allowed")
    return workflow_id


WorkflowId = Annotated[str, Field(min_length=1), AfterValidator(_short_enough)]


def _plain_name(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("control characters, and spaces around it, are not allowed")
    return name


SessionId = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain_name)]
"""A name that people give a conversation: 1 to 200 characters that can be shown."""

Reviewer = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain_name)]
"""A person or a role: 1 to 200 characters that can be shown."""


class Payload(BaseModel):
    """The base of every message. Unknown fields are left out, so that readers can be older than writers."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Message(Payload):
    """The base of what anybody can send to a run that is under way. One that cannot be read is refused."""


class Usage(Payload):
    """What the model calls of a run used. Each model call counts once, whatever was retried or replayed.

    requests: model calls that answered. tool_calls: tool bodies that returned. Tokens as the provider counts them.
    cost_usd: of the calls whose price was known when they were made. unpriced: of how many it was not.
    """

    requests: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields})


MOST_COUNTED = 10**12
MOST_USD = 10**9

_Count = Annotated[int, Field(gt=0, le=MOST_COUNTED, strict=True)]
_Usd = Annotated[Decimal, Field(gt=0, le=MOST_USD, allow_inf_nan=False)]


class Limits(Payload):
    """Amounts of what model calls use; null where there is none. At least one is given, each above zero.

    requests: model calls. tokens: input and output together. cost_usd: US dollars.
    """

    requests: _Count | None = None
    tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cost_usd: _Usd | None = None

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.given():
            raise ValueError(f"name at least one of {', '.join(Limits.model_fields)}")
        return self

    def given(self) -> dict[str, int | Decimal]:
        """The amounts that are there, by name."""
        return {name: value for name in Limits.model_fields if (value := getattr(self, name)) is not None}


class Budget(Limits):
    """What all agents of a run together may use: its own, its judges, and the runs that its tools start, at any depth.

    when_used_up: `ask` a person whether to extend it, or `end` the run. unpriced: what follows when a call's price is
    not known and there is a limit on the cost: `ask` whether to go on without counting such calls, `end` the run, or
    `ignore` what they cost. ask_seconds: for how long is asked before the run ends; null: for as long as it takes.
    """

    when_used_up: Literal["ask", "end"] = "ask"
    unpriced: Literal["ask", "end", "ignore"] = "ask"
    ask_seconds: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None


class Extension(Limits):
    """What somebody adds to a budget. It counts once, whoever tells of it how often.

    run_id: of the first execution of the run that asked. request_id: of the request there.
    unpriced: from here on calls without a known price are not counted towards the cost.
    """

    run_id: Annotated[str, Field(max_length=100)]
    request_id: Annotated[str, Field(max_length=500)]
    unpriced: bool = False

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.given() and not self.unpriced:
            raise ValueError(f"name at least one of {', '.join(Limits.model_fields)}")
        return self


def extended(budget: Budget, extension: Extension) -> Budget:
    """The budget with what somebody adds to it. A limit that it does not have stays away."""
    change: dict[str, object] = {"unpriced": "ignore"} if extension.unpriced else {}
    for name, more in extension.given().items():
        if (limit := budget.given().get(name)) is not None:
            change[name] = min(limit + more, Decimal(MOST_USD) if name == "cost_usd" else MOST_COUNTED)
    return budget.model_copy(update=change)


class Account(Payload):
    """The run that keeps the budget of this one: the root of the tree that it belongs to.

    run_id: of its first execution.
    """

    workflow_id: WorkflowId
    run_id: Annotated[str, Field(max_length=100)]


class Claim(Message):
    """What a run that a tool has started says to the keeper of its budget: all of it, so that a later one replaces it.

    workflow_id, run_id: the run, and its first execution. sequence: grows. used: by its own agents and judges so far.
    calls: numbers of the model calls that it wants to make or is making, in their order. extensions: that people have
    decided there. ended_by: why nobody may make another call, when a person there has said so.
    """

    workflow_id: WorkflowId
    run_id: Annotated[str, Field(max_length=100)]
    sequence: int
    used: Usage = Usage()
    calls: Annotated[tuple[int, ...], Field(max_length=10_000)] = ()
    extensions: Annotated[tuple[Extension, ...], Field(max_length=10_000)] = ()
    ended_by: Annotated[str, Field(max_length=4_000)] = ""


class BudgetState(Payload):
    """How a budget stands. limits: with what it was extended by. spent: by the whole tree of runs.

    under_way: model calls that have begun and not ended. waiting: that wait for the budget.
    lacks: names of the limits that keep another call from being made; `unpriced` when it is that nobody knows what is
    left. proposal: what a person is asked to extend it by. ended_by: why no call may be made any more.
    """

    limits: Budget
    spent: Usage = Usage()
    under_way: int = 0
    waiting: int = 0
    lacks: tuple[str, ...] = ()
    proposal: dict[str, Json] = {}
    ended_by: str = ""


class Grant(Message):
    """The keeper of a budget says which calls of a run may be made. answers: the sequence of the claim it has read.

    run_id: of the first execution of the run that it is for. sequence: grows. calls: of those in the claim.
    """

    run_id: Annotated[str, Field(max_length=100)]
    sequence: int
    answers: int
    calls: tuple[int, ...] = ()
    state: BudgetState


class StepCalls(Message):
    """What a step says to its run before its code makes a model call of its own, when the run has a budget.

    step: as the run has told it. used: by the step's calls that have ended, those of failed attempts too. calls: how
    many are under way at once, the one that is to begin among them.
    """

    step: Annotated[str, Field(max_length=100)]
    used: Usage = Usage()
    calls: Annotated[int, Field(ge=1, le=10_000)] = 1


class Parent(Payload):
    """The run whose tool started this one. agent_path: from the root agent to the one whose tool it was."""

    workflow_id: WorkflowId
    run_id: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
    agent_path: tuple[str, ...]


DEFAULT_REVIEW_ROUNDS = 5
MOST_REVIEW_ROUNDS = 100

DEFAULT_STUCK_SECONDS = 7 * 24 * 3_600


class RunOptions(Payload):
    """What a worker needs to know about a run, fixed at its start so that a replay sees the same.

    search_attributes: the ones of Interlock's that the server has; only these are written.
    stuck_seconds: how long the run waits to be retried once a step has failed for good; 0 ends it at once.
    stream: what models and tools say while they work is recorded as they say it.
    places_by_answer: how the places of tool calls are numbered: for each agent in the order of the model's answers, or
    over the whole run in the order in which they begin, as runs did that were started before there was this field.
    needs_parent: of a run that a tool started: it ends at once when the run of that tool is over already.
    """

    search_attributes: tuple[str, ...] = ()
    stuck_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    stream: bool = False
    places_by_answer: bool = False
    needs_parent: bool = False


class RunOutput(Payload):
    """What a run gave back.

    output: the agent's output as JSON. messages: all messages of the run as the framework's JSON, oldest first;
    null when they are too large for one payload (the history has them all). usage: sub-agents included.
    new_from: how many of all messages, the first ones, are from before the run.
    turn: which turn of its session the run was; null without a session, or when nothing was added to it.
    last_response_id: of the last answer of its models, as their provider knows it; null where there is none.
    last_agent, deps: of a run that a tool started, where its framework has them: the name of the agent that gave the
    output, and the dependencies as the run has changed them.
    """

    output: Json = None
    usage: Usage = Usage()
    messages: list[Json] | None = None
    new_from: int = 0
    turn: int | None = None
    last_response_id: str | None = None
    last_agent: str = ""
    deps: Json = None


RunStatusName = Literal[
    "running", "awaiting_approval", "awaiting_tool_result", "stuck", "completed", "failed", "cancelled"
]


RequestKind = Literal["approval", "tool_result", "outcome", "budget", "output"]
Outcome = Literal["approved", "rejected", "completed", "failed", "happened", "not_happened", "given_up", "timed_out"]
Verdict = Literal["approve", "reject", "happened", "not_happened", "give_up"]

LONGEST_LIMIT_SECONDS = 10**9
MOST_STAGES = 20


class Stage(Payload):
    """What follows when nobody has answered a request in time. No stage approves.

    after_seconds: since the request was opened.
    then: `deny` (the call does not run, and the model is told that nobody answered), `fail` (the run ends with
    `ApprovalTimeoutError`), or `escalate`: the request stays open, and says to whom it was escalated.
    to: people or roles, at least one for `escalate`, none otherwise.
    """

    after_seconds: Annotated[float, Field(gt=0, le=LONGEST_LIMIT_SECONDS, allow_inf_nan=False, strict=True)]
    then: Literal["deny", "fail", "escalate"]
    to: Annotated[tuple[Reviewer, ...], Field(max_length=50)] = ()

    @model_validator(mode="after")
    def _names_whom(self) -> Self:
        if self.then == "escalate" and not self.to:
            raise ValueError("`escalate` needs `to`: the people or roles that the request goes to")
        if self.then != "escalate" and self.to:
            raise ValueError(f"`to` goes with `escalate`, not with {self.then!r}")
        return self


class TimeLimit(Payload):
    """How long a request waits for people, stage by stage, and what follows. Without stages it waits on."""

    stages: Annotated[tuple[Stage, ...], Field(max_length=MOST_STAGES)] = ()

    @model_validator(mode="after")
    def _goes_on(self) -> Self:
        for before, after in zip(self.stages, self.stages[1:], strict=False):
            if before.then != "escalate":
                raise ValueError(f"nothing can follow {before.then!r}, which settles the request")
            if after.after_seconds <= before.after_seconds:
                raise ValueError(
                    f"`after_seconds` has to grow from stage to stage, all counted from the opening of the request: "
                    f"{after.after_seconds:g} comes after {before.after_seconds:g}"
                )
        return self


class Limited(Payload):
    """What the time limit of a request makes of it.

    expires_at, then: when the limit settles it, and how, if nobody answers; null for one that waits on.
    escalates_at, escalates_to: when it is escalated next, and to whom. escalated_at: when it was last, null if never.
    escalated_to: everybody to whom it was so far.
    """

    expires_at: AwareDatetime | None = None
    then: Literal["deny", "fail"] | None = None
    escalates_at: AwareDatetime | None = None
    escalates_to: tuple[str, ...] = ()
    escalated_at: AwareDatetime | None = None
    escalated_to: tuple[str, ...] = ()


class ApprovalRequest(Limited):
    """One tool call that waits for a person, or for a result from outside.

    request_id: unique within the run. run_id: the execution it belongs to; a restarted run has another.
    kind: `approval`; `tool_result` for a call whose result somebody reports; `outcome` for an approved call of which
    nobody knows whether it happened: a person looks, and says so; `budget` when the run's budget is used up: its
    arguments are what it would be extended by; `output` (since 0.4) for the output that the agent proposes, its only
    argument.
    agent_path: the agents from the root to the one that made the call.
    tool, description: as the model sees them. call_id: the model's own id for the call.
    arguments: what will run, with secrets masked; the tool gets the real ones.
    digest: binds a decision to this run, path, call, tool, arguments and tool definition.
    metadata: what the tool said when it asked.
    question: why it is asked, where the kind does not say it all; secrets masked.
    expires_at and the like: see `Limited`.
    """

    workflow_id: str
    run_id: str
    request_id: str
    kind: RequestKind = "approval"
    agent_path: tuple[str, ...]
    tool: str
    description: str = ""
    call_id: str
    arguments: dict[str, Json]
    digest: str
    metadata: Json = None
    question: str = ""
    requested_at: AwareDatetime


class Decision(Message):
    """One reviewer's answer to one approval request.

    request_id: as listed by the `approvals` query.
    verdict: `approve` or `reject`. Of an approved call whose outcome is unknown: `happened` (with the result),
    `not_happened` (it runs now), or `give_up` (the run ends). Of an output: `approve`, `reject` (with a reason: the
    agent is to change it by that), or `give_up` (the run ends).
    digest: of the request that the reviewer saw; an answer with
    another digest is refused. Empty is taken as given by somebody who saw the request's current form.
    arguments: what to run instead of what was asked, whole; a masked value left as it is keeps the real one.
    result: JSON that the model reads as the result of a call that happened.
    reason: free text, at most 2 000 characters; the model reads it when the call is rejected.
    decided_at: when the person decided, UTC, by the sender's clock.
    """

    request_id: Annotated[str, Field(max_length=500)]
    verdict: Verdict
    digest: Annotated[str, Field(max_length=500)] = ""
    arguments: Annotated[dict[str, Json] | None, AfterValidator(_travels)] = None
    result: Annotated[Json, AfterValidator(_travels)] = None
    reason: Annotated[str, Field(max_length=2_000)] = ""
    decided_by: Annotated[str, Field(max_length=200)] = ""
    decided_at: AwareDatetime


class ToolCompletion(Message):
    """The result of a tool call that ran outside. Exactly one of result and error counts; error wins.

    call_id: the model's id for the call, or the request id. result: JSON that the model reads.
    error: what went wrong, for the model. digest: as in `Decision`.
    """

    call_id: Annotated[str, Field(max_length=500)]
    result: Annotated[Json, AfterValidator(_travels)] = None
    error: Annotated[str, Field(max_length=10_000)] | None = None
    digest: Annotated[str, Field(max_length=500)] = ""
    completed_by: Annotated[str, Field(max_length=200)] = ""
    completed_at: AwareDatetime


class Receipt(Payload):
    """What became of a decision or a tool result that was accepted."""

    workflow_id: str
    request_id: str
    outcome: Outcome


class Retry(Message):
    """Somebody wants what failed for good to run again.

    step: the `step_id` of a stuck step; empty for all that are stuck.
    usage_limits: the framework's own fields by name, in place of the run's; for a run that its limits stopped.
    """

    step: Annotated[str, Field(max_length=500)] = ""
    usage_limits: Annotated[dict[str, Json] | None, AfterValidator(_travels)] = None
    reason: Annotated[str, Field(max_length=2_000)] = ""
    requested_by: Annotated[str, Field(max_length=200)] = ""
    requested_at: AwareDatetime


class RetryReceipt(Payload):
    """Which stuck steps run again."""

    workflow_id: str
    steps: tuple[str, ...]


class StuckStep(Payload):
    """A step that has failed for good and waits to be retried.

    kind: `tool` for one tool call, `model` for the agent's last request to its model.
    label: one line that says which; secrets masked. error_type, message: of the failure; secrets masked.
    ends_at: when the run ends by this failure unless the step is retried.
    """

    step_id: str
    kind: str
    agent_path: tuple[str, ...]
    label: str
    error_type: str = ""
    message: str = ""
    since: AwareDatetime
    ends_at: AwareDatetime


class Settled(Payload):
    """A request that is closed: how, by whom and when.

    label: one line that says what was decided about, with the arguments that run; secrets masked.
    by: a person as the sender named them, or `judge`. reason: the beginning of a long one; the history has all of it.
    """

    request_id: str
    tool: str
    label: str = ""
    outcome: Outcome | Literal["withdrawn"]
    by: str = ""
    at: AwareDatetime
    reason: str = ""
    edited: bool = False


class ReusedStep(Payload):
    """A step of another run whose result is taken over.

    step: which step of the run it is, as the header of its activity says. call: a digest of the call, of a tool's.
    event_id: of the event that completed it. spent: by the runs that it started.
    """

    step: str
    call: str = ""
    event_id: int
    spent: Usage = Usage()


class ReusedRuling(Payload):
    """What was decided in another run about a call whose result, or rejection, is taken over.

    place: of the call among the run's tool calls. arguments_digest: of the arguments as they were asked for.
    before_judges: a person has decided it for the fork: the agent's judges are not asked.
    denied_by_limit: nobody had answered in time.
    """

    place: str
    arguments_digest: str
    decision: Decision | None = None
    completion: ToolCompletion | None = None
    before_judges: bool = False
    denied_by_limit: bool = False


class MadeCall(Payload):
    """A call that another run made. call: the beginning of a digest of its tool and arguments. key: it had."""

    call: str
    key: str


class GivenResult(Payload):
    """Where a result comes from that a call is given.

    requests: how many requests the agent had made to its model by then. executed: the arguments that a reviewer had put
    in place of the model's; null when they are the model's.
    """

    requests: int
    executed: dict[str, Json] | None = None


class Fork(Payload):
    """How a run begins as another one did.

    workflow_id, run_id: of the other run. at: the position of its first step that is not taken over.
    key_root: what idempotency keys are made of; no longer written. made: the calls of the other run by their place:
    the fork's have the same keys for as long as they are the same calls; empty makes all have keys of their own.
    results: of calls that are not run, by their place, in place of what they returned. given: more about these.
    messages: texts in a user's voice, each added to the agent's model request of its number.
    requests: how many requests to its model the agent makes before the first that is not taken over.
    retried: after how many of these somebody had the model asked again, since its answers had failed the run.
    """

    workflow_id: str
    run_id: str
    at: int
    key_root: str = ""
    steps: tuple[ReusedStep, ...] = ()
    rulings: tuple[ReusedRuling, ...] = ()
    results: dict[str, Json] = {}
    messages: dict[str, str] = {}
    made: dict[str, MadeCall] = {}
    given: dict[str, GivenResult] = {}
    requests: int = 0
    retried: tuple[int, ...] = ()


class StepResult(Payload):
    """Which result of another run is wanted.

    given: what the step would have been given, without conversations: for those who read the history.
    """

    workflow_id: str
    run_id: str
    event_id: int
    given: Json = None


class SubRun(Message):
    """A run that a tool of this one started. usage: null while it runs."""

    workflow_id: WorkflowId
    agent: AgentName
    usage: Usage | None = None


class Carried(Payload):
    """What an execution of a run takes along from the one before it, whose history had become long.

    usage: of the run's own agents. spent_elsewhere: by its judges, and by runs of its tools that are not in sub_runs.
    calls, asked: how many tool calls and requests there were so far. key_root: what idempotency keys are made of; empty
    for the first execution of the run. settled, sub_runs: the latest requests that are closed, and the latest runs that
    its tools started, all ended. new_from: as in `RunOutput`. agent: whose turn it is, when the run's agent has handed
    over; previous_response_id: of the answer that the messages go on from; used_tools: the agents that have used tools.
    claims: how many the run has sent to the keeper of its budget. stuck: how many steps have been stuck so far. made:
    see `Fork`. reviews_left: how many outputs may still be asked about; null when none is.
    """

    usage: Usage = Usage()
    spent_elsewhere: Usage = Usage()
    calls: int = 0
    asked: int = 0
    key_root: str = ""
    settled: list[Settled] = []
    sub_runs: list[SubRun] = []
    agent: str = ""
    previous_response_id: str | None = None
    new_from: int = 0
    claims: int = 0
    stuck: int = 0
    made: dict[str, MadeCall] = {}
    used_tools: list[str] = []
    reviews_left: int | None = None


class RunInput(Payload):
    """What a run is asked to do. It never changes after the start.

    agent: the name of a registered agent.
    prompt: text, or a list of the framework's own content parts as JSON. Not empty.
    deps: JSON that the agent's dependency type accepts; absent is the same as null.
    message_history: the framework's messages as JSON, oldest first; the run goes on from there.
    model: a model name that the framework knows, or a key of the agent's own models; null is the agent's model.
    model_settings, usage_limits: the framework's own fields by name.
    requested_by: who wants the run, as the starter says it.
    parent: set when a tool of another run started this one. budget: null is without limits.
    account: set when another run keeps the budget of this one.
    fork: set when this one begins as another run did. carried: set when this execution goes on from an earlier one.
    session: the conversation that the run is a turn of; instead of message_history.
    key_root: what idempotency keys are made of, for a run that a tool started; empty makes them the run's own.
    previous_response_id: the answer, kept by the model's provider, that the run goes on from; instead of session and
    message_history. auto_previous_response_id: each request sends only what is new, and goes on from the answer before;
    so it is with a previous_response_id, too. Both since 0.4, for agents of the OpenAI Agents SDK.
    review_rounds: how many outputs, one after the other, a person is asked about before the run has one; null asks
    about none, unless the app says so of the agent. Since 0.4.
    """

    agent: AgentName
    prompt: str | list[Json]
    deps: Json = None
    message_history: list[Json] | None = None
    model: str | None = None
    model_settings: dict[str, Json] | None = None
    usage_limits: dict[str, Json] | None = None
    requested_by: str = ""
    parent: Parent | None = None
    budget: Budget | None = None
    account: Account | None = None
    options: RunOptions = RunOptions()
    fork: Fork | None = None
    carried: Carried | None = None
    key_root: str = ""
    session: SessionId | None = None
    previous_response_id: str | None = Field(default=None, min_length=1)
    auto_previous_response_id: bool = False
    review_rounds: Annotated[int, Field(ge=1, le=MOST_REVIEW_ROUNDS)] | None = None

    @model_validator(mode="after")
    def _one_past(self) -> Self:
        if self.carried is not None:
            return self
        if self.session is not None and self.message_history is not None:
            raise ValueError("session and message_history exclude each other: a session brings its own messages")
        if self.previous_response_id is not None and self.message_history is not None:
            raise ValueError(
                "previous_response_id and message_history exclude each other: the provider has the messages"
            )
        if self.session is not None and (self.previous_response_id is not None or self.auto_previous_response_id):
            raise ValueError("session and previous_response_id exclude each other: a session brings its own messages")
        return self

    @field_validator("prompt")
    @classmethod
    def _not_empty(cls, prompt: str | Sequence[Json]) -> str | Sequence[Json]:
        if not (prompt.strip() if isinstance(prompt, str) else prompt):
            raise ValueError("must not be empty")
        return prompt


class SessionPlace(Payload):
    """How a run stands with its session.

    state: `waiting` for the turns before it, `under_way`, `added` (its messages are part of the conversation),
    `not_added` (the run completed, and the session had no room for its messages, or no longer had its turn), or
    `released` (the run ended without an output). turn: the number of an added turn.
    """

    session_id: str
    state: Literal["waiting", "under_way", "added", "not_added", "released"]
    turn: int | None = None


class RunState(Payload):
    """What a run says of itself while it is open. session, budget: null without one."""

    status: RunStatusName
    agent: str
    requests: list[ApprovalRequest] = []
    settled: list[Settled] = []
    sub_runs: list[SubRun] = []
    stuck: list[StuckStep] = []
    session: SessionPlace | None = None
    budget: BudgetState | None = None


class ToolQuestion(Payload):
    """Which tool is to be described: toolset is the id of the toolset that holds it.

    time_limit: of the request, as the code that asks has it; null when that says nothing.
    The rest is for those who read the history: the request that is about to be made, with the arguments as proposed.
    """

    agent: str
    toolset: str
    tool: str
    request_id: str = ""
    kind: str = ""
    agent_path: tuple[str, ...] = ()
    call_id: str = ""
    arguments: dict[str, Json] = {}
    time_limit: TimeLimit | None = None


class ToolDescription(Payload):
    """What a worker's code says of a tool. fingerprint: of its schema, toolset and connection.

    time_limit: the one that holds for the request, whatever the code says later; null when there is none.
    """

    fingerprint: str
    time_limit: TimeLimit | None = None


class Ticket(Payload):
    """What lets an approved call run. It travels to the tool's activity and is checked there.

    arguments_digest: of the arguments that were approved. fingerprint: of the tool that was approved.
    """

    request_id: str
    agent: str
    toolset: str
    tool: str
    arguments_digest: str
    fingerprint: str


class JudgeVerdict(Payload):
    """What the judges of an agent say of one call. `ask` sends it to a person. usage: what judging cost."""

    verdict: Literal["approve", "reject", "complete", "fail", "ask"] = "ask"
    by: str = "judge"
    arguments: dict[str, Json] | None = None
    reason: str = ""
    result: Json = None
    usage: Usage = Usage()


class Said(Payload):
    """What a model or a tool said while it worked; secrets masked.

    kind: `text` or `thinking` (text: what is new), `call_delta` (a tool call that the model is writing: text names the
    tool, arguments holds those that are whole now, size counts the characters written so far), `progress` (a tool is at
    done of total, with a text).
    """

    kind: Annotated[str, Field(max_length=50)]
    text: Annotated[str, Field(max_length=100_000)] = ""
    call_id: Annotated[str, Field(max_length=500)] = ""
    arguments: Annotated[dict[str, Json], AfterValidator(_travels)] = {}
    size: Annotated[int, Field(ge=0)] = 0
    done: Annotated[float | None, Field(allow_inf_nan=False)] = None
    total: Annotated[float | None, Field(allow_inf_nan=False)] = None


class EventBatch(Message):
    """What one attempt of a step said since its last batch. Kept in the history for readers; the run takes no notice.

    activity_id, attempt: of the step. number: from 1 within the attempt. failed: why the attempt has failed, in its
    last batch; secrets masked.
    """

    activity_id: Annotated[str, Field(max_length=500)]
    attempt: Annotated[int, Field(ge=1)]
    number: Annotated[int, Field(ge=1)]
    said: Annotated[tuple[Said, ...], Field(max_length=1_000)] = ()
    failed: Annotated[str, Field(max_length=10_000)] = ""
