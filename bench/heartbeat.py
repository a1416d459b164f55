"""How soon a tool call that was in flight when its worker was killed begins again on another."""

import asyncio
import time
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import Lab, laboratory

RUNS = 8
APART_SECONDS = 0.7  # So that the kill meets the calls at different points of their heartbeats.


async def heartbeat(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        tell("starting a worker")
        lost = await lab.worker()
        ids = await _in_flight(lab, tell)
        tell("starting the worker that takes over")
        heir = await lab.worker()
        tell("waiting for the lost heartbeats to be noticed")
        began = time.monotonic()
        await lost.kill()
        seconds = [await _begun_again(lab, run_id, heir.pid) - began for run_id in ids]
    shown = f"median {median(seconds):.1f} s, {min(seconds):.1f} to {max(seconds):.1f} s in {len(seconds)} calls"
    return [Figure("call in flight begun again, slowest", "s", max(seconds), 10, shown)]


async def _in_flight(lab: Lab, tell: Tell) -> list[str]:
    ids = []
    for number in range(RUNS):
        tell(f"call {number + 1} of {RUNS}")
        run = await lab.client.start("bench", "nap")
        await lab.events.of(run.id)
        ids.append(run.id)
        await asyncio.sleep(APART_SECONDS)
    return ids


async def _begun_again(lab: Lab, run_id: str, pid: int) -> float:
    told = await lab.events.of(run_id, pid=pid)
    return float(told["at"])
