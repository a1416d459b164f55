"""Functions that make prompts. Each call of the first one leaves a line in the file that is given."""

from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

from airflow.sdk import dag, task

RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=1)}


@task.agent_workflow(agent="support", task_id="handle", wait_mode="poll", **RETRIES)
def ask(calls: str, prompt: str) -> str:
    with Path(calls).open("a") as file:
        file.write("called\n")
    return prompt


@task.agent_workflow(agent="support", task_id="handle", **RETRIES)
def ask_each(order: str, prompt: str) -> str:
    return prompt.replace("ORDER", order)


@task.agent_workflow(agent="support", task_id="handle", task_queue="{{ params.queue }}", **RETRIES)
def ask_slowly(calls: str, gate: str, prompt: str) -> str:
    with Path(calls).open("a") as file:
        file.write("called\n")
    while not Path(gate).exists():
        sleep(0.02)
    return prompt


@dag(params={"calls": "", "prompt": ""})
def decorated_poll() -> None:
    ask("{{ params.calls }}", "{{ params.prompt }}")


@dag(params={"prompt": ""})
def mapped() -> None:
    ask_each.partial(prompt="{{ params.prompt }}").expand(order=["A-1", "B-2", "C-3"])


@dag(params={"calls": "", "gate": "", "prompt": "", "queue": ""})
def decorated_slowly() -> None:
    ask_slowly("{{ params.calls }}", "{{ params.gate }}", "{{ params.prompt }}")


decorated_poll()
mapped()
decorated_slowly()
