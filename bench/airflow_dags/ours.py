"""An agent by Interlock."""

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


@dag(params={"prompt": ""})
def ours() -> None:
    AgentWorkflowOperator(
        task_id="run", agent="bench", prompt="{{ params.prompt }}", usage_limits={"request_limit": None}
    )


ours()
