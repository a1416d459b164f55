"""The threads that workflow code runs in: one that does not come back is answered for, and is fit for the next run."""

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from interlock._activations import ActivationThreads, ActivationWatch, _Guarded

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


class Slow:
    """A run whose activations last until they are told to end; `order` says which was begun and which was over."""

    _object = None

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        self.order: list[str] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kind = "eviction" if act.jobs else "step"
        self.order.append(f"{kind} begins")
        self.begun.set()
        assert act.jobs or self.end.wait(10)
        self.order.append(f"{kind} ends")
        completion = WorkflowActivationCompletion()
        completion.successful.SetInParent()
        return completion

    def get_info(self) -> SimpleNamespace:
        return SimpleNamespace(workflow_id="support-1")


def test_a_run_is_in_one_thread_at_a_time_and_taken_apart_when_that_is_back(watch: ActivationWatch) -> None:
    assert watch.threads is not None
    inner = Slow()
    run = _Guarded(inner, watch, replayer=True)  # type: ignore[arg-type]
    step = watch.threads.submit(run.activate, activation())
    assert inner.begun.wait(10)

    asked = watch.threads.submit(run.activate, activation()).result(timeout=10)
    evicted = watch.threads.submit(run.activate, activation(evicts=True)).result(timeout=10)
    assert inner.order == ["step begins"]
    inner.end.set()
    step.result(timeout=10)

    assert asked.failed.failure.message.startswith("[TMPRL1101]")
    assert evicted.HasField("successful")
    assert inner.order == ["step begins", "step ends", "eviction begins", "eviction ends"]


def test_a_step_that_begins_after_its_run_was_taken_apart_does_nothing(watch: ActivationWatch) -> None:
    inner = Slow()
    run = _Guarded(inner, watch, replayer=True)  # type: ignore[arg-type]
    run.activate(activation(evicts=True))

    late = run.activate(activation())
    run.activate(activation(evicts=True))

    assert late.HasField("failed")
    assert inner.order == ["eviction begins", "eviction ends"]
