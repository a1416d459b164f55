"""From common.ai's durable agent to a run of its own: the same agent, and what changes around it.

Before:

    AgentOperator(
        task_id="analyze",
        prompt="{{ params.question }}",
        llm_conn_id="pydanticai_default",
        system_prompt="You are a data analyst.",
        toolsets=[SQLToolset(db_conn_id="warehouse", id="warehouse")],
        durable=True,
        usage_limits=UsageLimits(request_limit=20),
        retries=3,
    )

After: the agent moves into a module of its own, say `analyst.py`, which `interlock worker run analyst:app` serves,
where the connection `warehouse` is known; `docs/airflow-toolsets.md` has it, and `interlock.demo.sql_analyst` is such a
module. The Dag names the agent.
"""

from datetime import timedelta

from airflow.sdk import dag

from interlock.bridge import AgentWorkflowOperator


@dag(params={"question": "Which customers bought most this month?"}, tags=["interlock"])
def migration() -> None:
    """Ask the analyst."""
    AgentWorkflowOperator(
        task_id="analyze",
        agent="analyst",
        prompt="{{ params.question }}",
        usage_limits={"request_limit": 20},
        retries=3,
        retry_delay=timedelta(seconds=30),
    )


migration()
