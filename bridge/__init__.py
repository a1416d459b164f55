"""Airflow: the hook, operators, trigger and plugin that start runs and wait for them without holding a worker."""
