"""Dags that show the bridge. `docs/airflow.md` walks through them."""
