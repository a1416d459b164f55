"""A sample of the races between answers and what ends the wait for them. `make soak ARGS=races` runs a thousand."""

from interlock.server import EmbeddedServer
from soak.races import KINDS, race
from tests.seeds import chosen_seed


async def test_an_answer_that_races_the_end_of_the_wait_has_one_outcome(server: EmbeddedServer) -> None:
    report = await race(48, chosen_seed(), print, server=server)

    assert report.violations == []
    assert [row.kind for row in report.rows] == [kind.name for kind in KINDS]
    assert report.runs == 48
