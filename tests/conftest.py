"""One real server for each test process; every test has a task queue of its own."""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from interlock import Interlock
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running

if TYPE_CHECKING:
    from tests.openai_api import OpenAIAPI

# A run whose step fails for good ends at once, except in the tests that are about stuck runs.
os.environ["INTERLOCK_STUCK_SECONDS"] = "0"

# Those that share one Airflow, and need it alone now and then, would otherwise wait for each other in all processes at
# the end. Those of the command line list what is on the server, and most others leave open runs there.
_ORDER = [Path(__file__).parent / name for name in ("bridge", "unit", "acceptance")]

Running = Callable[[Interlock], AbstractAsyncContextManager[RunningApp]]


# For a test of many runs, which takes long: the stricter of the two.
uncached = pytest.mark.parametrize("run_app", [0], ids=["uncached"], indirect=True)


def left_behind(work: Awaitable[Any]) -> asyncio.Future[Any]:
    """Begin what a tool leaves at work. Nobody takes its end, which asyncio would log in the middle of a later test."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


@pytest.fixture(autouse=True)
def _log_goes_where_it_went() -> Iterator[None]:
    """A command that is run in the test's process sends the log to a stream that is closed with the test."""
    levels = {logger: logger.level for logger in (logging.root, logging.getLogger("temporalio.core"))}
    handlers = list(logging.root.handlers)
    yield
    for handler in logging.root.handlers[:]:
        if handler not in handlers:
            logging.root.removeHandler(handler)
    for logger, level in levels.items():
        logger.setLevel(level)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedServer]:
    embedded = await EmbeddedServer.start(port=0, ui=False)
    yield embedded
    await embedded.stop()


@pytest.fixture(scope="module")
async def own_server() -> AsyncIterator[EmbeddedServer]:
    """A server of the module's own, for what looks at all open runs: the tests of other modules leave many."""
    embedded = await EmbeddedServer.start(port=0, ui=False)
    yield embedded
    await embedded.stop()


@pytest.fixture(params=[1_000, 0], ids=["cached", "uncached"])
def run_app(server: EmbeddedServer, request: pytest.FixtureRequest) -> Running:
    """Runs an app with the workflow cache on, and again with it off, where every task replays the whole run."""
    return partial(running, server=server, max_cached_workflows=request.param)


@pytest.fixture
async def openai_api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator["OpenAIAPI"]:
    """An OpenAI-compatible server; models that are given by name find it too."""
    from tests.openai_api import OpenAIAPI  # The SDK takes seconds to load, and few tests need it.

    async with OpenAIAPI.running() as api:
        monkeypatch.setenv("OPENAI_BASE_URL", api.url)
        monkeypatch.setenv("OPENAI_API_KEY", "test")
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # Traces go to another address than requests.
        yield api


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of garbage collections: Airflow, both frameworks and all tests are so much that
    one takes a good part of the 2 s that Temporal gives a workflow task, and on a busy machine all of them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """See `_ORDER`: others come after them."""
    items.sort(key=lambda item: [folder not in item.path.parents for folder in _ORDER])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Keep text that is no Unicode, which tests of bad input log, from stopping a run over several processes."""
    report = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report
