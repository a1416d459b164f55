"""A question about the shop's orders, answered once a day by an agent with a SQL toolset.

The agent is that of `interlock.demo.sql_analyst`, whose first lines say how to serve it: its worker has the connection
`warehouse`. Airflow has only `temporal_default`, where the run is started and waited for. Workers of one task queue
serve the same app: beside another app's worker, this one needs a queue of its own, and the task its `task_queue`.
"""

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


@dag(schedule="@daily", catchup=False, tags=["interlock"], params={"question": "Who spent most so far?"})
def sql_analyst() -> None:
    """Ask the analyst."""
    AgentWorkflowOperator(
        task_id="ask",
        agent="analyst",
        prompt="{{ params.question }}",
        temporal_conn_id="temporal_default",
    )


sql_analyst()
