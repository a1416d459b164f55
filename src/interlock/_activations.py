"""Runs workflow code for a worker so that neither an error nor a wait in it fails the same workflow task for ever."""

import ctypes
import dataclasses
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails
from temporalio.workflow import Info, NondeterminismError

from interlock.contracts import names
from interlock.contracts.failures import Told, own_place, told, where
from interlock.workflows.agent import AgentWorkflow
from interlock.workflows.guard import Contained, ReadableConverter, is_cancelling
from interlock.workflows.session import SessionWorkflow

_LIMIT_SECONDS = 2.0
"""Temporal's own limit on one activation; one that takes longer fails its workflow task."""

_SUSPICIOUS = 0.8  # Of that limit: the answer for a run that is blocked again has to be there before it is over.
_COMPUTING = 0.5
_LOOKS = 20
_EVICTION_TRIES = 3
_THREADS = 500
_PENDING = tuple(
    f"_pending_{kind}"
    for kind in ("timers", "activities", "child_workflows", "nexus_operations", "external_signals", "external_cancels")
)
_LATE = Told(
    names.RUN_BLOCKED, f"{names.DEADLOCK} The run is still at work in a thread that has taken longer than 2 s."
)
_OWN = (names.AGENT_WORKFLOW, names.SESSION_WORKFLOW)
_logger = logging.getLogger("interlock.worker")


