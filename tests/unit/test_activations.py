"""The threads that workflow code runs in: one that does not come back is answered for, and is fit for the next run."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation

from interlock._activations import ActivationThreads, ActivationWatch

LIMIT = 0.4
SLOW = 1.2 * LIMIT


@pytest.fixture
def watch() -> Iterator[ActivationWatch]:
    with ActivationWatch(ActivationThreads(), limit_seconds=LIMIT) as watch:
        yield watch


def activation(run_id: str = "run", *, evicts: bool = False, replays: bool = False) -> WorkflowActivation:
    act = WorkflowActivation(run_id=run_id, is_replaying=replays)
    if evicts:
        act.jobs.add().remove_from_cache.SetInParent()
    return act


def runs(watch: ActivationWatch, act: WorkflowActivation, do: Callable[[], object]) -> object:
    """What the worker gets of an activation that does this, within the time that Temporal gives it."""
    assert watch.threads is not None

    def activate() -> str:
        with watch.looking_at(act, "support-1"):
            do()
        return "its own"

    return watch.threads.submit(activate).result(timeout=5)


def computes_for(seconds: float) -> Callable[[], None]:
    def computes() -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    return computes


def swallows() -> None:
    """Gives way to nothing for a while, as code does that catches everything."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            while time.monotonic() < until:
                pass
        except BaseException:
            continue


def test_what_is_quick_gives_its_own_answer(watch: ActivationWatch) -> None:
    assert runs(watch, activation(), lambda: None) == "its own"


def test_what_is_slow_once_gives_its_own_answer(watch: ActivationWatch) -> None:
    assert runs(watch, activation(), lambda: time.sleep(SLOW)) == "its own"
    assert runs(watch, activation(), lambda: None) == "its own"
    assert runs(watch, activation(), lambda: time.sleep(SLOW)) == "its own"


def test_what_blocks_again_in_the_users_code_is_answered_for(watch: ActivationWatch) -> None:
    assert runs(watch, activation(), lambda: time.sleep(SLOW)) == "its own"
    answer = runs(watch, activation(), lambda: time.sleep(1.5))

    (command,) = answer.successful.commands  # type: ignore[attr-defined]
    failure = command.fail_workflow_execution.failure
    assert failure.application_failure_info.type == "BlockedRunError"
    assert "of tests.unit.test_activations, line " in failure.message


def test_another_run_or_a_replay_is_not_counted(watch: ActivationWatch) -> None:
    assert runs(watch, activation("one"), lambda: time.sleep(SLOW)) == "its own"
    assert runs(watch, activation("other"), lambda: time.sleep(SLOW)) == "its own"
    assert runs(watch, activation("one", replays=True), lambda: time.sleep(SLOW)) == "its own"


def test_an_eviction_that_only_waits_is_waited_for(watch: ActivationWatch) -> None:
    assert runs(watch, activation(evicts=True), lambda: time.sleep(SLOW)) == "its own"


def test_an_eviction_that_computes_on_and_on_is_answered_for(watch: ActivationWatch) -> None:
    answer = runs(watch, activation(evicts=True), swallows)

    assert answer.HasField("successful")  # type: ignore[attr-defined]


def test_an_interrupted_thread_takes_nothing_along_to_its_next_run(watch: ActivationWatch) -> None:
    assert watch.threads is not None
    answers = [
        watch.threads.submit(lambda n=n: _activate(watch, activation(str(n), evicts=True), computes_for(20)))
        for n in range(4)
    ]
    for answer in answers:
        answer.result(timeout=10)
    time.sleep(0.3)  # Every thread is back.

    busy = threading.Barrier(4)  # All four threads have to be there, and fit.
    later = [watch.threads.submit(busy.wait, 10) for _ in range(4)]
    assert sorted(one.result(timeout=10) for one in later) == [0, 1, 2, 3]
    assert len(watch.threads._threads) == 4


def _activate(watch: ActivationWatch, act: WorkflowActivation, do: Callable[[], object]) -> None:
    with watch.looking_at(act, "support-1"):
        do()


class Cached:
    """A run that a worker has in its cache."""

    def __init__(self) -> None:
        self.given: list[WorkflowActivation] = []
        self.thread = 0

    def activate(self, act: WorkflowActivation) -> None:
        self.given.append(act)
        self.thread = threading.get_ident()


def test_what_a_stopped_worker_leaves_in_its_cache_is_taken_apart_in_a_thread_for_runs() -> None:
    run = Cached()
    with ActivationWatch(ActivationThreads()) as watch:
        watch.cached.add(run)  # type: ignore[arg-type]

    assert [act.jobs[0].HasField("remove_from_cache") for act in run.given] == [True]
    assert run.thread not in (0, threading.get_ident())
