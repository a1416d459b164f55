"""Agents whose results go on to other tasks: as they are, and mapped over."""

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from interlock.bridge import AgentWorkflowOperator

AGENT: dict[str, Any] = {"prompt": "{{ params.prompt }}", "retries": 2, "retry_delay": timedelta(seconds=1)}


@task
def tell(value: Any) -> Any:
    return value


with DAG("handed_on", params={"prompt": ""}):
    answer = AgentWorkflowOperator(task_id="handle", agent="support", **AGENT)
    tell.override(task_id="tell")(answer.output)
    words = AgentWorkflowOperator(task_id="split", agent="splitter", **AGENT)
    tell.override(task_id="tell_all")(words.output)
    tell.override(task_id="tell_each").expand(value=words.output)
