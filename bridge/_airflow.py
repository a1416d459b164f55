"""What the bridge takes from Airflow, wherever a version has it: 3.1 and later."""

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
    )
except ImportError:  # Before 3.2.
    from airflow.exceptions import (  # type: ignore[no-redef,attr-defined]
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowRescheduleException,
        AirflowSkipException,
    )
try:
    from airflow.sdk.configuration import conf
except ImportError:  # Before 3.2.
    from airflow.configuration import conf
try:
    from airflow.sdk.bases.decorator import determine_kwargs
except ImportError:  # Before 3.2.
    from airflow.utils.operator_helpers import determine_kwargs  # type: ignore[attr-defined]
try:
    from airflow.sdk.observability.stats import Stats
except ImportError:  # Before 3.2.
    from airflow.stats import Stats

from airflow.sdk import DAG, BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator, __version__
from airflow.sdk import exceptions as _exceptions
from airflow.triggers.base import BaseTrigger
from asgiref.sync import sync_to_async

__all__ = [
    "ANSWERS_WAKE",
    "ASKS_AGAIN",
    "DAG",
    "KILLS_ARE_TOLD",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "Stats",
    "address",
    "determine_kwargs",
    "push_xcom",
    "reschedule",
    "start_dag_run",
    "started_by_a_task",
    "whole",
]

T = TypeVar("T")

_IS_3_1 = __version__.startswith("1.1.")  # The SDK's version, which all processes have.

ANSWERS_WAKE = hasattr(_exceptions, "TaskAwaitingInput")
"""Whether an answer to a Required Action wakes its deferred task up by itself, as it does from 3.3 on."""

ASKS_AGAIN = tuple(map(int, __version__.split(".")[:2])) >= (1, 4)
"""Whether a task can show one request after another: from Airflow 3.4 on, the text of a Required Action follows."""

KILLS_ARE_TOLD = hasattr(BaseTrigger, "on_kill")
"""Whether a trigger is told that somebody has acted on its task, as it is from 3.3 on."""


async def whole(question: Coroutine[Any, Any, T]) -> T:
    """Ask Airflow something from a trigger: to its end, also when whoever waits for the answer is cancelled.

    In 3.1 an answer that nobody waits for any more is taken for that to the next question, and the triggerer ends.
    """
    return await asyncio.shield(asyncio.ensure_future(question))


async def push_xcom(key: str, value: Any, **place: Any) -> None:
    """Store an XCom from a trigger. place: dag_id, run_id, task_id and map_index."""
    from airflow.sdk.bases.xcom import BaseXCom
    from airflow.sdk.execution_time.xcom import XCom

    if XCom is BaseXCom and hasattr(BaseXCom, "aset"):  # From 3.3 on.
        await BaseXCom.aset(key, value, **place)
    else:  # A backend of the deployment's own may write elsewhere, and all triggers would wait for it meanwhile.
        await whole(sync_to_async(XCom.set)(key, value, **place))


def reschedule(at: datetime) -> Exception:
    """What a task raises to be run again at a time, without its worker until then."""
    error: Exception = AirflowRescheduleException(at)  # type: ignore[no-untyped-call]
    return error


def address() -> str:
    """Where people find Airflow, without a slash at the end; empty where it is not configured."""
    return str(conf.get("api", "base_url", fallback="") or "").rstrip("/")


def started_by_a_task(dag_run: Any) -> bool:
    """Whether a task has started a run of a Dag, and no person; true in 3.2, which does not tell the two apart."""
    from airflow.sdk.api.datamodels._generated import DagRunType

    by_task = getattr(DagRunType, "OPERATOR_TRIGGERED", None)
    if by_task is not None:
        return bool(dag_run.run_type == by_task)
    # In 3.2 a task hands the name of who has started its own run on.
    return not (_IS_3_1 and dag_run.triggering_user_name)


def start_dag_run(dag_id: str, run_id: str, conf: dict[str, Any]) -> bool:
    """Start a run of another Dag from a task, as TriggerDagRunOperator does; false when it is there already.

    Raises LookupError, saying why, when Airflow does not start it.
    """
    from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
    from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    try:
        said = SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf))
    except AirflowRuntimeError as error:
        said = error.error
    if not isinstance(said, ErrorResponse):
        return True
    if said.error == ErrorType.DAGRUN_ALREADY_EXISTS:
        return False
    raise LookupError(_why(said.detail) or str(said.detail or said.error.value))


def _why(detail: Any) -> str:
    """What Airflow's API says, out of what is told of its answer; empty when it says nothing."""
    while isinstance(detail, dict):
        detail = detail.get("detail") or detail.get("message")
    return detail if isinstance(detail, str) else ""
