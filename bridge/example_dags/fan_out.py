"""Mapped tasks: one run for each ticket, all at once, each with approvals of its own. No worker is held meanwhile.

Served by `interlock dev interlock.demo.deployed:app`.
"""

from datetime import timedelta

from airflow.sdk import dag, task

from interlock.bridge import AgentWorkflowOperator


@dag(tags=["interlock"])
def fan_out() -> None:
    """Handle some tickets at once, and say what became of them."""

    @task
    def tickets() -> list[str]:
        return [f"Order A-{number} arrived broken. Please refund it in full." for number in range(1001, 1004)]

    handled = AgentWorkflowOperator.partial(
        task_id="handle_ticket",
        agent="support",
        approvals="required_actions",
        retries=2,
        retry_delay=timedelta(seconds=30),
    ).expand(prompt=tickets())

    @task
    def summarize(answers: list[str]) -> str:
        return "\n".join(answers)

    summarize(handled.output)  # type: ignore[arg-type]


fan_out()
