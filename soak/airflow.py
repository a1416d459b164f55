"""Dag runs whose tasks run the soak's agent, while task processes, the triggerer and what is around them are killed."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from random import Random
from signal import SIGKILL
from typing import Any

import httpx

from interlock.testing import eventually
from soak.evidence import Outage, RunRecord
from soak.lane import Lane, lane
from soak.nursery import nursery
from soak.phases import Soak
from soak.report import Report, Value
from tests.bridge.airflow_api import AirflowAPI, DagRun
from tests.bridge.keeper import COMPONENTS, SCHEDULER, TEMPORAL, TRIGGERER, WORKER
from tests.bridge.processes import is_alive, send
from tests.bridge.stack import Stack
from tests.bridge.waiting import workflow_id

TASK = "task process"
DECK = (TASK, TRIGGERER, WORKER, TEMPORAL, SCHEDULER, *[TASK] * 3, TRIGGERER, WORKER)
"""Of ten kills: whom they hit."""

_SPARED_FROM_TRY = 3
"""A task may fail in its last tries by Airflow's own doing, so it is left alone then."""

_WITHIN_SECONDS = 180  # Tasks of Airflow take long to start on a machine that does much else.
_ENDS_WITHIN_SECONDS = 600


@dataclass(frozen=True)
class TaskRecord:
    """One task instance, as Airflow tells of it at the end. workflow: the id its run is to have. value: its XCom."""

    workflow: str
    state: str
    tries: int
    value: Any


def wrong_tasks(tasks: Sequence[TaskRecord], runs: Sequence[RunRecord], still_open: Sequence[str]) -> Iterator[str]:
    """Each task succeeded with the result of its run, which was started once; no other run is there, and none open.

    still_open: the ids of the workflows of any type that have not ended.
    """
    found = {run.workflow: run for run in runs if run.agent == "desk"}
    for task in tasks:
        run = found.pop(task.workflow, None)
        if task.state != "success":
            yield f"{task.workflow}: its task is {task.state}, in try {task.tries}"
        if run is None:
            yield f"{task.workflow}: was never started"
        elif run.executions != 1:
            yield f"{task.workflow}: was started {run.executions} times"
        elif task.value != run.output:
            yield f"{task.workflow}: its task has another result"
    yield from (f"{workflow}: is of no task" for workflow in found)
    yield from (f"{workflow}: is still open" for workflow in still_open)


async def airflow(soak: Soak) -> Report:
    """50 kills under Dag runs that wait for agents in each way."""
    components = [name for name in COMPONENTS if name != WORKER]  # Its own are on queues of their own.
    victims = deck(soak.chance("deck"), soak.few(50))
    async with (
        Stack.shared(soak.folder / "airflow", components) as stack,
        AirflowAPI.connected(stack.api_url, "ada") as api,
    ):
        return await kill_under_dags(soak, stack, api, victims, queues=2)


def deck(chance: Random, kills: int) -> list[str]:
    """Whom so many kills hit, in which order: of ten always the same."""
    cards = [card for card, _ in zip(cycle(DECK), range(kills))]
    chance.shuffle(cards)
    return cards


async def kill_under_dags(
    soak: Soak, stack: Stack, api: AirflowAPI, victims: Sequence[str], *, queues: int, pause: float = 4
) -> Report:
    """Kill what is named, in that order and two at a time, while Dag runs are under way, one on each queue.

    pause: the longest that a body works, seconds.
    """
    async with nursery() as those, AsyncExitStack() as open_lanes:
        lanes = []
        for number in range(1, queues + 1):
            name, chance, adapter = f"airflow-{number}", soak.chance(number), soak.adapter(number)
            one = lane(those, stack.temporal_address, soak.folder, name, chance, adapter=adapter, pause=pause)
            lanes.append(await open_lanes.enter_async_context(one))
        dags = Dags(soak, stack, api, lanes)
        await dags.run_while(victims)
        for its in lanes:
            await soak.audit(its, outages=dags.outages)
        tasks = await dags.tasks()
        runs = [run for evidence in soak.evidence for run in evidence.runs]
        soak.wrong += [f"wrong_tasks: {one}" for one in wrong_tasks(tasks, runs, await dags.still_open())]
        states = [(run, await run.state()) for run in dags.runs]
        soak.wrong += [f"{run} is {state}" for run, state in states if state != "success"]
    report = soak.report()
    return replace(report, figures={**dags.figures(tasks), **report.figures})


