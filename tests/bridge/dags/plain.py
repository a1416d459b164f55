"""A Dag of one task, which has nothing of ours in it."""

from typing import Any

from airflow.sdk import dag, task


@task
def double(number: Any) -> Any:
    print(f"doubling {number}")
    return 2 * number


@dag(params={"number": 1}, render_template_as_native_obj=True)
def plain() -> None:
    double("{{ params.number }}")


plain()
