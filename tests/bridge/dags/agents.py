"""Agents as tasks, one Dag for each way of waiting. What varies is in the Dag run's configuration."""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


def handle(task_id: str, **options: Any) -> AgentWorkflowOperator:
    return AgentWorkflowOperator(
        task_id=task_id,
        agent="support",
        prompt="{{ params.prompt }}",
        retries=2,
        retry_delay=timedelta(seconds=1),
        **options,
    )


@dag(params={"prompt": ""})
def agents() -> None:
    handle("handle")


agents()
