"""The phases: who is killed, when, and how often. Each gives back its report."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from interlock.server import EmbeddedServer
from soak.audit import violations
from soak.death import MOMENTS, points, points_of
from soak.evidence import Evidence, Outage
from soak.lane import Lane, lane
from soak.nursery import Nursery, nursery
from soak.races import race
from soak.report import Report, figures
from soak.script import ADAPTERS, SCRIPTS, Adapter, calls_of

Tell = Callable[[str], None]
"""Tells whoever waits what a phase is doing."""

SHORT_HISTORIES = {"limit.historyCount.suggestContinueAsNew": "60"}
"""Has a run go on in another execution once or twice."""

NOTHING: Mapping[str, str] = {}

Place = tuple[Nursery, str]
"""Where lanes are: what starts their workers, and the server's address."""


@dataclass
class Soak:
    """One phase under way. folder: for its ledgers and logs. quick: do about a tenth of it. adapters: of its agents."""

    phase: str
    seed: int
    folder: Path
    tell: Tell
    quick: bool = False
    adapters: Sequence[Adapter] = ADAPTERS
    evidence: list[Evidence] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def chance(self, part: object = "") -> Random:
        """The random numbers of a part of the phase: the same for the same seed, whatever the other parts draw."""
        return Random(f"{self.seed}/{self.phase}/{part}")

    def few(self, count: int) -> int:
        """This many, or a tenth of it in a quick soak."""
        return max(1, count // 10) if self.quick else count

    def adapter(self, number: int) -> Adapter:
        """Of the lane with this number, from 1 on: they take turns."""
        return self.adapters[(number - 1) % len(self.adapters)]

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
    """One run for each moment of each step, whose worker dies right there; twelve runs at once."""
    every = every_point(soak.adapters)
    return await die_at(soak, soak.chance().sample(every, soak.few(len(every))))


def every_point(adapters: Sequence[Adapter]) -> list[tuple[Adapter, str]]:
    """Every place where a worker can die, by the adapter of its agents."""
    return [(adapter, point) for adapter in adapters for moment in MOMENTS for point in points(adapter, moment)]


async def die_at(soak: Soak, wanted: Sequence[tuple[Adapter, str]], *, at_once: int = 12) -> Report:
    """One run for each point, whose worker dies there."""
    slots, done = asyncio.Semaphore(at_once), 0

    async def one(at: Place, number: int, adapter: Adapter, point: str) -> None:
        nonlocal done
        chance, deaths = soak.chance(point), [point]
        async with slots, lane(*at, soak.folder, f"step-{number}", chance, adapter=adapter, deaths=deaths) as its:
            await its.start()
            await its.finished(within_seconds=90)
            await soak.audit(its, must_die=[point])
        done += 1
        soak.tell(f"{done} of {len(wanted)} points, {len(soak.wrong)} violations; last: {point}, {adapter}")

    async with _place(soak) as at:
        await asyncio.gather(*(one(at, number, *point) for number, point in enumerate(wanted, 1)))
    return soak.report()


async def gauntlet(soak: Soak) -> Report:
    """Runs whose workers die again and again: at one moment of every step of an agent, or at every moment of one
    approved call."""
    ways = {
        (adapter, f"{agent}, {moment}"): [one for one in points(adapter, moment) if one.startswith(f"{agent}:")]
        for adapter in soak.adapters
        for agent in SCRIPTS
        for moment in MOMENTS
    }
    approved = [call for agent in SCRIPTS for call in calls_of(agent) if call.runs_once]
    ways |= {(adapter, call.step): points_of(adapter, call) for adapter in soak.adapters for call in approved}

    async def one(at: Place, number: int, adapter: Adapter, way: str) -> None:
        deaths, chance = ways[adapter, way][:: 10 if soak.quick else 1], soak.chance(way)
        async with lane(*at, soak.folder, f"way-{number}", chance, adapter=adapter, deaths=deaths) as its:
            await its.start()
            await its.finished(within_seconds=60 + 20 * len(deaths))
            await soak.audit(its, must_die=deaths)
        soak.tell(f"{way}, {adapter}: {len(deaths)} deaths, {len(soak.wrong)} violations")

    async with _place(soak) as at:
        await asyncio.gather(*(one(at, number, *way) for number, way in enumerate(ways, 1)))
    return soak.report()


async def random(soak: Soak) -> Report:
    """100 kills at random moments, on four queues with one worker and four runs in flight each.

    Here and below long runs go on in another execution, the adapters take turns, and on half of the queues workers keep
    no run in memory.
    """
    return await kill_from_outside(soak, queues=4, workers=1, kills=100)


async def pair(soak: Soak) -> Report:
    """40 kills at random moments, on two queues with two workers each: one is killed, the other goes on."""
    return await kill_from_outside(soak, queues=2, workers=2, kills=40)


async def server(soak: Soak) -> Report:
    """The server is killed and started again from its file, ten times, under two queues with runs in flight."""
    outages: list[Outage] = []
    data, times, chance = soak.folder / "server", soak.few(10), soak.chance()
    current = await EmbeddedServer.start(port=0, ui=False, data=data, dynamic_config=SHORT_HISTORIES)
    try:
        async with (
            nursery() as those,
            _server_lane(soak, those, current.address, 1) as first,
            _server_lane(soak, those, current.address, 2) as second,
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


def _server_lane(soak: Soak, those: Nursery, address: str, number: int) -> AbstractAsyncContextManager[Lane]:
    name, chance, adapter = f"server-{number}", soak.chance(number), soak.adapter(number)
    return lane(those, address, soak.folder, name, chance, adapter=adapter, pause=0.8, workers=number)


async def races(soak: Soak) -> Report:
    """1,000 runs where an answer and what ends the wait for it arrive within 5 ms of each other."""
    raced = await race(soak.few(1_000), soak.seed, soak.tell, adapters=soak.adapters)
    found = {"races": raced.runs}
    return Report(soak.phase, soak.seed, raced.seconds, found, raced.violations, raced.table())


async def kill_from_outside(soak: Soak, *, queues: int, workers: int, kills: int, in_flight: int = 4) -> Report:
    """Kill workers at random moments. workers, in_flight: on each queue. kills: on all of them."""
    each, done = -(-soak.few(kills) // queues), 0

    async def one(at: Place, number: int) -> None:
        nonlocal done
        chance, name = soak.chance(number), f"{soak.phase}-{number}"
        cached = 0 if number // 2 % 2 else 1_000  # Without a cache every workflow task replays its run.
        options: dict[str, Any] = {"adapter": soak.adapter(number), "workers": workers, "cached": cached}
        async with lane(*at, soak.folder, name, chance, pause=0.8, **options) as its:
            async with _fed(its, in_flight):
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


@asynccontextmanager
async def _place(soak: Soak, config: Mapping[str, str] = NOTHING) -> AsyncIterator[Place]:
    embedded = await EmbeddedServer.start(port=0, ui=False, data=soak.folder / "server", dynamic_config=config)
    try:
        async with nursery() as those:
            yield those, embedded.address
    finally:
        await embedded.stop()


@asynccontextmanager
async def _fed(its: Lane, in_flight: int = 4) -> AsyncIterator[None]:
    feeding = asyncio.create_task(its.feed(in_flight))
    try:
        yield
    finally:
        its.stop_feeding.set()
        await feeding
