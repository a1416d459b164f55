"""The journal as data. It holds no secret: whatever came from a model, a tool or a person is masked and shortened."""

from typing import Literal

from pydantic import AwareDatetime

from interlock.contracts.payloads import Budget, Json, Limited, Payload, Usage

StepKind = Literal[
    "model", "tool", "judge", "description", "predicate", "guardrail", "hook", "handoff", "instructions", "other"
]
StepStatus = Literal["scheduled", "completed", "failed", "timed_out", "cancelled", "abandoned"]
Via = Literal["update", "signal", "judge", "fork", "limit"]


class Step(Payload):
    """One activity of a run.

    position: from 1, in the order in which the execution scheduled its activities; it never changes.
    kind: `model`, `tool`, `judge` (an agent's judges were asked about a call), `description` (what the worker's code
    says of a tool that somebody is about to be asked about), `predicate` (whether a call needs an approval), `other`.
    agent_path: the agents from the root to the one whose step it is. name: of the model, the tool or the activity.
    summary: the line that the Temporal UI shows.
    status: a tool that failed in a way its model was told of is `failed` too; `abandoned` when the run ended first.
    outcome: in a word or two what came back, such as `returned`, `calls refund` or a judge's verdict.
    attempts: 0 until one has begun. scheduled_at: by the run. started_at: the last attempt. seconds: from the
    scheduling to the end, so the earlier attempts and the waits between them are in it.
    error: `Type: message` of what ended it. last_error: the same of the attempt before the last, or of the last one
    while it is tried again.
    bytes_in, bytes_out: of the stored payloads. usage: what it cost. arguments: of the call.
    request_id: of the request it belongs to. call_id: the model's own id for the call. key: its idempotency key.
    sub_runs: ids of the runs it started. reused: its result was taken over from the run that this one was forked from.
    readable: false when a payload could not be decoded.
    """

    position: int
    kind: StepKind
    agent: str
    agent_path: tuple[str, ...] = ()
    name: str
    summary: str
    status: StepStatus = "scheduled"
    outcome: str = ""
    attempts: int = 0
    scheduled_at: AwareDatetime
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    seconds: float | None = None
    error: str | None = None
    error_type: str | None = None
    last_error: str | None = None
    usage: Usage | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    arguments: dict[str, Json] | None = None
    request_id: str = ""
    call_id: str = ""
    key: str = ""
    sub_runs: tuple[str, ...] = ()
    activity_type: str = ""
    activity_id: str = ""
    event_id: int = 0
    worker: str = ""
    reused: bool = False
    readable: bool = True


class Answer(Payload):
    """What somebody said to a request.

    verdict: `approve`, `reject`, `happened`, `not_happened` or `give_up`; `complete` or `fail` for a reported result;
    `deny` or `fail` of a time limit, when nobody had answered.
    by: as the sender says it, or `judge`. at: when the run got it. decided_at: by the sender's clock.
    via: how it came; `fork` when it was taken over from the run that this one was forked from; `limit` when nobody
    answered in time.
    arguments: to run instead of what was asked. result: as reported. ignored: why it changed nothing.
    event_id: of the message; 0 when it came by none.
    """

    request_id: str
    verdict: str
    by: str = ""
    at: AwareDatetime
    decided_at: AwareDatetime | None = None
    via: Via
    reason: str = ""
    arguments: dict[str, Json] | None = None
    result: Json = None
    ignored: str = ""
    event_id: int = 0


class Request(Limited):
    """One tool call that waited for a person, a judge, or a result from outside.

    kind: `approval`, `tool_result`, `outcome` (whether an approved call happened), `budget` or `output` (whether it is
    the run's); empty when the history does not say. label: the call in one line. proposed: the arguments as asked
    about; null when the history does not hold them.
    asked_by: position of the step that described the tool. judged_by: position of the judges' step.
    answer: the one that counted. ignored: the others. outcome: `open`, `approved`, `rejected`, `completed` or `failed`
    (a reported result), `happened`, `not_happened`, `given_up`, `timed_out` (nobody answered in time), `withdrawn`.
    edited: what ran is not what was asked.
    executed: the arguments that ran. steps: positions of the steps that ran them.
    waited_seconds: until it was settled; of an open request until the journal was read.
    """

    request_id: str
    kind: str = ""
    agent_path: tuple[str, ...]
    tool: str
    label: str
    call_id: str = ""
    proposed: dict[str, Json] | None = None
    asked_at: AwareDatetime
    asked_by: int
    judged_by: int | None = None
    outcome: str = "open"
    answer: Answer | None = None
    ignored: tuple[Answer, ...] = ()
    settled_at: AwareDatetime | None = None
    waited_seconds: float = 0
    edited: bool = False
    executed: dict[str, Json] | None = None
    steps: tuple[int, ...] = ()


