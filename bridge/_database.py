"""What is read in Airflow's own database, by code that runs where it is: its API server, and whoever looks after it."""

import json
from collections.abc import Iterator
from typing import Any

from interlock.bridge.identity import PLACE
from interlock.bridge.outcome import RUN

_WAITING = ("deferred", "running", "up_for_reschedule")

Place = tuple[str, str, str, int]
"""Of a task instance, as in `PLACE`."""


def task_at(place: Place) -> tuple[str, dict[str, Any] | None]:
    """The state of a task instance, empty when there is none, and its XCom `run`, None when it has none of ours."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    def of(model: Any) -> list[Any]:
        return [getattr(model, name) == value for name, value in zip(PLACE, place, strict=True)]

    with create_session() as session:
        value = session.scalar(select(XComModel.value).where(XComModel.key == RUN, *of(XComModel)))
        state = session.scalar(select(TaskInstance.state).where(*of(TaskInstance)))
    return _text(state), _run(value)


def waiting_tasks() -> Iterator[tuple[Place, str, dict[str, Any], Any]]:
    """The task instances that wait for a run: where, their state, their XCom `run`, and when this try has begun."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import and_, select

    same = [getattr(XComModel, name) == getattr(TaskInstance, name) for name in PLACE]
    query = (
        select(TaskInstance, XComModel.value)
        .join(XComModel, and_(XComModel.key == RUN, *same))
        .where(TaskInstance.state.in_(_WAITING))
    )
    with create_session() as session:
        for task, value in session.execute(query):
            run = _run(value)
            if run is not None:
                place = (task.dag_id, task.run_id, task.task_id, task.map_index)
                yield place, _text(task.state), run, task.start_date


def _run(value: Any) -> dict[str, Any] | None:
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:  # A backend of the deployment's own keeps it elsewhere.
        return None
    return found if isinstance(found, dict) and "temporal_conn_id" in found else None


def _text(state: Any) -> str:
    return str(getattr(state, "value", state) or "")
