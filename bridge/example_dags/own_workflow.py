"""A workflow of one's own, in any of Temporal's languages: started by its name, signalled, and waited for.

Your workers serve the workflow `Billing` on the task queue `billing`: it takes a customer and a month, and waits for
the signal `close`, which says by whom. Somebody else starts a workflow with the id `export-MONTH`, before or after, and
the sensor waits for its end, for an hour at most.
"""

from datetime import timedelta

from airflow.sdk import dag

from interlock.bridge import TemporalSignalOperator, TemporalWorkflowOperator, TemporalWorkflowSensor


@dag(params={"customer": "C-7", "month": "2026-11"}, tags=["interlock"])
def own_workflow() -> None:
    """Bill a customer for a month."""
    workflow_id = "billing-{{ params.customer }}-{{ params.month }}"
    bill = TemporalWorkflowOperator(
        task_id="bill",
        workflow="Billing",
        arguments=["{{ params.customer }}", "{{ params.month }}"],
        workflow_id=workflow_id,
        task_queue="billing",
        retries=2,
        retry_delay=timedelta(seconds=30),
    )
    close = TemporalSignalOperator(
        task_id="close",
        workflow_id=workflow_id,
        signal="close",
        arguments=["Airflow"],
        retries=5,  # `bill` may start the workflow a moment later.
        retry_delay=timedelta(seconds=5),
    )
    exported = TemporalWorkflowSensor(
        task_id="exported", workflow_id="export-{{ params.month }}", must_exist=False, timeout=3_600
    )
    close >> exported  # `bill` waits for `close`, so they run side by side.
    bill >> exported


own_workflow()
