"""How soon another worker carries a run on after the one that had it was killed."""

import time
from collections.abc import Mapping
from contextlib import suppress
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import NOTHING, Lab, laboratory
from interlock import RefusedError, UnavailableError

PROMPT = "lookup*25 refund lookup*24"


async def resume(tell: Tell) -> list[Figure]:
    ours = await _resumed(tell, "as Interlock sets it", times=3)
    theirs = await _resumed(tell, "with Temporal's default", times=2, settings={"lost_worker_seconds": 10})
    return [
        Figure("resumed after SIGKILL", "s", median(ours), 3, _each(ours)),
        Figure("the same, sticky timeout of 10 s", "s", median(theirs), None, _each(theirs)),
    ]


async def _resumed(tell: Tell, how: str, *, times: int, settings: Mapping[str, float] = NOTHING) -> list[float]:
    async with laboratory() as lab:
        tell(f"{how}: starting a worker")
        await lab.worker(settings=settings)
        seconds = []
        for turn in range(times):
            tell(f"{how}: kill {turn + 1} of {times}")
            await lab.worker(settings=settings)  # The one that will take over.
            seconds.append(await _kill_and_approve(lab))
        return seconds


async def _kill_and_approve(lab: Lab) -> float:
    run = await lab.client.start("bench", PROMPT, usage_limits={"request_limit": None})
    await lab.waiting(1)
    holder = await lab.holder(run)
    began = time.monotonic()
    await holder.kill()
    await _approve(lab, run.id)
    told = await lab.events.of(run.id)
    assert told["pid"] != holder.pid
    assert (await run.result()).output == "done"
    return float(told["at"]) - began


async def _approve(lab: Lab, run_id: str) -> None:
    run = lab.client.attach(run_id)
    try:
        await run.decide("1", "approve", by="bench")
    except UnavailableError:
        # Nobody answered in time. The server may still hold the answer, and hand it to the next worker.
        with suppress(RefusedError):
            await run.decide("1", "approve", by="bench")


def _each(seconds: list[float]) -> str:
    return ", ".join(f"{value:.2f} s" for value in seconds)
