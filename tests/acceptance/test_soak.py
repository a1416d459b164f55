"""A sample of the soak: `make soak` kills at every step, a hundred times at random moments, and the server too."""

from pathlib import Path

from soak.phases import Soak, die_at, every_point, kill_from_outside
from soak.script import ADAPTERS
from tests.seeds import chosen_seed

LOST_AFTER_ITS_EFFECT = "desk:refund/A@after"


async def test_workers_killed_at_some_steps_repeat_lose_and_ask_nothing_twice(tmp_path: Path) -> None:
    soak = Soak("steps", chosen_seed(), tmp_path, print)
    lost = [(adapter, LOST_AFTER_ITS_EFFECT) for adapter in ADAPTERS]
    every = [point for point in every_point(ADAPTERS) if point not in lost]
    report = await die_at(soak, [*lost, *soak.chance("sample").sample(every, 3)])

    assert report.violations == []
    assert report.figures["workers killed"] == 5
    assert int(report.figures["settled as happened"]) >= 2


async def test_a_worker_of_two_that_is_killed_at_random_repeats_loses_and_asks_nothing_twice(tmp_path: Path) -> None:
    seed = chosen_seed()
    soak = Soak("pair", seed, tmp_path, print, adapters=[ADAPTERS[seed % 2]])
    report = await kill_from_outside(soak, queues=1, workers=2, kills=2, in_flight=2)

    assert report.violations == []
    assert report.figures["workers killed"] == 2
