"""Whether a request is still open, and if not, by whom and how it was settled: read from its run's history."""

from dataclasses import dataclass

from interlock.bridge.asked import Asked
from interlock.client import Client
from interlock.contracts.errors import RefusedError, UnavailableError
from interlock.contracts.payloads import ApprovalRequest, Payload

_OPEN = ("running", "awaiting_approval", "awaiting_tool_result", "stuck")


class Settled(Payload):
    """How a request was settled. outcome: as in the journal. by: empty for nobody. reason: theirs, or why so."""

    outcome: str
    by: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """In words: `rejected by ann@example.com: It was delivered.`"""
        by = f" by {self.by}" if self.by else ""
        return f"{self.outcome.replace('_', ' ')}{by}{f': {self.reason}' if self.reason else ''}"


TASK_ENDED = Settled(outcome="not_decided", reason="this task was ended; its run still waits")


@dataclass(frozen=True)
class Standing:
    """How a request stands. Exactly one of the first two is there. requested_by: who wanted the run."""

    request: ApprovalRequest | None = None
    settled: Settled | None = None
    requested_by: str = ""


async def settled_of(client: Client, asked: Asked) -> tuple[Settled | None, str]:
    """How a request was settled, None for an open one; and who wanted its run. Needs no worker."""
    try:
        journal = await client.journal(asked.workflow_id, run_id=asked.run_id)
    except RefusedError:
        return Settled(outcome="withdrawn", reason="Temporal no longer has its run"), ""
    found = next((one for one in journal.requests if one.request_id == asked.request_id), None)
    if found is not None and found.outcome not in ("open", "withdrawn"):
        by, reason = (found.answer.by, found.answer.reason) if found.answer else ("", "")
        return Settled(outcome=found.outcome, by=by, reason=reason), journal.requested_by
    if journal.status not in _OPEN:
        return Settled(outcome="withdrawn", reason=f"its run is {journal.status}"), journal.requested_by
    if found is not None and found.outcome == "withdrawn":
        return Settled(outcome="withdrawn", reason="its run waits for it no longer"), journal.requested_by
    return None, journal.requested_by


async def standing_of(client: Client, asked: Asked) -> Standing:
    """How a request stands. Needs a worker when it is open."""
    for _ in range(2):
        settled, requested_by = await settled_of(client, asked)
        if settled is not None:
            return Standing(settled=settled, requested_by=requested_by)
        try:
            requests = await client.attach(asked.workflow_id).approvals()
        except RefusedError as error:  # It cannot be asked now: its code is broken, or it ends just so.
            raise UnavailableError(str(error)) from error
        for request in requests:
            if (request.run_id, request.request_id, request.digest) == (asked.run_id, asked.request_id, asked.digest):
                return Standing(request=request, requested_by=requested_by)
        # Settled between the two looks: the history says how.
    return Standing(settled=Settled(outcome="withdrawn", reason="its run does not ask it"), requested_by=requested_by)
