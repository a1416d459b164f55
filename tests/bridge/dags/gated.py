"""Two tasks that end once a file is there: one holds its process, the other waits in the triggerer."""

from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

from airflow.providers.standard.triggers.file import FileTrigger
from airflow.sdk import BaseOperator, Context, dag, task


@task(retries=2, retry_delay=timedelta(seconds=1))
def hold(gate: str) -> None:
    while not Path(gate).exists():
        sleep(0.05)


class Defer(BaseOperator):
    template_fields = ("gate",)

    def __init__(self, *, gate: str, **options: Any) -> None:
        super().__init__(**options)
        self.gate = gate

    def execute(self, context: Context) -> None:
        self.defer(trigger=FileTrigger(filepath=self.gate, poke_interval=0.2), method_name="resume")

    def resume(self, context: Context, event: Any = None) -> None:
        self.log.info("resumed")


@dag(params={"gate": ""})
def gated() -> None:
    hold("{{ params.gate }}")
    Defer(task_id="defer", gate="{{ params.gate }}", retries=2, retry_delay=timedelta(seconds=1))


gated()
