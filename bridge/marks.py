"""Ends the run of a task that somebody has marked, also where its trigger is not told: when no triggerer has begun with
it yet, and on an Airflow whose triggers learn of nothing.

Airflow calls this in its API server for marks. It also does in the scheduler, for tasks whose process is gone, and in
each task's own process, where it does nothing: whoever clears such a task goes on with its run. It is loaded in all of
them, so it imports only what it needs there.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import structlog
from airflow.listeners import hookimpl

if TYPE_CHECKING:
    from interlock.bridge._database import Place

_OVER = ("success", "failed", "skipped")
_LOOKS = 30  # From one second apart to ten: what has called this is not written yet, and may be taken back.
_TRIES_AGAIN_AFTER = (1, 2, 4, 8, 16, 32, 64, 0)  # Seconds, while Temporal is away.
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


def _ended(previous_state: Any, ti: Any) -> None:
    # Only for a mark there is no state before it; what a task's own process calls this with is of another class.
    if previous_state is not None or type(ti).__module__ != "airflow.models.taskinstance":
        return
    place = (ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
    _own_threads().submit(_stop_run_of, place)  # Neither a request of Airflow's nor its scheduler waits for Temporal.


def _own_threads() -> ThreadPoolExecutor:
    global _threads
    if _threads is None or _threads[0] != os.getpid():  # Threads do not come along into a fork.
        _threads = (os.getpid(), ThreadPoolExecutor(_AT_ONCE, "interlock-marks"))
    return _threads[1]


def _stop_run_of(place: "Place") -> None:
    try:
        for pause in _TRIES_AGAIN_AFTER:
            if _is_stopped(place):
                return
            time.sleep(pause)
        _log.warning("run.not_stopped", task=place)
    except Exception as error:  # Of whatever kind: nobody waits for this.
        _log.warning("run.not_stopped", task=place, error=str(error))


def _is_stopped(place: "Place") -> bool:
    """Whether nothing is left to do. Looks at the task each time: it may have been cleared while Temporal was away."""
    run = _run_of(place)
    if run is None or run["on_kill"] == "leave":
        return True
    from temporalio.service import RPCError

    from interlock.bridge.errors import TemporalUnavailableError
    from interlock.bridge.hook import TemporalHook
    from interlock.bridge.identity import PLACE
    from interlock.bridge.killing import stop_run_of_task

    why = "Somebody has ended the task in Airflow."
    task = SimpleNamespace(**dict(zip(PLACE, place, strict=True)))
    work = stop_run_of_task(run["workflow_id"], run["on_kill"], why, of=task, run_id=run["run_id"])
    try:
        if TemporalHook(run["temporal_conn_id"]).run(work):
            _log.info("run.stopped", workflow_id=run["workflow_id"], how=run["on_kill"])
    except (RPCError, TemporalUnavailableError):
        return False
    return True


def _run_of(place: "Place") -> dict[str, Any] | None:
    """The XCom `run` of a task that is over; None for a task that has none, or goes on after all."""
    from interlock.bridge._database import task_at

    for look in range(_LOOKS):
        time.sleep(min(look, 10))
        state, run = task_at(place)
        if run is None or state in _OVER:
            return run
    _log.info("task.not_over", task=place)
    return None
