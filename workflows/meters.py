"""Counts what people are asked and how long they take. Temporal counts nothing twice when a run is replayed."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.payloads import ApprovalRequest


def requested(request: ApprovalRequest) -> None:
    """A request was opened."""
    workflow.metric_meter().create_counter(names.METRIC_APPROVALS_REQUESTED).add(1, _facts(request))


def escalated(request: ApprovalRequest) -> None:
    """Nobody has answered a request in time, and it goes to others too."""
    workflow.metric_meter().create_counter(names.METRIC_APPROVALS_ESCALATED).add(1, _facts(request))


def settled(request: ApprovalRequest, outcome: str) -> None:
    """A request is open no longer. outcome: as in `Settled`."""
    facts = {**_facts(request), "outcome": outcome}
    meter = workflow.metric_meter()
    meter.create_counter(names.METRIC_APPROVALS_SETTLED).add(1, facts)
    waited = workflow.now() - request.requested_at
    meter.create_histogram_timedelta(names.METRIC_APPROVAL_WAIT).record(waited, facts)


def _facts(request: ApprovalRequest) -> dict[str, str | int | float | bool]:
    return {"agent": request.agent_path[-1], "kind": request.kind}
