"""Every name that is stored in a history. Add names; never edit one, never reuse one."""

from typing import Final

AGENT_WORKFLOW: Final = "AgentWorkflow"
SESSION_WORKFLOW: Final = "SessionWorkflow"
DEFAULT_TASK_QUEUE: Final = "interlock"

# Signals: what the sender asks for. Nobody learns whether one was refused; the updates below say so.
DECIDE_APPROVAL: Final = "decide_approval"
COMPLETE_TOOL_CALL: Final = "complete_tool_call"
REPORT_SUB_RUN: Final = "report_sub_run"
RETRY_RUN: Final = "retry_run"
RECORD_EVENTS: Final = "record_events"
TURN_CAME: Final = "turn_came"
# Signals between the runs of one tree, about its budget.
CLAIM_BUDGET: Final = "claim_budget"
GRANT_BUDGET: Final = "grant_budget"

# Updates: the same records, validated, so that the sender learns at once.
SUBMIT_DECISION: Final = "submit_decision"
SUBMIT_TOOL_RESULT: Final = "submit_tool_result"
SUBMIT_RETRY: Final = "submit_retry"
TAKE_TURN: Final = "take_turn"
END_TURN: Final = "end_turn"
BEGIN_MODEL_CALL: Final = "begin_model_call"

# Queries: nouns that change nothing.
STATUS: Final = "status"
APPROVALS: Final = "approvals"
SESSION: Final = "session"
CONVERSATION: Final = "conversation"

# Search attributes, with the type each is registered under.
ATTRIBUTE_AGENT: Final = "InterlockAgent"
ATTRIBUTE_STATUS: Final = "InterlockStatus"
ATTRIBUTE_PENDING_APPROVALS: Final = "InterlockPendingApprovals"
ATTRIBUTE_LATEST_REQUEST: Final = "InterlockLatestRequest"
ATTRIBUTE_REVIEWERS: Final = "InterlockReviewers"
ATTRIBUTE_REQUESTED_BY: Final = "InterlockRequestedBy"
SEARCH_ATTRIBUTES: Final[dict[str, str]] = {
    ATTRIBUTE_AGENT: "Keyword",
    ATTRIBUTE_STATUS: "Keyword",
    ATTRIBUTE_PENDING_APPROVALS: "Int",
    ATTRIBUTE_LATEST_REQUEST: "Keyword",
    ATTRIBUTE_REVIEWERS: "KeywordList",
    ATTRIBUTE_REQUESTED_BY: "Keyword",
}

# Activities of Interlock's own. Model and tool activities are named by the framework's integration.
DESCRIBE_TOOL: Final = "describe_tool"
RECORD_VERDICT: Final = "record_verdict"
RECALL_STEP: Final = "recall_step"
JOIN_SESSION: Final = "join_session"
LEAVE_SESSION: Final = "leave_session"
JUDGE_SUFFIX: Final = "__judge_call"

# How the workflow ids of sessions begin.
SESSION_PLACE: Final = "interlock-session-"

# How the integration's names of what runs the body of a tool end: an activity, or a workflow.
CALL_TOOL_SUFFIXES: Final = ("__call_tool", "__call_tool__child_workflow")

# Headers of activities: which step of the run each is, a digest of the call that a tool's activity makes, and whether
# what happens inside is to be recorded as it happens.
HEADER_STEP: Final = "interlock-step"
HEADER_CALL: Final = "interlock-call"
HEADER_STREAM: Final = "interlock-stream"

# Memo: a digest of each field of a run's input, so that a second start can name what differs.
MEMO_INPUT_DIGESTS: Final = "interlock_input_digests"
MEMO_AGENT: Final = "interlock_agent"
MEMO_PARENT: Final = "interlock_parent"
# Of an execution that goes on from another: that one's `run_id`, and when the first of them began (`started_at`).
MEMO_CONTINUED: Final = "interlock_continued"

# Metrics of Interlock's own. Dashboards hold these.
METRIC_APPROVALS_REQUESTED: Final = "interlock_approvals_requested"
METRIC_APPROVALS_SETTLED: Final = "interlock_approvals_settled"
METRIC_APPROVALS_ESCALATED: Final = "interlock_approvals_escalated"
METRIC_APPROVAL_WAIT: Final = "interlock_approval_wait"

