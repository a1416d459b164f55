"""As many tasks as one triggerer is to wait for. Their pool has no slots, so that none of them is ever started."""

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


@dag()
def waiting() -> None:
    partial = AgentWorkflowOperator.partial(task_id="wait", agent="bench", temporal_conn_id="bench", pool="bench")
    partial.expand(prompt=["refund"] * 1_000)


waiting()
