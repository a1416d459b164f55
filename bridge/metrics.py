"""Airflow metrics of what the bridge does, under names that dashboards hold.

| name | kind | tags |
|---|---|---|
| `interlock.run.waiting` | gauge: runs that this triggerer waits for | |
| `interlock.run.waited` | timer: how long one try of a task waited, in ms | dag_id, task_id |
| `interlock.run.ended` | counter | dag_id, task_id, status |
| `interlock.run.attached` | counter: tries that found their run again | dag_id, task_id, how |
| `interlock.approvals.settled` | counter | dag_id, task_id, outcome |
"""

from datetime import UTC, datetime
from typing import Any

from interlock.bridge._airflow import Stats
from interlock.bridge.endings import Ending
from interlock.bridge.outcome import Waited

WAITING = "interlock.run.waiting"
WAITED = "interlock.run.waited"
ENDED = "interlock.run.ended"
ATTACHED = "interlock.run.attached"
APPROVALS = "interlock.approvals.settled"


def waiting(runs: int) -> None:
    """Tell how many runs this process waits for."""
    Stats.gauge(WAITING, runs)


def begun(ti: Any, waited: Waited) -> None:
    """Count a try that has found its run again."""
    if waited.how != "started":
        Stats.incr(ATTACHED, tags={**_tags(ti), "how": waited.how})


def ended(ti: Any, ending: Ending, waited: Waited) -> None:
    """Count a run that has ended: how long this try waited for it, and what was decided."""
    tags = _tags(ti)
    Stats.timing(WAITED, (datetime.now(UTC) - waited.began_at).total_seconds() * 1_000, tags=tags)
    Stats.incr(ENDED, tags={**tags, "status": ending.status})
    for one in ending.decisions:
        Stats.incr(APPROVALS, tags={**tags, "outcome": one.outcome})


def _tags(ti: Any) -> dict[str, str]:
    return {"dag_id": ti.dag_id, "task_id": ti.task_id}
