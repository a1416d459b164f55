"""A sample of the soak's phase `airflow`: `make soak` kills ten times as much."""

from pathlib import Path

import pytest

from soak.airflow import TASK, kill_under_dags
from soak.phases import Soak
from soak.script import ADAPTERS
from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.keeper import TRIGGERER, WORKER
from tests.bridge.stack import Stack
from tests.seeds import chosen_seed


@pytest.mark.alone
@pytest.mark.timeout(600)  # Tasks of Airflow take long on a machine that does much else.
async def test_whoever_is_killed_under_dag_runs_repeats_loses_and_asks_nothing_twice(
    airflow: AirflowAPI, stack: Stack, tmp_path: Path
) -> None:
    seed = chosen_seed()
    soak = Soak("airflow", seed, tmp_path, print, adapters=[ADAPTERS[seed % 2]])
    victims = [TASK, TASK, TRIGGERER, WORKER]
    soak.chance().shuffle(victims)
    report = await kill_under_dags(soak, stack, airflow, victims, queues=1, pause=1)

    assert report.violations == []
    killed = ("task processes killed", "triggerers killed", "workers killed")
    assert [report.figures[name] for name in killed] == [2, 1, 1]
