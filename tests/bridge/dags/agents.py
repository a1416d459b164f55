"""Agents as tasks: a Dag of one task for each way to wait. What its run does is in the Dag run's params."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Asset

from interlock.bridge import AgentWorkflowOperator

WAYS: dict[str, dict[str, Any]] = {
    "agents": {},
    "agents_poll": {"wait_mode": "poll"},
    "agents_reschedule": {"wait_mode": "reschedule", "poll_seconds": 5},
    "agents_leave": {"on_kill": "leave"},
    "agents_terminate": {"on_kill": "terminate"},
    "agents_with_outlet": {"outlets": [Asset("tickets")]},
    "agents_in_time": {"execution_timeout": timedelta(seconds=8), "retries": 0},
    "agents_poll_in_time": {"wait_mode": "poll", "execution_timeout": timedelta(seconds=8), "retries": 0},
    "agents_moving": {"workflow_id": "{{ run_id }}/{{ ti.try_number }}"},
    "agents_passing": {},
    "agents_in_30s": {"execution_timeout": timedelta(seconds=30), "retries": 0},
    "agents_slowly": {"retry_delay": timedelta(seconds=4)},
    "agents_impatient": {"wait_timeout": timedelta(seconds=8), "on_kill": "leave", "retries": 0},
}

for dag_id, options in WAYS.items():
    with DAG(dag_id, params={"prompt": ""}):
        AgentWorkflowOperator(
            task_id="handle",
            agent="support",
            prompt="{{ params.prompt | replace('TRY', ti.try_number) }}",
            **{"retries": 2, "retry_delay": timedelta(seconds=1), **options},
        )
