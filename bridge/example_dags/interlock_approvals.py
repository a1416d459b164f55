"""Shows what agents ask as Required Actions of Airflow, for tasks with `approvals="required_actions"`."""

from interlock.bridge import approvals_dag

dag = approvals_dag()
