"""A sample of the soak: `make soak` kills at every step, a hundred times at random moments, and the server too."""

from pathlib import Path

from soak.death import MOMENTS, points
from soak.phases import Soak, die_at, kill_from_outside
from tests.seeds import chosen_seed

LOST_AFTER_ITS_EFFECT = "desk:refund/A@after"


async def test_workers_killed_at_some_steps_repeat_lose_and_ask_nothing_twice(tmp_path: Path) -> None:
    soak = Soak("steps", chosen_seed(), tmp_path, print)
    every = [point for moment in MOMENTS for point in points(moment) if point != LOST_AFTER_ITS_EFFECT]
    report = await die_at(soak, [LOST_AFTER_ITS_EFFECT, *soak.chance("sample").sample(every, 4)])

    assert report.violations == []
    assert report.figures["workers killed"] == 5
    assert int(report.figures["settled as happened"]) >= 1


async def test_a_worker_of_two_that_is_killed_at_random_repeats_loses_and_asks_nothing_twice(tmp_path: Path) -> None:
    soak = Soak("pair", chosen_seed(), tmp_path, print)
    report = await kill_from_outside(soak, queues=1, workers=2, kills=2, in_flight=2)

    assert report.violations == []
    assert report.figures["workers killed"] == 2
