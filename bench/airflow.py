"""The bridge on real Airflow: a step against common.ai's operator, a task's own part, and many that wait."""

import asyncio
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from bench.figures import Figure, Tell, percentile
from bench.lab import ROOT, machine_cpu_seconds
from bench.step import in_turn
from interlock import Client, RefusedError, Run, UnavailableError
from interlock.testing import eventually
from tests.bridge.airflow_api import ENDED, AirflowAPI, DagRun, Task
from tests.bridge.keeper import COMPONENTS, SCHEDULER, TEMPORAL, TRIGGERER, Setup
from tests.bridge.processes import descendants, title
from tests.bridge.stack import Stack

SHORT, LONG = 4, 44
"""Model calls of the two runs whose difference is the time of a step: what a run takes only once is in both."""

_SETUP = Setup(app="bench.airflow_app:app", dags=str(ROOT / "bench" / "airflow_dags"))
_OF_WORKERS = ("Poll", "Respond", "Record", "ShutdownWorker")
_TASK = re.compile(r"airflow worker -- [0-9a-f]{8}-")
_REQUESTS = re.compile(r'service_requests\{.*namespace="default",operation="(\w+)",service_name="frontend"\} (\S+)')
_LONG_SECONDS = 1_500


@dataclass(frozen=True)
class Size:
    """How much is measured. idle_seconds: for how long requests are counted while nothing happens."""

    pairs: int = 5
    tasks: int = 10
    waiters: int = 1_000
    idle_seconds: float = 90


QUICK = Size(pairs=2, tasks=4, waiters=100, idle_seconds=30)


@dataclass(frozen=True)
class _Lab:
    stack: Stack
    api: AirflowAPI
    client: Client
    tell: Tell
    size: Size


async def airflow(tell: Tell, *, quick: bool = False) -> list[Figure]:
    async with _laboratory(tell, QUICK if quick else Size()) as lab:
        busy = _others_share(lab.stack)
        figures = [*await _steps(lab), *await _own_part(lab)]
        figures.append(_busy("steps and single tasks", busy))
        busy = _others_share(lab.stack)
        return [*figures, *await _waiting(lab), _busy("many that wait", busy)]


@asynccontextmanager
async def _laboratory(tell: Tell, size: Size) -> AsyncIterator[_Lab]:
    folder = Path(tempfile.mkdtemp(prefix="interlock-bench-"))
    try:
        tell("starting Airflow")
        async with (
            Stack.shared(folder / "airflow", setup=_SETUP) as stack,
            AirflowAPI.connected(stack.api_url, "ada") as api,
        ):
            yield _Lab(stack, api, await Client.connect(stack.temporal_address), tell, size)
    finally:
        await asyncio.sleep(1)  # The keeper ends what it keeps once nobody uses it.
        shutil.rmtree(folder, ignore_errors=True)


# A step.


async def _steps(lab: _Lab) -> list[Figure]:
    kinds: dict[str, Callable[[_Lab, int], Any]] = {"ours": _ours, "theirs": _theirs}
    steps: dict[str, list[float]] = {kind: [] for kind in kinds}
    for kind, seconds in kinds.items():
        lab.tell(f"warming up: {kind}")
        await seconds(lab, SHORT)
    for repetition in range(lab.size.pairs):
        for kind in in_turn(tuple(kinds), repetition):
            lab.tell(f"steps, repetition {repetition + 1} of {lab.size.pairs}, {kind}")
            short = await kinds[kind](lab, SHORT)
            steps[kind].append((await kinds[kind](lab, LONG) - short) / (LONG - SHORT) * 1_000)
    ours, theirs = steps["ours"], steps["theirs"]
    ratio = median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return [
        Figure("a step", "ms", median(ours), None, _spread(ours)),
        Figure(
            "a step, against common.ai's durable operator",
            "x",
            ratio,
            0.7,
            f"{median(theirs):.1f} ms, {_spread(theirs)}",
        ),
    ]


async def _ours(lab: _Lab, calls: int) -> float:
    run = await lab.api.trigger("ours", {"prompt": f"lookup*{calls - 1}"})
    await _until(run.task("run"), "success")
    began, ended = await _times(lab, _run_of(lab, run))
    return (ended - began).total_seconds()


