"""Airflow metrics of what the bridge does, under names that dashboards hold."""

from datetime import UTC, datetime
from typing import Any

from interlock.bridge.endings import Ending
from interlock.bridge.outcome import Waited

WAITED = "interlock.run.waited"
ENDED = "interlock.run.ended"
ATTACHED = "interlock.run.attached"
APPROVALS = "interlock.approvals.settled"


def ended(context: Any, ending: Ending, waited: Waited) -> None:
    """Count a run that has ended: how long this try waited, whether it had been found again, and what was decided."""
    stats = _stats()
    tags = {"dag_id": context["ti"].dag_id, "task_id": context["ti"].task_id}
    stats.timing(WAITED, (datetime.now(UTC) - waited.began_at).total_seconds() * 1_000, tags=tags)
    stats.incr(ENDED, tags={**tags, "status": ending.status})
    if waited.how != "started":
        stats.incr(ATTACHED, tags={**tags, "how": waited.how})
    for one in ending.decisions:
        stats.incr(APPROVALS, tags={**tags, "outcome": one.outcome})


def _stats() -> Any:
    try:
        from airflow.sdk._shared.observability.metrics import stats
    except ImportError:  # Before 3.3.
        from airflow.stats import Stats

        return Stats
    return stats
