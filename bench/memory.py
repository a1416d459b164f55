"""What a worker keeps in memory for each run that waits for a person."""

import asyncio

from bench.figures import Figure, Tell
from bench.lab import Lab, WorkerProcess, laboratory

RUNS = 500
WARM_UP = 20


async def memory(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        tell("warming a worker up")
        worker = await lab.worker()
        await _warm_up(lab)
        before = await _settled(worker)
        tell(f"bringing {RUNS} runs to their gates")
        await lab.start_many(RUNS, "lookup refund")
        await lab.waiting(RUNS)
        after = await _settled(worker)
    shown = f"resident {before / 1_000:.0f} MB before, {after / 1_000:.0f} MB with {RUNS} runs, each after one step"
    return [Figure("worker memory for a waiting run", "kB", (after - before) / RUNS, 250, shown)]


async def _warm_up(lab: Lab) -> None:
    # The first runs of a process load modules and build schemas; no run waits when memory is first read.
    runs = await lab.start_many(WARM_UP, "lookup refund")
    await lab.waiting(WARM_UP)
    for run in runs:
        await run.decide("1", "approve", by="bench")
        await run.result()


async def _settled(worker: WorkerProcess) -> int:
    """Resident kB once it has stood still for a second; at most 10 s."""
    last, still = worker.rss_kb(), 0
    for _ in range(40):
        await asyncio.sleep(0.25)
        now = worker.rss_kb()
        still = still + 1 if abs(now - last) < 200 else 0
        last = now
        if still == 4:
            break
    return last