class Retry(Payload):
    """Somebody wanted what had failed for good to run again.

    step: the number of the stuck step, empty for all. by: as the sender says it. refused: why it changed nothing.
    """

    step: str = ""
    by: str = ""
    at: AwareDatetime
    requested_at: AwareDatetime | None = None
    via: Via
    reason: str = ""
    usage_limits: dict[str, Json] | None = None
    refused: str = ""


class Stuck(Payload):
    """A time in which a step that had failed for good kept the run. until: null while it does."""

    label: str
    since: AwareDatetime
    until: AwareDatetime | None = None
    outcome: Literal["open", "retried", "given_up", "ended"] = "open"


class SubRunLink(Payload):
    """A run that a step of this one started, or a child workflow.

    position: of the step that started it, null when that is not known. status: as in `Journal`, or `ended` when only
    its end is known. journal: its own, when it was read along; unread: why it could not be.
    """

    workflow_id: str
    run_id: str = ""
    workflow_type: str = ""
    agent: str = ""
    position: int | None = None
    status: str = "running"
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    usage: Usage | None = None
    error: str | None = None
    journal: "Journal | None" = None
    unread: str = ""


class Totals(Payload):
    """The sums of a journal.

    model_calls, tool_calls: that were made, by their steps. retries: attempts beyond the first.
    usage: of the steps, and of sub-runs as they reported it; its tool calls are those that returned.
    people: requests that waited for a person. waited_seconds: in which one of these, or a stuck step, did.
    elapsed_seconds: from the start to the end, or to the reading.
    """

    steps: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    failed: int = 0
    retries: int = 0
    requests: int = 0
    people: int = 0
    usage: Usage = Usage()
    waited_seconds: float = 0
    elapsed_seconds: float = 0


class Journal(Payload):
    """What one execution of a run did, from its history alone.

    status: one of `InterlockStatus`, or `terminated`, `timed_out` or `continued` (as the execution continued_as).
    agent, agent_path, requested_by, parent_id: of a run of an agent; empty for other workflows.
    error: why it ended without an output, as `Type: message`. usage: the run's own word, when it completed.
    continued_from, first_run_id: run ids of the executions before it. forked_from: the run that this one began as.
    read_at: when the journal was read.
    budget: with what it was extended by, of a run that keeps one; what was spent is in totals.usage.
    history_events, history_bytes: of what was read. stray: answers to requests that there never were.
    readable: false when a payload of the run itself could not be decoded.
    """

    format: Literal["interlock-journal-1"] = "interlock-journal-1"
    workflow_id: str
    run_id: str
    workflow_type: str
    agent: str = ""
    agent_path: tuple[str, ...] = ()
    summary: str = ""
    requested_by: str = ""
    parent_id: str = ""
    status: str
    error: str | None = None
    error_type: str | None = None
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    read_at: AwareDatetime
    cancel_requested_at: AwareDatetime | None = None
    first_run_id: str = ""
    continued_from: str = ""
    continued_as: str = ""
    forked_from: str = ""
    bytes_in: int = 0
    bytes_out: int = 0
    usage: Usage | None = None
    budget: Budget | None = None
    history_events: int = 0
    history_bytes: int = 0
    totals: Totals = Totals()
    steps: tuple[Step, ...] = ()
    requests: tuple[Request, ...] = ()
    retries: tuple[Retry, ...] = ()
    stuck: tuple[Stuck, ...] = ()
    sub_runs: tuple[SubRunLink, ...] = ()
    stray: tuple[Answer, ...] = ()
    readable: bool = True
