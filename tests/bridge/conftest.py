"""Real Airflow, started once for all processes of a test run. See `tests.bridge.stack`."""

import os
import tempfile
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.bridge.airflow_api import AirflowAPI
from tests.bridge.stack import Stack

# Whatever of Airflow this process itself loads keeps away from the home of whoever runs the tests.
_home = tempfile.TemporaryDirectory(prefix="interlock-airflow-")
os.environ["AIRFLOW_HOME"] = _home.name

_STARTED = pytest.StashKey[tuple[Stack, dict[Path, int]]]()


@pytest.fixture(scope="session")
async def shared_stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # Each process has a folder of its own in that of the run.
    async with Stack.shared(base / "airflow") as stack:
        yield stack


@pytest.fixture
async def stack(shared_stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    """Airflow, Temporal and the worker. Other tests use them at the same time, so this one must leave them at work.

    With the marker `alone` no other test uses them: for tests that kill components, or measure.
    """
    async with shared_stack.turn(alone=request.node.get_closest_marker("alone") is not None):
        request.node.stash[_STARTED] = shared_stack, shared_stack.log_sizes()
        yield shared_stack


@pytest.fixture
async def airflow(stack: Stack) -> AsyncIterator[AirflowAPI]:
    """Airflow's API for an administrator. What a test leaves open is failed: it would keep workers from other tests."""
    async with AirflowAPI.connected(stack.api_url, "ada") as api:
        yield api
        for run in api.triggered:
            if await run.state() not in ("success", "failed"):
                await run.mark("failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Show what the components said during a test that failed."""
    report = yield
    if report.failed and _STARTED in item.stash:
        stack, sizes = item.stash[_STARTED]
        report.sections.append(("Airflow, Temporal and worker", stack.last_words(sizes)))
    return report
