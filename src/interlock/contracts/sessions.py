"""What runs and sessions say to each other. A session is one conversation: its turns, each of them a run, in order."""

from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from interlock.contracts.payloads import AgentName, Json, Message, Payload, SessionId, WorkflowId, levels

LARGEST_SESSION_BYTES = 1_000_000
"""How large a conversation can become, as JSON. Each model call takes all of it, and a payload of 2 MB is refused."""

_DEEPEST = 150


def _not_too_deep(messages: list[Json]) -> list[Json]:
    """JSON that is nested 200 deep cannot be read, and the conversation is read inside of other records."""
    for _ in levels(messages, _DEEPEST):
        pass
    return messages


FirstRunId = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")]
TurnOutcome = Literal["added", "too_large", "released"]


class TurnClaim(Message):
    """A run wants a turn.

    run_id: of the first execution of the run, so that a run is one turn however many executions it has.
    framework: whose messages the run reads and writes, such as `pydantic-ai`.
    started_at: when the run was started. Of turns that wait, the one whose run was started first is next.
    """

    session_id: SessionId
    workflow_id: WorkflowId
    run_id: FirstRunId
    agent: AgentName
    framework: Annotated[str, Field(min_length=1, max_length=100)]
    started_at: AwareDatetime


class OpenTurn(Payload):
    """A turn that waits or is under way. began_at: when it came; null while it waits. The rest: as in `TurnClaim`."""

    workflow_id: str
    run_id: str
    agent: str
    started_at: AwareDatetime
    began_at: AwareDatetime | None = None


class TurnReceipt(Payload):
    """Where a claim is in the order of turns.

    before: how many turns there are before it; 0 when it is its turn. first: the turn under way.
    """

    before: int
    first: OpenTurn


class Turn(Payload):
    """A turn that has come. messages: the conversation so far, as the framework's JSON, oldest first."""

    messages: list[Json]


class TurnEnd(Message):
    """A turn is over. run_id: as in `TurnClaim`.

    messages: what the run adds to the conversation; null when it adds nothing.
    too_large_bytes: how large the messages are that the run would have added, had they not been too large to send.
    """

    session_id: SessionId
    run_id: FirstRunId
    messages: Annotated[list[dict[str, Json]], AfterValidator(_not_too_deep)] | None = None
    too_large_bytes: Annotated[int, Field(ge=0, le=10**12)] = 0


class TurnEnded(Payload):
    """What became of a turn, however often its end is reported. number: of an added one.

    outcome: `not_at_turn` when the session knows of no such turn under way, and `gone` when there is no such session.
    """

    outcome: TurnOutcome | Literal["not_at_turn", "gone"]
    number: int | None = None


class TurnNotice(Message):
    """The session tells a run that waits: look again, it may be your turn. It changes nothing by itself."""

    session_id: SessionId


class ClosedTurn(Payload):
    """A turn that is over.

    outcome: `added`, `too_large` (the session has no room for it, and is full), or `released` (its run ended without
    an output). number: of an added one, from 1. messages, bytes: how many were added, and their size as JSON.
    """

    workflow_id: str
    run_id: str
    agent: str
    outcome: TurnOutcome
    number: int | None = None
    messages: int = 0
    bytes: int = 0
    began_at: AwareDatetime | None = None
    ended_at: AwareDatetime


class SessionState(Payload):
    """What a session says of itself, without its conversation.

    framework: whose messages it holds; empty before the first turn. messages, bytes: of the conversation.
    turns: how many were added. full: it takes no more turns. closed: the latest turns that are over, oldest first.
    open: the turn under way, then those that wait, in their order.
    """

    session_id: SessionId
    framework: str = ""
    messages: int = 0
    bytes: int = 0
    turns: int = 0
    full: bool = False
    closed: tuple[ClosedTurn, ...] = ()
    open: tuple[OpenTurn, ...] = ()


class SessionInput(Payload):
    """What an execution of a session begins with: nothing but its id, or what the one before it has handed over."""

    session_id: SessionId
    state: SessionState | None = None
    messages: tuple[Json, ...] = ()


def full_text(state: SessionState) -> str:
    """Why a session takes no more turns, and what to do."""
    last = next((turn for turn in reversed(state.closed) if turn.outcome == "too_large"), None)
    more = f", and the turn of run {last.workflow_id!r} would have added {last.bytes:,}" if last else ""
    return (
        f"Session {state.session_id!r} is full: its conversation has {state.bytes:,} bytes{more}; at most "
        f"{LARGEST_SESSION_BYTES:,} fit. Start a new session, and say in its first prompt what it has to know."
    )
