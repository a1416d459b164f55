"""The app of the Dag `sql_analyst`: an agent that answers questions with a database behind an Airflow connection.

A worker runs it, not Airflow. It needs the connection, here in its environment, and Airflow's package with the SQL
toolset, but none of Airflow's processes. The database has a table `orders`, as the demo's `orders.db` does:

    pip install "apache-airflow-providers-common-ai[sql]" apache-airflow-providers-sqlite
    export AIRFLOW_CONN_WAREHOUSE='{"conn_type": "sqlite", "host": "/data/orders.db"}' OPENAI_API_KEY=...
    interlock worker run interlock.demo.sql_analyst:app
"""

from typing import Any

from airflow.providers.common.ai.toolsets import SQLToolset
from pydantic_ai import Agent

from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable


def analyst(model: Any = "openai:gpt-5.6-luna") -> Interlock:
    """The app. model: of pydantic-ai, by name or as an object."""
    warehouse = SQLToolset("warehouse", allowed_tables=["orders"], max_retries=3)
    agent: Agent[None, str] = Agent(
        model,
        name="analyst",
        instructions="Answer with numbers from the database. Look at its tables first.",
        toolsets=[warehouse],
        capabilities=[Durable()],
        defer_model_check=True,
    )
    return Interlock([agent])


app = analyst()