async def _theirs(lab: _Lab, calls: int) -> float:
    run = await lab.api.trigger("theirs", {"prompt": f"lookup*{calls - 1}"})
    await _until(run.task("run"), "success")
    return float(await run.task("run").xcom("seconds"))


def _spread(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} in {len(values)} pairs of {SHORT} and {LONG} model calls"


# What a task takes beside its run.


async def _own_part(lab: _Lab) -> list[Figure]:
    deferred, woken, bare = [], [], []
    for number in range(lab.size.tasks):
        lab.tell(f"single tasks, {number + 1} of {lab.size.tasks}")
        run = await lab.api.trigger("ours", {"prompt": "lookup refund"})
        deferred.append(await _seconds_to_deferred(run.task("run")))
        asked = _run_of(lab, run)
        await _all_wait(lab.stack, run, 1)
        await _decide(asked)
        await _until(run.task("run"), "success")
        ended_at = _moment((await run.task("run").info())["end_date"])
        woken.append((ended_at - (await _times(lab, asked))[1]).total_seconds())
        bare.append(await _seconds_to_deferred((await lab.api.trigger("nothing")).task("run")))
    both = [one + other for one, other in zip(deferred, woken, strict=True)]
    count = f"of {len(both)}; {min(both):.2f} to {max(both):.2f}"
    return [
        Figure("a task's own part, median", "s", median(both), 2.5, count),
        Figure("from its start until it is deferred", "s", median(deferred), None, "median"),
        Figure("the same of a task that does nothing else", "s", median(bare), None, "what Airflow itself takes"),
        Figure("from its run's end to its success", "s", median(woken), None, "median"),
    ]


async def _seconds_to_deferred(task: Task) -> float:
    await _until(task, "deferred")
    info = await task.info()
    return (_moment(info["trigger"]["created_date"]) - _moment(info["start_date"])).total_seconds()


# Many that wait.


