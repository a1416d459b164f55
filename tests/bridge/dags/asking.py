"""Agents whose requests are Required Actions; those of the second task are for olga and uma alone."""

from datetime import timedelta
from typing import Any

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


def ask(**options: Any) -> None:
    AgentWorkflowOperator(
        task_id="handle",
        agent="support",
        prompt="{{ params.prompt }}",
        approvals="required_actions",
        retries=2,
        retry_delay=timedelta(seconds=1),
        **options,
    )


@dag(params={"prompt": ""})
def asking() -> None:
    ask()


@dag(params={"prompt": ""})
def asking_some() -> None:
    ask(assignees=["olga", "uma"])


@dag(params={"prompt": ""})
def asking_here() -> None:
    ask(approvals_in_place=True)


asking()
asking_some()
asking_here()
