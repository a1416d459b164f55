"""One run: a support ticket, whose refunds wait for a person in Airflow's Required Actions.

Served by `interlock dev interlock.demo.deployed:app`.
"""

from datetime import timedelta

from airflow.sdk import dag, task

from interlock.bridge import AgentWorkflowOperator

TICKET = "Order A-1001 arrived broken and A-1002 never came. Please refund both in full."


@dag(params={"ticket": TICKET}, tags=["interlock"])
def ticket() -> None:
    """Handle one ticket."""
    handled = AgentWorkflowOperator(
        task_id="handle_ticket",
        agent="support",
        prompt="{{ params.ticket }}",
        approvals="required_actions",
        retries=2,
        retry_delay=timedelta(seconds=30),
    )

    @task
    def tell(answer: str) -> None:
        print(answer)  # noqa: T201 - The task's log.

    tell(handled.output)  # type: ignore[arg-type]


ticket()
