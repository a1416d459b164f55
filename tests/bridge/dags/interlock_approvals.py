"""The approvals Dag, as a file of Airflow's Dags folder has it."""

from interlock.bridge import approvals_dag

dag = approvals_dag()
