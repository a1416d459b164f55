"""What the bridge takes from Airflow, wherever a version has it: 3.1 and later."""

from datetime import datetime

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowRescheduleException,
    )
except ImportError:  # Before 3.2.
    from airflow.exceptions import (  # type: ignore[no-redef,attr-defined]
        AirflowException,
        AirflowFailException,
        AirflowRescheduleException,
    )

from airflow.sdk import BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "reschedule",
]


def reschedule(at: datetime) -> Exception:
    """What a task raises to be run again at a time, without its worker until then."""
    error: Exception = AirflowRescheduleException(at)  # type: ignore[no-untyped-call]
    return error
