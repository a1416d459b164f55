"""What streaming costs a run: bytes of history, time and processor time, with and without readers."""

import asyncio
import time
import uuid
from dataclasses import dataclass
from statistics import median

from bench.agents import TOKENS
from bench.figures import Figure, Tell
from bench.lab import Lab, WorkerProcess, laboratory
from interlock import Run

STEPS = 50
REPETITIONS = 4
READERS = 20


@dataclass(frozen=True)
class Measured:
    """One run. wall, cpu: seconds, of the run and of the worker's processor. events, size: of history, in bytes."""

    wall: float
    cpu: float
    events: int
    size: int
    first: float = 0.0


async def stream(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        worker = await lab.worker()
        await _run(lab, worker, "lookup*10", stream=True)
        quick: dict[bool, list[Measured]] = {False: [], True: []}
        long: dict[tuple[bool, int], list[Measured]] = {(False, 0): [], (True, 0): [], (True, READERS): []}
        for repetition in range(REPETITIONS):
            tell(f"repetition {repetition + 1} of {REPETITIONS}")
            for streamed in (False, True)[:: 1 - 2 * (repetition % 2)]:
                quick[streamed].append(await _run(lab, worker, f"lookup*{STEPS}", stream=streamed))
            for (streamed, readers), found in long.items():
                found.append(await _run(lab, worker, "write", stream=streamed, readers=readers))
    plain, alone, watched = long.values()
    return [*_quick(quick[False], quick[True]), *_long(plain, alone, watched)]


def _quick(plain: list[Measured], streamed: list[Measured]) -> list[Figure]:
    ratio = median(ours.wall / theirs.wall for ours, theirs in zip(streamed, plain, strict=True))
    note = f"{median(run.wall for run in streamed) / STEPS * 1_000:.1f} ms, {STEPS} steps that take no time"
    size = streamed[-1].size / plain[-1].size
    return [
        Figure("a quick step, streamed against not", "x", ratio, 1.05, note),
        Figure("its history, streamed against not", "x", size, None, f"{streamed[-1].size / 1_000:,.0f} kB"),
    ]


def _long(plain: list[Measured], alone: list[Measured], watched: list[Measured]) -> list[Figure]:
    added, events = alone[-1].size - plain[-1].size, alone[-1].events - plain[-1].events
    cpu = median(run.cpu for run in alone) - median(run.cpu for run in plain)
    late = median(run.wall for run in alone) - median(run.wall for run in plain)
    readers = median(run.cpu for run in watched) - median(run.cpu for run in alone)
    first = median(run.first for run in watched)
    said = f"{TOKENS:,} tokens in {median(run.wall for run in plain):.1f} s"
    return [
        Figure("history for 1,000 tokens", "kB", added / 1_000, None, f"{events} events more; {said}"),
        Figure("worker's processor time for 1,000 tokens", "ms", cpu * 1_000, None, "with the model's own stream"),
        Figure("a streamed answer is later by", "ms", late * 1_000, None, "at its end"),
        Figure("the first words are with a reader after", "ms", first * 1_000, None, f"of {READERS} readers, the last"),
        Figure(
            f"history by {READERS} readers",
            "events",
            watched[-1].events - alone[-1].events,
            None,
            f"and {readers * 1_000:.0f} ms of the worker's processor",
        ),
    ]


async def _run(lab: Lab, worker: WorkerProcess, prompt: str, *, stream: bool, readers: int = 0) -> Measured:
    used, began = worker.cpu_seconds(), time.perf_counter()
    limits = {"request_limit": None}
    run = await lab.client.start("bench", prompt, id=uuid.uuid4().hex, usage_limits=limits, stream=stream)
    reading = [asyncio.create_task(_first_words(run, began)) for _ in range(readers)]
    await run.result()
    wall, cpu = time.perf_counter() - began, worker.cpu_seconds() - used
    first = max(await asyncio.gather(*reading), default=0.0)
    described = await lab.client.temporal.get_workflow_handle(run.id).describe()
    return Measured(wall, cpu, described.history_length, await lab.history_bytes(run.id), first)


async def _first_words(run: Run, began: float) -> float:
    """Read a run to its end, and tell after how many seconds its model's first words were there."""
    first = 0.0
    async for event in run.events():
        if event.kind == "text" and not first:
            first = time.perf_counter() - began
    return first
