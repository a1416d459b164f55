"""The soak's agent as tasks: in each way to wait, and mapped. Where its workers are is in the Dag run's params."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from interlock.bridge import AgentWorkflowOperator

PROMPT = "Settle both orders."
TASK: dict[str, Any] = {
    "agent": "desk",
    "task_queue": "{{ params.queue }}",
    "retries": 3,
    "retry_delay": timedelta(seconds=1),
}

with DAG("soak", params={"queue": ""}):
    AgentWorkflowOperator.partial(task_id="mapped", **TASK).expand(prompt=[PROMPT] * 3)
    AgentWorkflowOperator(task_id="poll", prompt=PROMPT, wait_mode="poll", **TASK)
    AgentWorkflowOperator(task_id="reschedule", prompt=PROMPT, wait_mode="reschedule", poll_seconds=10, **TASK)