# Types of the failures that end a run.
UNKNOWN_AGENT: Final = "UnknownAgentError"
INVALID_INPUT: Final = "InvalidInputError"
AGENT_RUN_FAILED: Final = "AgentRunFailedError"
OUTPUT_TOO_LARGE: Final = "OutputTooLargeError"
TOOL_CHANGED: Final = "ToolChangedError"
CONVERSATION_LOST: Final = "ConversationLostError"
BUDGET_USED_UP: Final = "BudgetUsedUpError"
INPUT_TOO_LARGE: Final = "StepInputTooLargeError"
UNREADABLE_INPUT: Final = "UnreadableInputError"
UNREADABLE_RESULT: Final = "UnreadableResultError"
RUN_BLOCKED: Final = "BlockedRunError"
RUN_STALLED: Final = "StalledRunError"
OWN_TIME_EXCEEDED: Final = "OwnTimeExceededError"
CONTEXT_CONFLICT: Final = "ContextConflictError"
OUTCOME_UNKNOWN: Final = "OutcomeUnknownError"
PARENT_GONE: Final = "ParentGoneError"
APPROVAL_TIMED_OUT: Final = "ApprovalTimeoutError"
OUTPUT_REJECTED: Final = "OutputRejectedError"
REVIEW_ROUNDS_USED_UP: Final = "ReviewRoundsUsedUpError"

DEADLOCK: Final = "[TMPRL1101]"
"""Temporal's own word, with which the failure of a workflow task begins that took longer than 2 s."""

# Types of the failures of sessions. The first is no failure: a turn that waits for the ones before it.
TURN_NOT_YET: Final = "TurnNotYet"
SESSION_FULL: Final = "SessionFullError"
SESSION_BUSY: Final = "SessionBusyError"
OTHER_FRAMEWORK: Final = "OtherFrameworkError"
TURN_IS_OVER: Final = "TurnIsOverError"

# Types of failures of single steps.
NOT_SERIALIZABLE: Final = "PydanticSerializationError"
RESULT_TOO_LARGE: Final = "PayloadsTooLarge"
WORKER_SHUTDOWN: Final = "WorkerShutdown"
NOT_REGISTERED: Final = "NotFoundError"
TIMED_OUT: Final = "ToolTimeoutError"
NO_ROOM: Final = "NoRoomError"
SUB_RUN_FAILED: Final = "SubRunFailedError"

# Patches: changes of workflow code that runs begun before must not see.
CONTINUE_AS_NEW: Final = "2026-11-continue-as-new"
ASK_ABOUT_OUTCOME: Final = "2026-11-ask-about-outcome"
CHECK_BEFORE_ASKING: Final = "2026-11-check-before-asking"
DISTINCT_CALL_IDS: Final = "2026-11-distinct-call-ids"
VALIDATE_EDITS: Final = "2026-11-validate-edits"
SETTLE_CALLS: Final = "2026-11-settle-calls"
END_AGENTS: Final = "2026-11-end-agents"
KEEP_INNER_MODELS: Final = "2026-11-keep-inner-models"
ASK_FOR_HOOKS: Final = "2026-11-ask-for-hooks"
STRICT_LIMITS: Final = "2026-11-strict-limits"
END_CALLS_IN_RUNS: Final = "2026-11-end-calls-in-runs"
REFUSE_GATED_CHILDREN: Final = "2026-11-refuse-gated-children"
REPORT_AFTER_RESET: Final = "2026-11-report-after-reset"
# No patch of code: how the names begin under which a run notes what its app says of its reviews.
REVIEW_OUTPUT: Final = "2026-11-review-output"
STEPS_OF_OWN_TOOLSETS: Final = "2026-11-steps-of-own-toolsets"


def judge_activity(agent: str) -> str:
    """The activity in which the judges of `agent` are asked about one call."""
    return f"agent__{agent}{JUDGE_SUFFIX}"


def review_note(rounds: int) -> str:
    """What a run notes whose app has so many outputs of the agent reviewed."""
    return f"{REVIEW_OUTPUT}-{rounds}"


def session_workflow(session_id: str) -> str:
    """The workflow id of a session."""
    return f"{SESSION_PLACE}{session_id}"


def sub_runs_place(key: str) -> str:
    """What the workflow ids of the runs that a tool call has started have in common. key: of the call."""
    return f"-{key[:16]}-"


def model_activity(agent: str) -> str:
    """The activity that asks the model of `agent`, of the OpenAI Agents SDK."""
    return f"agent__{agent}__model_request"


def tool_activity(agent: str) -> str:
    """The activity that runs a tool of `agent`, of the OpenAI Agents SDK."""
    return f"agent__{agent}__call_tool"


def callback_activity(agent: str, kind: str) -> str:
    """The activity that calls a function of `agent`'s, of the OpenAI Agents SDK, that is no tool: a guardrail, ..."""
    return f"agent__{agent}__{kind}"


def list_tools_activity(agent: str) -> str:
    """The activity that asks an MCP server of `agent`, of the OpenAI Agents SDK, for its tools."""
    return f"agent__{agent}__list_tools"
