"""Ends the run of a task that somebody has marked, also where its trigger is not told: when no triggerer has begun with
it yet, and on an Airflow whose triggers learn of nothing.

Airflow calls this in its API server for marks. It also does in the scheduler, for tasks whose process is gone, and in
each task's own process, where it does nothing: whoever clears such a task goes on with its run. It is loaded in all of
them, so it imports only what it needs there.
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog
from airflow.listeners import hookimpl

_OVER = ("success", "failed", "skipped")
_LOOKS = 10  # A second apart. The transaction that has called this is not over yet, and may be taken back.
_AT_ONCE = 4

_log = structlog.get_logger(__name__)
_threads: tuple[int, ThreadPoolExecutor] | None = None


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    """See Airflow's listeners."""
    _ended(previous_state, task_instance)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any) -> None:
    """See Airflow's listeners."""
    _ended(previous_state, task_instance)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    """See Airflow's listeners."""
    _ended(previous_state, task_instance)


@dataclass(frozen=True)
class _Place:
    dag_id: str
    run_id: str
    task_id: str
    map_index: int


def _ended(previous_state: Any, ti: Any) -> None:
    # Only for a mark there is no state before it; what a task's own process calls this with is of another class.
    if previous_state is not None or type(ti).__module__ != "airflow.models.taskinstance":
        return
    place = _Place(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    _own_threads().submit(_stop_run_of, place)  # Neither a request of Airflow's nor its scheduler waits for Temporal.


def _own_threads() -> ThreadPoolExecutor:
    global _threads
    if _threads is None or _threads[0] != os.getpid():  # Threads do not come along into a fork.
        _threads = (os.getpid(), ThreadPoolExecutor(_AT_ONCE, "interlock-marks"))
    return _threads[1]


def _stop_run_of(place: _Place) -> None:
    try:
        run = _run_of(place)
        if run is None or run.get("on_kill", "leave") == "leave":
            return
        from interlock.bridge.hook import TemporalHook
        from interlock.bridge.killing import stop_run_of_task

        why = "Somebody has ended the task in Airflow."
        work = stop_run_of_task(run["workflow_id"], run["on_kill"], why, dag_id=place.dag_id, task_id=place.task_id)
        if TemporalHook(run["temporal_conn_id"]).run(work):
            _log.info("run.stopped", workflow_id=run["workflow_id"], how=run["on_kill"])
    except Exception as error:  # Of whatever kind: nobody waits for this.
        _log.warning("run.not_stopped", task=place.task_id, dag=place.dag_id, dag_run=place.run_id, error=str(error))


def _run_of(place: _Place) -> dict[str, Any] | None:
    """The XCom `run` of a task that is over; None for a task that has none, or goes on after all."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    from interlock.bridge.outcome import RUN

    def of(model: Any) -> list[Any]:
        return [getattr(model, name) == value for name, value in vars(place).items()]

    for look in range(_LOOKS):
        if look:
            time.sleep(1)
        with create_session() as session:
            value = session.scalar(select(XComModel.value).where(XComModel.key == RUN, *of(XComModel)))
            state = session.scalar(select(TaskInstance.state).where(*of(TaskInstance)))
        if value is None:
            return None
        if _text(state) in _OVER:
            found = json.loads(value) if isinstance(value, str) else value
            return found if isinstance(found, dict) and "temporal_conn_id" in found else None
    return None


def _text(state: Any) -> str:
    return str(getattr(state, "value", state) or "")
