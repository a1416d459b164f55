"""Workflows that are no agents, as tasks. Which, and where their worker is, is in the Dag run's params."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from interlock.bridge import TemporalSignalOperator, TemporalWorkflowOperator, TemporalWorkflowSensor
from tests.bridge.orders import Order

RETRIES: dict[str, Any] = {"retries": 1, "retry_delay": timedelta(seconds=1)}

DAGS: dict[str, dict[str, Any]] = {
    "workflows": RETRIES,
    "workflows_once": {"retries": 0},
    "workflows_poll": {"retries": 0, "wait_mode": "poll"},
    "workflows_reschedule": {"retries": 0, "wait_mode": "reschedule", "poll_seconds": 5},
    "workflows_in_time": {**RETRIES, "run_timeout": timedelta(seconds=5)},
}

for dag_id, options in DAGS.items():
    with DAG(dag_id, params={"queue": "", "end": ""}):
        TemporalWorkflowOperator(
            task_id="run",
            workflow="Deliver",
            arguments=["{{ params.end }}"],
            task_queue="{{ params.queue }}",
            **options,
        )

with DAG("priced", params={"queue": ""}):
    TemporalWorkflowOperator(
        task_id="run",
        workflow="Price",
        arguments=[Order(lines={"A-1": 2, "B-2": 3}), 10],
        task_queue="{{ params.queue }}",
        **RETRIES,
    )

with DAG("sensed", params={"workflow_id": ""}):
    TemporalWorkflowSensor(task_id="sense", workflow_id="{{ params.workflow_id }}", **RETRIES)
    TemporalWorkflowSensor(
        task_id="poke",
        workflow_id="{{ params.workflow_id }}",
        deferrable=False,
        mode="reschedule",
        poke_interval=2,
        **RETRIES,
    )
    TemporalWorkflowSensor(task_id="nothing", workflow_id="{{ params.workflow_id }}-of-nobody", **RETRIES)

with DAG("signalled", params={"workflow_id": "", "end": ""}):
    TemporalSignalOperator(
        task_id="signal",
        workflow_id="{{ params.workflow_id }}",
        signal="end",
        arguments=["{{ params.end }}"],
        **RETRIES,
    )
    TemporalSignalOperator(task_id="nobody", workflow_id="{{ params.workflow_id }}-of-nobody", signal="end", **RETRIES)