class GuardedRunner(UnsandboxedWorkflowRunner):
    """Runs workflows as they are, and turns what would fail a workflow task into the failure of the run.

    Only what happens now ends a run. While a history is replayed an error means that this code is not the code that
    wrote it: the task fails, and waits for a worker that has the right one.

    watch: of a worker. A replayer has none; it comes to the end of the run as the worker did.
    """

    def __init__(self, watch: "ActivationWatch | None" = None) -> None:
        self._watch = watch or ActivationWatch()
        self._replayer = watch is None

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See `WorkflowRunner`."""
        make = det.payload_converter_factory
        det = dataclasses.replace(det, payload_converter_factory=lambda: ReadableConverter(make()))
        loop: Any = super().create_instance(det)
        create_task = loop.create_task
        loop.create_task = lambda coroutine, **options: create_task(_contained(coroutine), **options)
        return _Guarded(loop, self._watch, replayer=self._replayer)


class _Guarded(WorkflowInstance):
    def __init__(self, inner: WorkflowInstance, watch: "ActivationWatch", *, replayer: bool) -> None:
        self._inner = inner
        self._watch = watch
        self._replayer = replayer
        self._lock = threading.Lock()
        self._at_work = False
        self._evicted = False
        self._eviction: WorkflowActivation | None = None
        watch.cached.add(self)

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        # One thread at a time. The SDK may send the next one, a question say, while a thread that has taken too long is
        # not back yet; and may begin with one only after it was given up.
        with self._lock:
            if self._at_work or self._evicted:
                if not _evicts(act):
                    return _failed(_LATE)
                if self._at_work:  # In that thread the run is taken apart when it is back.
                    self._eviction = act
                return _done()
            self._evicted = _evicts(act)
            self._at_work = not self._evicted
        if self._evicted:
            return self._evict(act)
        try:
            return self._activate(act)
        finally:
            with self._lock:
                self._at_work = False
                self._evicted = self._eviction is not None
            if self._eviction is not None:
                self._evict(self._eviction)

    def _activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        if (inputs := _inputs(act)) > 1:  # More than the class takes: it could not even be made.
            return _ending(_failed(Told(names.INVALID_INPUT, f"A run takes one input, and {inputs} were given.")))
        # Left alone, the SDK shows workflow code a cancellation last, whenever it came.
        is_cancelling.set(any(job.HasField("cancel_workflow") for job in act.jobs))
        try:
            with self._watch.looking_at(act, self.get_info().workflow_id):
                completion = self._inner.activate(act)
        except (SystemExit, KeyboardInterrupt) as error:  # Of a callback; those of tasks are contained.
            completion = _failed(told(error))
        if act.is_replaying and not self._replayer:
            return completion
        if completion.HasField("failed"):
            return completion if _diverges(completion) else _ending(completion)
        if self._waits_for_nothing(act, completion):
            return _ending(_failed(_stalled(self._inner)))
        return completion

    def _waits_for_nothing(self, act: WorkflowActivation, completion: WorkflowActivationCompletion) -> bool:
        loop: Any = self._inner
        if loop._object is None or any(getattr(loop, pending, True) for pending in _PENDING):
            return False
        if any(job.HasField("query_workflow") for job in act.jobs) or any(map(_ends, completion.successful.commands)):
            return False
        return not isinstance(loop._object, AgentWorkflow | SessionWorkflow) or loop._object.idle()

    def _evict(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self._watch.cached.discard(self)
        for _ in range(_EVICTION_TRIES):
            try:
                with self._watch.looking_at(act, self.get_info().workflow_id):
                    return self._inner.activate(act)
            except BaseException as error:
                failure = error
        # A task that does not end. Its run is over for this worker; it is kept, since a task that is collected while
        # it waits would wake up in the middle of another run.
        self._watch.kept.append(self._inner)
        _logger.error(
            "run.not_evicted", extra={"workflow_id": self.get_info().workflow_id, "error": told(failure).message}
        )
        return _done()

    def get_serialization_context(self, command_info: Any) -> Any:
        return self._inner.get_serialization_context(command_info)

    def get_external_store_context(self, command_info: Any) -> Any:
        return self._inner.get_external_store_context(command_info)

    def get_info(self) -> Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


@dataclasses.dataclass
class _Activation:
    """One step of workflow code. counts: it happens now, so that it can end its run.

    place: where it was when it had taken too long. own: in the user's code. computes: it did not only wait there.
    """

    run_id: str
    workflow_id: str
    evicts: bool
    counts: bool
    since: float
    cpu_since: float
    place: str = ""
    own: bool = False
    computes: bool = False
    given_up: bool = False

    @property
    def function(self) -> str:
        return self.place.partition(", line")[0]


class ActivationThreads(ThreadPoolExecutor):
    """The threads in which a worker runs workflow code. One that does not come back in time can be answered for."""

    def __init__(self) -> None:
        super().__init__(_THREADS, "interlock-runs")
        self._answers: dict[int, Future[Any]] = {}

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """See `Executor`."""
        answer: Future[Any] = Future()

        def work() -> None:
            self._answers[threading.get_ident()] = answer
            with suppress(InvalidStateError):  # It was answered for, or nobody waits for it any more.
                try:
                    result = fn(*args, **kwargs)
                except BaseException as error:
                    answer.set_exception(error)
                else:
                    answer.set_result(result)

        super().submit(work)
        return answer

    def answer(self, thread: int, result: Any) -> None:
        """Give the result that the thread will not give in time."""
        with suppress(InvalidStateError):
            self._answers[thread].set_result(result)


class ActivationWatch:
    """Ends runs that hold their thread again and again: they would go on failing their workflow task.

    Twice in a row in the same function of the user's, or three times computing in a library, is no accident of a busy
    machine. threads: where the worker runs workflow code, while the watch is entered. limit_seconds: on one activation.
    """

    def __init__(self, threads: ActivationThreads | None = None, *, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._limit = limit_seconds
        self.kept: list[WorkflowInstance] = []
        self.cached: set[WorkflowInstance] = set()
        self.threads = threads
        self._at_work: dict[int, _Activation] = {}
        self._blocked: dict[str, list[_Activation]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="interlock-activation-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._evict_all()
        self._stop.set()
        self._thread.join()
        if self.threads is not None:
            self.threads.shutdown(wait=False)
        until = time.monotonic() + self._limit
        while (left := self._given_up()) and time.monotonic() < until:
            for thread, activation in left:
                self._interrupt(thread, activation)
            time.sleep(self._limit / _LOOKS)

    def _evict_all(self) -> None:
        """Take apart what a worker that has stopped leaves behind. The SDK leaves it to be collected, and a task that
        is collected while it waits wakes up in whatever thread that is, in the middle of another run."""
        if self.threads is not None:
            act = WorkflowActivation()
            act.jobs.add().remove_from_cache.SetInParent()
            wait([self.threads.submit(run.activate, act) for run in list(self.cached)], self._limit)

    @contextmanager
    def looking_at(self, act: WorkflowActivation, workflow_id: str) -> Iterator[None]:
        """Take note of how long the activation that runs inside takes."""
        activation = _Activation(
            act.run_id,
            workflow_id,
            evicts=_evicts(act),
            counts=not act.is_replaying and not _evicts(act),
            since=time.monotonic(),
            cpu_since=time.thread_time(),
        )
        self._at_work[threading.get_ident()] = activation
        try:
            yield
        finally:
            self._leave()
            if activation.counts and time.monotonic() - activation.since < self._limit:
                self._blocked.pop(act.run_id, None)

    def _leave(self) -> None:
        # An interruption may come in until the thread has left, and is not to go with it to whatever it does next.
        while True:
            try:
                with self._lock:
                    self._at_work.pop(threading.get_ident(), None)
                return
            except _GivenUp:
                continue

    def _look(self) -> None:
        while not self._stop.wait(self._limit / _LOOKS):
            for thread, activation in list(self._at_work.items()):
                if activation.given_up:
                    self._interrupt(thread, activation)
                elif time.monotonic() - activation.since > self._limit * _SUSPICIOUS:
                    self._examine(thread, activation)

    def _examine(self, thread: int, activation: _Activation) -> None:
        activation.computes = _cpu_seconds(thread) - activation.cpu_since > self._limit * _COMPUTING
        if activation.evicts and activation.computes:  # One that only waits for its turn, on a busy machine, ends.
            self._give_up(thread, activation, _done())
        if activation.place or (frame := sys._current_frames().get(thread)) is None:
            return
        frames = [*traceback.walk_stack(frame)]
        own = own_place(reversed(frames))
        activation.own, activation.place = bool(own), own or f"in {where(*frames[0])}"
        _logger.warning("run.blocked", extra={"workflow_id": activation.workflow_id, "at": activation.place})
        if activation.counts and self._again(activation):
            self._give_up(thread, activation, _ending(_failed(_blocked(activation))))

    def _again(self, activation: _Activation) -> bool:
        blocked = self._blocked.setdefault(activation.run_id, [])
        blocked.append(activation)
        same = [one for one in blocked if one.own and one.function == activation.function]
        return len(same) >= 2 or len([one for one in blocked if one.computes]) >= 3

    def _give_up(self, thread: int, activation: _Activation, answer: WorkflowActivationCompletion) -> None:
        if self.threads is not None:
            self._blocked.pop(activation.run_id, None)
            activation.given_up = True
            self.threads.answer(thread, answer)

    def _given_up(self) -> list[tuple[int, _Activation]]:
        return [(thread, activation) for thread, activation in list(self._at_work.items()) if activation.given_up]

    def _interrupt(self, thread: int, activation: _Activation) -> None:
        # Again and again: what runs there may swallow it. Not after it has left, when the thread is at something else.
        with self._lock:
            if self._at_work.get(thread) is activation:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_GivenUp))


class _GivenUp(BaseException):
    """Ends workflow code that nobody waits for any more."""


def _blocked(activation: _Activation) -> Told:
    return Told(
        names.RUN_BLOCKED,
        f"The run held its worker for longer than {_LIMIT_SECONDS:g} s, and again when it was tried again "
        f"({activation.place}). What is no tool runs in between the steps of a run, and there it must not wait or "
        "compute for long: do that in a tool.",
    )


def _stalled(loop: Any) -> Told:
    place = next(filter(None, (own_place(_frames(task.get_coro())) for task in loop._tasks)), "")
    at = f" ({place})" if place else ""
    return Told(
        names.RUN_STALLED,
        f"Nothing of the run is under way and nobody is asked, so it would wait for ever{at}. "
        "What a hook or a validator waits for has to come from a tool, a timer or a person.",
    )


def _frames(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def _evicts(act: WorkflowActivation) -> bool:
    return any(job.HasField("remove_from_cache") for job in act.jobs)


def _inputs(act: WorkflowActivation) -> int:
    starts = [job.initialize_workflow for job in act.jobs if job.HasField("initialize_workflow")]
    return sum(len(start.arguments) for start in starts if start.workflow_type in _OWN)


def _ends(command: Any) -> bool:
    return any(
        command.HasField(f"{kind}_workflow_execution") for kind in ("complete", "fail", "cancel", "continue_as_new")
    )


def _contained(coroutine: Any) -> Any:
    return Contained(coroutine) if hasattr(coroutine, "cr_frame") else coroutine


def _done() -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion()
    completion.successful.SetInParent()
    return completion


def _failed(what: Told) -> WorkflowActivationCompletion:
    completion = WorkflowActivationCompletion()
    completion.failed.failure.message = what.message
    completion.failed.failure.application_failure_info.type = what.type
    return completion


def _diverges(failed: WorkflowActivationCompletion) -> bool:
    return failed.failed.failure.application_failure_info.type == NondeterminismError.__name__


def _ending(failed: WorkflowActivationCompletion) -> WorkflowActivationCompletion:
    """The end of the run, by the failure of its task."""
    completion = WorkflowActivationCompletion()
    failure = completion.successful.commands.add().fail_workflow_execution.failure
    failure.CopyFrom(failed.failed.failure)
    failure.application_failure_info.non_retryable = True
    return completion


def _cpu_seconds(thread: int) -> float:
    """What the thread has computed in all."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except (AttributeError, OSError):  # Not on every system.
        return 0
