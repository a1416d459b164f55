"""A task that only defers: what Airflow itself takes for that."""

from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, dag


class Defers(BaseOperator):
    """Waits for a moment in the triggerer, which ends it."""

    def execute(self, context: Any) -> None:
        trigger = TimeDeltaTrigger(timedelta(seconds=5), end_from_trigger=True)
        self.defer(trigger=trigger, method_name="execute")


@dag()
def nothing() -> None:
    Defers(task_id="run")


nothing()