async def _waiting(lab: _Lab) -> list[Figure]:
    count = lab.size.waiters
    await _connection_in_the_database(lab)
    await lab.api.ask("POST", "/pools", {"name": "bench", "slots": 0})
    run = await lab.api.trigger("waiting")
    lab.tell(f"bringing {count} runs to their gates")
    runs = await _runs_at_their_gates(lab, run, count)
    await lab.stack.kill(TRIGGERER)  # The next one has nothing of the bridge loaded.
    empty = await _settled_mb(lab.stack)
    lab.tell(f"{count} tasks begin to wait")
    before, began = _requests(lab.stack), time.monotonic()
    await lab.stack.program("bench.airflow_waiters", run.id, str(count))
    await _all_wait(lab.stack, run, count)
    began_within = time.monotonic() - began
    full = await _settled_mb(lab.stack)
    burst = _requests(lab.stack) - before
    lab.tell(f"counting for {lab.size.idle_seconds:g} s")
    idle, cpu = await _idle(lab)
    slots = await _slots(lab)
    figures = [
        Figure(
            "memory of a triggerer for them",
            "MB",
            full - empty,
            300,
            f"{count} wait: {full:.0f} MB, {empty:.0f} MB when none does",
        ),
        Figure("requests to Temporal while they wait", "1/s", idle.total() / lab.size.idle_seconds, 2, _named(idle)),
        Figure("the triggerer's processor time meanwhile", "%", cpu * 100, None, "of one processor"),
        Figure("worker slots that they hold", "", slots, 0),
        Figure("until all of them wait", "s", began_within, None, f"{burst.total()} requests: {_named(burst)}"),
    ]
    first = runs[: min(60, count // 2)]
    lab.tell(f"ending {len(first)} of the runs, one after another")
    for one in first:
        await _decide(one)
        await asyncio.sleep(0.5)
    figures += await _events(lab, run, first)
    rest = runs[len(first) :]
    lab.tell("killing Temporal and the triggerer")
    async with lab.stack.down(TEMPORAL):
        await asyncio.sleep(10)
    await lab.stack.kill(TRIGGERER)
    lab.tell(f"ending the other {len(rest)} at once")
    began = time.monotonic()
    await _each(rest, _decide)
    await _all_closed(lab, count)
    closed = time.monotonic()
    await eventually(lambda: _all_succeeded(lab, run, count), within_seconds=_LONG_SECONDS, every_seconds=1)
    shown = f"{len(rest)} ended within {closed - began:.0f} s, after Temporal and the triggerer had been killed"
    return [*figures, Figure("until the last task of all succeeded", "s", time.monotonic() - closed, None, shown)]


async def _connection_in_the_database(lab: _Lab) -> None:
    host, _, port = lab.stack.temporal_address.rpartition(":")
    body = {"connection_id": "bench", "conn_type": "temporal", "host": host, "port": int(port)}
    await lab.api.ask("POST", "/connections", body)


async def _runs_at_their_gates(lab: _Lab, run: DagRun, count: int) -> list[Run]:
    async def start(number: int) -> Run:
        return await lab.client.start("bench", "refund", id=f"airflow/waiting/{run.id}/wait/{number}")

    async def are_asked() -> bool:
        query = "ExecutionStatus = 'Running' AND InterlockPendingApprovals > 0"
        return (await lab.client.temporal.count_workflows(query)).count == count

    runs = await _each(range(count), start)
    await eventually(are_asked, within_seconds=_LONG_SECONDS, every_seconds=0.5)
    return runs


async def _all_wait(stack: Stack, run: DagRun, count: int) -> None:
    """Wait until the triggerer has begun with the tasks' triggers, and each has looked at its run."""

    async def do() -> bool:
        logs = _trigger_logs(stack, run)
        return len(logs) >= count and all("Waiting for a person" in log.read_text() for log in logs)

    await eventually(do, within_seconds=_LONG_SECONDS, every_seconds=0.5)


async def _all_closed(lab: _Lab, count: int) -> None:
    async def are() -> bool:
        query = "ExecutionStatus = 'Running' AND WorkflowType = 'AgentWorkflow'"
        return (await lab.client.temporal.count_workflows(query)).count == 0

    await eventually(are, within_seconds=_LONG_SECONDS, every_seconds=0.5)


async def _all_succeeded(lab: _Lab, run: DagRun, count: int) -> bool:
    answer = await lab.api.ask("GET", f"{run.path}/taskInstances", state="success", limit=1)
    return bool(answer["total_entries"] == count)


async def _idle(lab: _Lab) -> tuple[Counter[str], float]:
    """What was asked of Temporal, and the share of a processor that the triggerer took."""
    requests, used = _requests(lab.stack), _cpu_seconds(_tree(lab.stack, TRIGGERER))
    await asyncio.sleep(lab.size.idle_seconds)
    used = _cpu_seconds(_tree(lab.stack, TRIGGERER)) - used
    return _requests(lab.stack) - requests, used / lab.size.idle_seconds


async def _slots(lab: _Lab) -> int:
    """How many of Airflow's slots are taken, in all pools, and how many processes run tasks."""
    pools = (await lab.api.ask("GET", "/pools"))["pools"]
    tasks = [pid for pid in _tree(lab.stack, SCHEDULER) if _TASK.match(title(pid))]
    taken = sum(int(pool["running_slots"]) + int(pool["queued_slots"]) for pool in pools)
    return taken + len(tasks)


async def _events(lab: _Lab, run: DagRun, ended: list[Run]) -> list[Figure]:
    """How long after its run's end each trigger had its event, by Airflow's own log."""
    await eventually(lambda: _all_succeeded(lab, run, len(ended)), within_seconds=_LONG_SECONDS, every_seconds=1)
    seconds = []
    for one in ended:
        number = int(one.id.rpartition("/")[2])
        lines = [line for log in _trigger_logs(lab.stack, run, number) for line in log.read_text().splitlines()]
        fired = [line for line in map(json.loads, lines) if line["event"] == "Trigger fired event"]
        # Airflow's triggerer loses a trigger's last lines now and then: it closes the log before it has read them all.
        if fired:
            seconds.append((_moment(fired[0]["timestamp"]) - (await _times(lab, one))[1]).total_seconds())
    assert len(seconds) > len(ended) * 0.8, f"only {len(seconds)} of {len(ended)} triggers have told of their event"
    shown = f"of {len(seconds)}; {percentile(seconds, 0.95):.2f} at the 95th percentile, {max(seconds):.2f} at most"
    return [Figure("from a run's end to its trigger's event, median", "s", median(seconds), 1, shown)]


def _trigger_logs(stack: Stack, run: DagRun, number: int | None = None) -> list[Path]:
    index = "*" if number is None else number
    task = "task_id=run" if number is None and run.dag_id == "ours" else f"task_id=wait/map_index={index}"
    return list((stack.folder / "home" / "logs").glob(f"dag_id={run.dag_id}/run_id={run.id}/{task}/*.trigger.*"))


def _requests(stack: Stack) -> Counter[str]:
    """What clients have asked of the server since its start, by the server's own count; not what workers have."""
    address = re.findall(r"Metrics:\s+(\S+)", (stack.folder / TEMPORAL / "temporal.log").read_text())[-1]
    counted: Counter[str] = Counter()
    for line in httpx.get(address, trust_env=False).text.splitlines():
        found = _REQUESTS.match(line)
        if found and not found[1].startswith(_OF_WORKERS):
            counted[found[1]] += int(float(found[2]))
    return counted


def _named(requests: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in requests.most_common(4))


# Small things.


async def _each(items: Any, work: Callable[[Any], Any]) -> list[Any]:
    """Twenty at a time."""
    slots = asyncio.Semaphore(20)

    async def one(item: Any) -> Any:
        async with slots:
            return await work(item)

    return list(await asyncio.gather(*map(one, items)))


async def _decide(run: Run) -> None:
    """Approve what the run asks, once it asks, however busy its worker is."""

    async def decided() -> bool:
        try:
            if not await run.approvals():
                return (await run.report()).status == "completed"  # By a decision whose receipt was lost.
            await run.decide("1", "approve", by="bench")
        except UnavailableError:
            return False
        except RefusedError:
            return (await run.report()).status == "completed"
        return True

    await eventually(decided, within_seconds=_LONG_SECONDS, every_seconds=0.1)


async def _until(task: Task, state: str) -> None:
    # Rarely, since each question is work for the machine that is measured.
    async def is_so() -> bool:
        now = await task.state()
        assert now == state or now not in ENDED, f"{task} is {now}"
        return now == state

    await eventually(is_so, within_seconds=_LONG_SECONDS, every_seconds=0.5)


def _run_of(lab: _Lab, run: DagRun) -> Run:
    return lab.client.attach(f"airflow/{run.dag_id}/{run.id}/run")


async def _times(lab: _Lab, run: Run) -> tuple[datetime, datetime]:
    async def ended() -> Any:
        described = await lab.client.temporal.get_workflow_handle(run.id).describe()
        return described if described.close_time else None

    described = await eventually(ended, within_seconds=120)
    return described.start_time, described.close_time


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def _settled_mb(stack: Stack) -> float:
    """The triggerer's memory once it has stood still for three seconds; at most 60 s."""
    last, still = stack.memory_bytes()[TRIGGERER], 0
    for _ in range(60):
        await asyncio.sleep(1)
        now = stack.memory_bytes()[TRIGGERER]
        still = still + 1 if abs(now - last) < 500_000 else 0
        last = now
        if still == 3:
            break
    return last / 1e6


def _tree(stack: Stack, name: str) -> list[int]:
    pid = stack.pid(name)
    return [] if pid is None else [pid, *descendants(pid)]


def _cpu_seconds(pids: list[int]) -> float:
    """Processor time of processes so far, with that of what they started and is over."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _others_share(stack: Stack) -> Callable[[], float]:
    def now() -> tuple[float, float, float]:
        pids = [pid for name in COMPONENTS for pid in _tree(stack, name)]
        return (*machine_cpu_seconds(), _cpu_seconds([os.getpid(), *pids]))

    began = now()

    def share() -> float:
        busy, total, own = (after - before for after, before in zip(now(), began, strict=True))
        return max(0.0, busy - own) / total

    return share


def _busy(what: str, share: Callable[[], float]) -> Figure:
    name = f"taken by other work meanwhile, {what}"
    return Figure(name, "%", share() * 100, None, "of the machine's processors")
