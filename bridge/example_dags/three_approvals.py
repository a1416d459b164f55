"""Three approvals in one run, each with its own text, answered in any order; the prompt comes from a function.

Served by `interlock dev interlock.demo.deployed:app`.
"""

from datetime import timedelta

from airflow.sdk import dag, task


@dag(params={"orders": "A-1001,A-1002,A-1003"}, tags=["interlock"])
def three_approvals() -> None:
    """Refund three orders."""

    @task.agent_workflow(
        agent="support",
        approvals="required_actions",
        wait_timeout=timedelta(days=3),
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    def refund_all(params: dict[str, str] | None = None) -> str:
        orders = " and ".join((params or {})["orders"].split(","))
        return f"Orders {orders} arrived broken. Please refund each in full."

    refund_all()


three_approvals()
