"""The phases: who is killed, when, and how often. Each gives back its report."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import get_args

from interlock.server import EmbeddedServer
from soak.audit import violations
from soak.death import Moment, points, points_of
from soak.evidence import Evidence, Outage
from soak.lane import Lane, lane
from soak.nursery import Nursery, nursery
from soak.races import race
from soak.report import Report, figures
from soak.script import SCRIPTS, calls_of

Tell = Callable[[str], None]
"""Tells whoever waits what a phase is doing."""

SHORT_HISTORIES = {"limit.historyCount.suggestContinueAsNew": "60"}
"""Has a run go on in another execution once or twice."""

NOTHING: Mapping[str, str] = {}

Place = tuple[Nursery, str]
"""Where lanes are: what starts their workers, and the server's address."""

_MOMENTS: tuple[Moment, ...] = get_args(Moment)


@dataclass
class Soak:
    """One phase under way. folder: for its ledgers and logs. quick: do about a tenth of it."""

    phase: str
    seed: int
    folder: Path
    tell: Tell
    quick: bool = False
    evidence: list[Evidence] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def chance(self, part: object = "") -> Random:
        """The random numbers of a part of the phase: the same for the same seed, whatever the other parts draw."""
        return Random(f"{self.seed}/{self.phase}/{part}")

    def few(self, count: int) -> int:
        """This many, or a tenth of it in a quick soak."""
        return max(1, count // 10) if self.quick else count

    async def audit(self, its: Lane, *, outages: Sequence[Outage] = (), must_die: Sequence[str] = ()) -> None:
        """Hold what a lane has shown against the rules. must_die: the points at which its workers had to die."""
        evidence = await its.evidence(outages)
        died = {kill.point for kill in evidence.kills}
        self.evidence.append(evidence)
        self.wrong += [*violations(evidence), *(f"nobody died at {point}" for point in must_die if point not in died)]

    def report(self) -> Report:
        """What the phase gives back."""
        return Report(self.phase, self.seed, time.monotonic() - self.began, figures(self.evidence), self.wrong)


async def steps(soak: Soak) -> Report:
    """One run for each moment of each step, whose worker dies right there; eight runs at once."""
    every = [point for moment in _MOMENTS for point in points(moment)]
    return await die_at(soak, soak.chance().sample(every, soak.few(len(every))))


async def die_at(soak: Soak, wanted: Sequence[str], *, at_once: int = 8) -> Report:
    """One run for each point, whose worker dies there."""
    slots, done = asyncio.Semaphore(at_once), 0

    async def one(at: Place, number: int, point: str) -> None:
        nonlocal done
        chance = soak.chance(point)
        async with slots, lane(*at, soak.folder, f"step-{number}", chance, deaths=[point]) as its:
            await its.start()
            await its.finished(within_seconds=90)
            await soak.audit(its, must_die=[point])
        done += 1
        soak.tell(f"{done} of {len(wanted)} points, {len(soak.wrong)} violations; last: {point}")

    async with _place(soak) as at:
        await asyncio.gather(*(one(at, number, point) for number, point in enumerate(wanted, 1)))
    return soak.report()


async def gauntlet(soak: Soak) -> Report:
    """Runs whose workers die again and again: at one moment of every step of an agent, or at every moment of one
    approved call."""
    ways = {
        f"{agent}, {moment}": [point for point in points(moment) if point.startswith(f"{agent}:")]
        for agent in SCRIPTS
        for moment in _MOMENTS
    }
    ways |= {call.step: points_of(call) for agent in SCRIPTS for call in calls_of(agent) if call.runs_once}

    async def one(at: Place, number: int, way: str) -> None:
        deaths = ways[way][:: 10 if soak.quick else 1]
        async with lane(*at, soak.folder, f"way-{number}", soak.chance(way), deaths=deaths) as its:
            await its.start()
            await its.finished(within_seconds=60 + 20 * len(deaths))
            await soak.audit(its, must_die=deaths)
        soak.tell(f"{way}: {len(deaths)} deaths, {len(soak.wrong)} violations")

    async with _place(soak) as at:
        await asyncio.gather(*(one(at, number, way) for number, way in enumerate(ways, 1)))
    return soak.report()


async def random(soak: Soak) -> Report:
    """100 kills at random moments, on four queues with one worker and four runs in flight each.

    Here and below long runs go on in another execution, and on every other queue workers keep no run in memory.
    """
    return await _killed_from_outside(soak, queues=4, workers=1, kills=100)


async def pair(soak: Soak) -> Report:
    """40 kills at random moments, on two queues with two workers each: one is killed, the other goes on."""
    return await _killed_from_outside(soak, queues=2, workers=2, kills=40)


async def server(soak: Soak) -> Report:
    """The server is killed and started again from its file, ten times, under two queues with runs in flight."""
    outages: list[Outage] = []
    data, times, chance = soak.folder / "server", soak.few(10), soak.chance()
    current = await EmbeddedServer.start(port=0, ui=False, data=data, dynamic_config=SHORT_HISTORIES)
    try:
        async with (
            nursery() as those,
            lane(those, current.address, soak.folder, "server-1", soak.chance(1), pause=0.8) as first,
            lane(those, current.address, soak.folder, "server-2", soak.chance(2), pause=0.8, workers=2) as second,
        ):
            async with _fed(first), _fed(second):
                for number in range(1, times + 1):
                    await asyncio.sleep(chance.uniform(2, 8))
                    began = time.monotonic()
                    current = await _restarted(current, data, chance.uniform(0, 2))
                    outages.append(Outage(began, time.monotonic()))
                    soak.tell(f"{number} of {times} restarts, {first.started + second.started} runs")
            for its in (first, second):
                await its.finished(within_seconds=120)
                await soak.audit(its, outages=outages)
    finally:
        await current.stop()
    return soak.report()


async def _killed_from_outside(soak: Soak, *, queues: int, workers: int, kills: int) -> Report:
    each, done = -(-soak.few(kills) // queues), 0

    async def one(at: Place, number: int) -> None:
        nonlocal done
        chance, name = soak.chance(number), f"{soak.phase}-{number}"
        cached = 1_000 if number % 2 else 0  # Without a cache every workflow task replays its run.
        async with lane(*at, soak.folder, name, chance, workers=workers, pause=0.8, cached=cached) as its:
            async with _fed(its):
                for _ in range(each):
                    await its.crew.kill(chance)
                    done += 1
                    soak.tell(f"{done} of {each * queues} kills, {its.started} runs on queue {number}")
            await its.finished(within_seconds=120)
            await soak.audit(its)

    async with _place(soak, SHORT_HISTORIES) as at:
        await asyncio.gather(*(one(at, number) for number in range(1, queues + 1)))
    return soak.report()


async def _restarted(current: EmbeddedServer, data: Path, after_seconds: float) -> EmbeddedServer:
    port = int(current.address.rpartition(":")[2])
    current.process.kill()
    await current.process.wait()
    await asyncio.sleep(after_seconds)
    return await EmbeddedServer.start(port=port, ui=False, data=data, dynamic_config=SHORT_HISTORIES)


async def races(soak: Soak) -> Report:
    """A thousand runs in which an answer races what ends the wait for it. Nobody is killed."""
    raced = await race(soak.few(1_000), soak.seed, soak.tell)
    return Report(soak.phase, soak.seed, raced.seconds, raced.figures(), raced.violations)


@asynccontextmanager
async def _place(soak: Soak, config: Mapping[str, str] = NOTHING) -> AsyncIterator[Place]:
    embedded = await EmbeddedServer.start(port=0, ui=False, data=soak.folder / "server", dynamic_config=config)
    try:
        async with nursery() as those:
            yield those, embedded.address
    finally:
        await embedded.stop()


@asynccontextmanager
async def _fed(its: Lane, *, in_flight: int = 4) -> AsyncIterator[None]:
    feeding = asyncio.create_task(its.feed(in_flight))
    try:
        yield
    finally:
        its.stop_feeding.set()
        await feeding
