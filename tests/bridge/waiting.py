"""Tasks of the Dags in `dags/agents.py`, and the runs that they wait for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from interlock import Client
from interlock.run import Run
from interlock.testing import eventually
from tests.bridge.airflow_api import AirflowAPI, Task
from tests.bridge.stack import Stack

_WITHIN_SECONDS = 150  # Nothing of it takes a tenth of that, except on a machine that does much else.
CLOSED = ("completed", "failed", "cancelled", "terminated", "timed_out")


@dataclass(frozen=True)
class Handling:
    """A task and its run."""

    task: Task
    run: Run
    client: Client = field(repr=False)
    stack: Stack = field(repr=False)

    @classmethod
    async def begin(cls, airflow: AirflowAPI, stack: Stack, dag_id: str, prompt: str, **params: str) -> Self:
        """Start a Dag run whose one task runs the agent."""
        client = await Client.connect(stack.temporal_address)
        task = (await airflow.trigger(dag_id, {"prompt": prompt, **params})).task("handle")
        return cls(task, client.attach(workflow_id(task)), client, stack)

    async def until_waiting(self, *, try_number: int = 1) -> None:
        """Wait until the task waits, in the triggerer or in its process, and the run has begun what its model wants."""
        await self.until(
            "running" if self.task.run.dag_id.endswith("_poll") else "deferred",
            try_number=try_number,
        )

        async def has_begun() -> bool:
            return any(line["what"] != "model" for line in self.effects())

        async def is_watched() -> bool:
            return any(self._logs().glob(f"attempt={try_number}.log.trigger.*"))

        await eventually(has_begun, within_seconds=_WITHIN_SECONDS, every_seconds=0.1)
        await eventually(self.links, within_seconds=_WITHIN_SECONDS, every_seconds=0.1)
        if await self.task.state() == "deferred":
            # Airflow calls no `on_kill` of a trigger that no triggerer has begun.
            await eventually(is_watched, within_seconds=_WITHIN_SECONDS, every_seconds=0.1)

    async def status(self) -> str:
        """How the run stands."""
        return (await self.run.report()).status

    async def until_closed(self) -> str:
        """Wait until the run has ended, and say how."""

        async def closed() -> str:
            status = await self.status()
            return status if status in CLOSED else ""

        status: str = await eventually(closed, within_seconds=_WITHIN_SECONDS, every_seconds=0.1)
        return status

    async def until_ended(self) -> str:
        """Wait until the Dag run has ended, and say how."""
        return await self.task.run.until_ended(within_seconds=_WITHIN_SECONDS)

    async def request_id(self) -> str:
        """The run's open request, once there is one."""

        async def asked() -> str:
            if "model" not in self.whats():
                return ""  # There is no run yet.
            return next((one.request_id for one in await self.run.approvals()), "")

        request_id: str = await eventually(asked, within_seconds=_WITHIN_SECONDS, every_seconds=0.2)
        return request_id

    def _logs(self) -> Path:
        dag_run = self.task.run
        return self.stack.folder / f"home/logs/dag_id={dag_run.dag_id}/run_id={dag_run.id}/task_id={self.task.id}"

    def triggerers(self) -> int:
        """How many triggerers have had its trigger in its first try."""
        return len([*self._logs().glob("attempt=1.log.trigger.*")])

    def effects(self) -> list[dict[str, Any]]:
        """The run's model calls and effects, in order."""
        return self.stack.ledger(self.run.id)

    def whats(self) -> list[str]:
        """What each of them was."""
        return [str(line["what"]) for line in self.effects()]

    async def executions(self) -> int:
        """How often the run was started."""
        return (await self.client.temporal.count_workflows(f"WorkflowId = '{self.run.id}'")).count

    async def until(self, *states: str, try_number: int = 0) -> str:
        """See `Task.until`."""
        return await self.task.until(*states, try_number=try_number, within_seconds=_WITHIN_SECONDS)

    async def links(self) -> dict[str, str | None]:
        """The links of the task; none while it does not know its run."""
        links = await self.task.links()
        return links if links["Approvals"] else {}

    async def log(self) -> list[str]:
        """The lines of the logs of all its tries."""
        return await log_of(self.task)


def workflow_id(task: Task) -> str:
    """Of the run of a task."""
    place = f"airflow/{task.run.dag_id}/{task.run.id}/{task.id}"
    return place if task.map_index < 0 else f"{place}/{task.map_index}"


async def log_of(task: Task) -> list[str]:
    """The lines of the logs of all its tries."""
    return [line for one in await task.tries() for line in await task.log(one["try_number"])]


async def until_at_rest(stack: Stack, task: Task) -> None:
    """Wait until the task waits in the triggerer, and the scheduler knows that its process has ended.

    Airflow fails a task that resumes before that (apache/airflow#72716).
    """
    await task.until("deferred", within_seconds=_WITHIN_SECONDS)
    info = await task.info()
    wanted = f"run_id='{task.run.id}', try_number={info['try_number']}, map_index={task.map_index})"

    async def is_known() -> bool:
        log = (stack.folder / "logs" / "scheduler.log").read_text(errors="replace")
        return any("Received executor event" in line and wanted in line for line in log.splitlines())

    await eventually(is_known, within_seconds=_WITHIN_SECONDS, every_seconds=0.3)
