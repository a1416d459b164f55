"""How soon a tool begins after a person's approval was sent."""

import time
from statistics import median

from bench.figures import Figure, Tell, percentile
from bench.lab import Lab, laboratory
from interlock import Run

DECISIONS = 60
WARM_UP = 5


async def decision(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        tell("starting a worker")
        await lab.worker()
        tell("bringing the runs to their gates")
        runs = await lab.start_many(DECISIONS + WARM_UP, "lookup refund")
        await lab.waiting(len(runs))
        milliseconds = []
        for number, run in enumerate(runs):
            tell(f"decision {number + 1} of {len(runs)}")
            milliseconds.append(await _decide(lab, run))
    measured = milliseconds[WARM_UP:]
    shown = f"{len(measured)} decisions, one after the other, {min(measured):.0f} to {max(measured):.0f} ms"
    return [
        Figure("decision to tool, median", "ms", median(measured), 100, shown),
        Figure("decision to tool, 95th percentile", "ms", percentile(measured, 0.95)),
    ]


async def _decide(lab: Lab, run: Run) -> float:
    sent = time.monotonic()
    await run.decide("1", "approve", by="bench")
    told = await lab.events.of(run.id)
    await run.result()
    return (float(told["at"]) - sent) * 1_000
