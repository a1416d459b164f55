"""A question about the shop's orders, answered once a day by an agent with a SQL toolset.

The agent is `interlock.demo.sql_analyst`, whose worker has the connection `warehouse`. Airflow has only
`temporal_default`, where the run is started and waited for.
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