@dataclass
class Dags:
    """The Dag runs of the phase, and the kills among them. killed: how often whom."""

    soak: Soak
    stack: Stack
    api: AirflowAPI
    lanes: Sequence[Lane]
    runs: list[DagRun] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)

    async def run_while(self, victims: Sequence[str]) -> None:
        """Keep a Dag run under way on each queue until all have been killed, and wait for the last ones."""
        stop, left = asyncio.Event(), iter(enumerate(victims))
        busy = {victim: asyncio.Lock() for victim in victims}

        async def kill() -> None:
            for number, victim in left:
                async with busy[victim]:
                    await self._kill(victim, self.soak.chance(f"kill {number}"))
                self.killed[victim] += 1
                killed, done = self.killed.total(), sum([await run.state() == "success" for run in self.runs])
                self.soak.tell(f"{killed} of {len(victims)} kills, last: {victim}; {done} of {len(self.runs)} Dag runs")

        async with asyncio.TaskGroup() as group:
            feeders = [group.create_task(self._feed(its, stop)) for its in self.lanes]
            await asyncio.gather(kill(), kill())
            stop.set()
            await asyncio.gather(*feeders)

    async def _feed(self, its: Lane, stop: asyncio.Event) -> None:
        while not stop.is_set():
            its.started += 1
            run = await self.api.trigger("soak", {"queue": its.name}, run_id=f"{its.name}-{its.started}")
            self.runs.append(run)
            with suppress(AssertionError):  # One that does not end is found by the audit.
                await run.until_ended(within_seconds=_ENDS_WITHIN_SECONDS)

    async def _kill(self, victim: str, chance: Random) -> None:
        if victim == TASK:
            return await self._kill_task(chance)
        if victim == WORKER:
            return await chance.choice(self.lanes).crew.kill(chance)
        await asyncio.sleep(chance.uniform(0, 6))
        began = time.monotonic()
        await self.stack.kill(victim)
        if victim == TEMPORAL:
            self.outages.append(Outage(began, time.monotonic()))

    async def _kill_task(self, chance: Random) -> None:
        async def process() -> int | None:
            running = [task for run in self.runs for task in await run.tasks() if task["state"] == "running"]
            chance.shuffle(running)
            for task in running:
                if task["try_number"] < _SPARED_FROM_TRY and (pids := self.stack.processes_of(task["id"])):
                    return pids[0]
            return None

        while True:
            pid: int = await eventually(process, within_seconds=_WITHIN_SECONDS, every_seconds=0.2)
            await asyncio.sleep(chance.uniform(0, 2))
            if is_alive(pid):
                return send([pid], SIGKILL)

    async def tasks(self) -> list[TaskRecord]:
        """Every task instance, at the end."""
        return [await self._task(run, shown) for run in self.runs for shown in await run.tasks()]

    async def _task(self, run: DagRun, shown: dict[str, Any]) -> TaskRecord:
        task, value = run.task(shown["task_id"], shown["map_index"]), None
        with suppress(httpx.HTTPStatusError):  # It has none.
            value = await task.xcom()
        return TaskRecord(workflow_id(task), str(shown["state"]), shown["try_number"], value)

    async def still_open(self) -> list[str]:
        """The workflows of the queues that have not ended."""
        found = []
        for its in self.lanes:
            query = f"TaskQueue = '{its.name}' AND ExecutionStatus = 'Running'"
            found += [one.id async for one in its.client.temporal.list_workflows(query)]
        return found

    def figures(self, tasks: Sequence[TaskRecord]) -> dict[str, Value]:
        """What is counted of Airflow."""
        return {
            "task processes killed": self.killed[TASK],
            "triggerers killed": self.killed[TRIGGERER],
            "schedulers killed": self.killed[SCHEDULER],
            "Dag runs": len(self.runs),
            "task instances": len(tasks),
            "tries of tasks": sum(task.tries for task in tasks),
        }
