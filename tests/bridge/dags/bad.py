"""Tasks that cannot do what they are asked to."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG

from interlock.bridge import AgentWorkflowOperator

TASKS: dict[str, dict[str, Any]] = {
    "no_connection": {"temporal_conn_id": "nowhere"},
    "other_type": {"temporal_conn_id": "{{ params.database }}"},
    "nobody_answers": {"temporal_conn_id": "{{ params.down }}"},
    "no_such_agent": {"agent": "nobody"},
    "no_json": {"agent_deps": {"at": timedelta(seconds=1)}},
    "no_prompt": {"prompt": "{{ params.nothing }}"},
    "large_prompt": {"prompt": "{{ 'x' * 3_000_000 }}"},
    "taken": {"workflow_id": "{{ params.taken }}"},
}

with DAG("bad", params={"nothing": "", "down": "", "database": "", "taken": ""}):
    for task_id, options in TASKS.items():
        AgentWorkflowOperator(
            task_id=task_id,
            retries=1,
            retry_delay=timedelta(seconds=1),
            **{"agent": "support", "prompt": "help", **options},
        )
