"""`python -m bench.airflow_waiters RUN_ID COUNT`: tasks of the Dag `waiting` are waiting from now on.

Starting a thousand task processes takes many minutes of processor time and is not what is measured. So this does in
Airflow's own database what Airflow does when such a task defers.
"""

import sys
from datetime import UTC, datetime

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select

from interlock.bridge.outcome import Waited
from interlock.bridge.triggers import RunTrigger


def main(run_id: str, count: int) -> None:
    now = datetime.now(UTC)
    with create_session() as session:
        place = (TaskInstance.dag_id == "waiting", TaskInstance.run_id == run_id, TaskInstance.map_index < count)
        for task in session.scalars(select(TaskInstance).where(*place)):
            waited = Waited(
                temporal_conn_id="bench",
                workflow_id=f"airflow/waiting/{run_id}/wait/{task.map_index}",
                run_id="",
                began_at=now,
                ends_task=True,
            )
            trigger = Trigger.from_object(RunTrigger(waited.model_dump(mode="json")))
            session.add(trigger)
            session.flush()
            task.trigger_id, task.next_method, task.next_kwargs = trigger.id, "resume", {}
            task.state, task.start_date = TaskInstanceState.DEFERRED, now


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
