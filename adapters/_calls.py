"""What holds for the calls of both frameworks: where each one belongs, and what becomes of one that failed."""

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, Self, TypeVar

import anyio
from jsonschema import ValidationError as SchemaMismatch
from pydantic import ValidationError
from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType
from temporalio.exceptions import TimeoutError as ActivityTimeoutError

from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import Carried, Fork, Json, MadeCall, RunInput, Ticket, Usage
from interlock.contracts.places import is_call, ranks
from interlock.contracts.ports import ActivityPlan, FailedStep, Gate, GatedCall, Recovery, Ruling, activity_plan, place
from interlock.retries import Retries

T = TypeVar("T")

LARGEST_INPUT_BYTES = 1_500_000
"""Of what an execution hands on to the next. Temporal refuses a payload of 2 MB, and this is not all of the input."""

HEARTBEAT_TIMEOUT = timedelta(seconds=8)
"""After how long without a sign of life a worker's activity is taken for lost."""

OPEN_END = timedelta(days=365)
"""The server's limit on one attempt. An attempt's own time is limited by the worker, which does not count the time
that a tool waits for an agent it has started: that agent may wait for a person for weeks."""


@dataclass
class _Kept:
    """Which calls of the run that this one was forked from are still made, so that they keep their keys.

    Once a call differs, those that the model makes after it are others too. It is looked at once for each answer of the
    model: the calls of one answer do not depend on each other, whichever of them begins first.
    """

    made: Mapping[str, MadeCall]
    above: "_Kept | None" = None
    differs: bool = False
    others: set[str] = field(default_factory=set)

    def begin(self, at: str) -> None:
        """A call gets its place."""
        if self.differs:
            self.others.add(at)

    def differ(self, at: str) -> None:
        """What is called there is another call than the other run's."""
        self.others.add(at)
        scope: _Kept | None = self
        while scope is not None:
            scope.differs, scope = True, scope.above


@dataclass(kw_only=True)
class CallScope:
    """The agent run that the current workflow code belongs to.

    path: the agents from the root of this workflow to here.
    at: its place; empty for the root agent. by_answer: see `RunOptions.places_by_answer`.
    calls: counts its tool calls; those of the whole workflow unless by_answer.
    fork: what the run takes over from another one.
    key_root: what idempotency keys are made of; empty for the run's first execution. key_of_call: whether a key is made
    of the call as well.
    kept: which calls keep the keys that they had in another run.
    is_long: whether the execution is to end before the next request to the model, and another one to go on.
    over: failures that were kept for somebody to retry: as the end of the run they are final. final: the failures of
    calls that end the run.
    inside: whether its agent is at work: then every other agent that runs is one inside of it.
    runs: counts the runs of agents in each place, of the whole workflow. places: of the model's calls, by call id.
    under_way: the places of the calls whose tools are at work.
    """

    gate: Gate
    recovery: Recovery
    retries: Retries
    path: tuple[str, ...]
    fork: Fork | None
    key_root: str
    is_long: Callable[[], bool]
    at: str = ""
    by_answer: bool = False
    key_of_call: bool = False
    kept: _Kept = field(default_factory=lambda: _Kept({}))
    over: list[Exception] = field(default_factory=list)
    final: list[BaseException] = field(default_factory=list)
    calls: Iterator[int] = field(default_factory=lambda: count(1))
    places: dict[str, str] = field(default_factory=dict)
    under_way: set[str] = field(default_factory=set)
    runs: Counter[str] = field(default_factory=Counter)
    inside: bool = False

    def number(self, call_ids: Iterable[str]) -> None:
        """Give the calls of an answer of the model their places, in its order: whatever hooks and validators do before
        a call begins, and however long they take, its place stays the same.

        call_ids: as the calls will be known by, no two equal.
        """
        if self.by_answer:
            self.places.update((call_id, self._next()) for call_id in call_ids)

    def place_of(self, call_id: str) -> str:
        """The place of a call of the model's."""
        if call_id not in self.places:  # A hook has put it into the answer.
            self.places[call_id] = self._next()
        return self.places[call_id]

    @contextmanager
    def calling(self, call_id: str) -> Iterator[str]:
        """Give the tool that is called inside its place."""
        # A tool that calls another one in the workflow may do so under the id of its own call.
        own = self.by_answer and call_id and self.place_of(call_id) not in self.under_way
        at = self.place_of(call_id) if own else self._next()
        self.under_way.add(at)
        try:
            with placed(at):
                yield at
        finally:
            self.under_way.discard(at)

    def key_of(self, at: str, call: str, *, recorded: bool = True) -> str:
        """The idempotency key of a call that is about to run.

        call: a digest of the tool and the arguments that run. recorded: whether an activity makes the call; the others
        are not known to forks.

        The key is made of the first execution of the workflow and the place, so that attempts, replays and resets of
        the run make the same one, and a run that is started over makes others. The run of a tool's agent takes the key
        of that tool's call for it, and the call as well: started over, its model may make other calls in the place. A
        fork makes the keys of the run it was forked from as long as it does the same.
        """
        known = self.kept.made.get(at)
        if self.kept.made and at not in self.kept.others and recorded:
            if known is not None and call.startswith(known.call):
                return known.key
            self.kept.differ(at)
        root = self.key_root or workflow.info().first_execution_run_id
        number = at.removeprefix("tool:")
        return digest([root, int(number) if number.isdigit() else at, *([call] if self.key_of_call else [])])[:32]

    def still_made(self, calls: int) -> dict[str, MadeCall]:
        """Of the other run's calls, those that may still come up. calls: how many the root agent has made."""
        if self.kept.differs:
            return {}
        return {at: made for at, made in self.kept.made.items() if ranks(at)[0] > calls}

    def inner(self, agent: str, **fresh: Any) -> Self:
        """The scope of an agent that runs inside of this one's. fresh: fields that it has for itself."""
        fresh |= {"path": (*self.path, agent), "is_long": never}
        if self.by_answer:
            here = place.get()
            self.runs[here] += 1
            differs = here in self.kept.others if is_call(here) else self.kept.differs
            kept = _Kept(self.kept.made, above=self.kept, differs=differs)
            fresh |= {"at": f"{here}/{self.runs[here]}", "calls": count(1), "places": {}, "kept": kept}
        return dataclasses.replace(self, **fresh)

    def _next(self) -> str:
        at = f"{self.at}/tool:{next(self.calls)}" if self.at else f"tool:{next(self.calls)}"
        self.kept.begin(at)
        return at


def keys_of(run: RunInput) -> dict[str, Any]:
    """What the scope of a run's root agent is made of as far as places and keys go."""
    carried = run.carried or Carried()
    root = carried.key_root or (run.fork.key_root if run.fork else "")
    made = carried.made or (run.fork.made if run.fork else {})
    return {
        "by_answer": run.options.places_by_answer,
        "calls": count(carried.calls + 1),
        "key_root": root or run.key_root,
        "key_of_call": not root and bool(run.key_root),
        "kept": _Kept(made),
    }


current_ticket: ContextVar[Ticket | None] = ContextVar("interlock_ticket", default=None)
current_key: ContextVar[str] = ContextVar("interlock_key", default="")


class HistoryIsLongError(BaseException):
    """Takes the agent out of its loop between two requests to its model. No hook of an agent has a say in it."""


def never() -> bool:
    """No."""
    return False


class CallAtWork:
    """The body of one tool call, which lasts until it has settled.

    A framework that gives a call up, since another one of the same answer has failed or somebody has lost patience,
    would have it cancelled: its effect may have happened, and what it returns would be lost. Only the run's
    cancellation is the body's.

    is_in_vain: whether the run is about to end, and the body would wait for somebody who need not come in time.
    """

    def __init__(self, is_in_vain: Callable[[], bool]) -> None:
        self.handle: Any = None
        self._is_in_vain = is_in_vain
        self._watch: asyncio.Task[None] | None = None

    def begun(self, handle: Any) -> Any:
        """See `Body`."""
        self.handle, cancel = handle, handle.cancel

        def given_up(msg: Any = None) -> bool:
            if not self._outlasts_its_wait():
                return bool(cancel(msg))
            self._watch = self._watch or asyncio.ensure_future(_end_with_the_run(handle, self._is_in_vain))
            return False

        handle.cancel = given_up
        return handle

    async def settled(self, make: Callable[[], Awaitable[T]]) -> T:
        """What the call comes to. make: makes it; again it waits for the body that has begun."""
        given_up = False
        while True:
            try:
                with anyio.CancelScope(shield=given_up):
                    return await make()
            except asyncio.CancelledError:
                if self.handle is None:
                    raise
                if not self._outlasts_its_wait():
                    await _cancelled(self.handle)
                    raise
                given_up = True
                _go_on()

    def _outlasts_its_wait(self) -> bool:
        return _outlasts_its_wait() and not self._is_in_vain()


async def settled(make: Callable[[], Awaitable[T]], is_in_vain: Callable[[], bool] = never) -> T:
    """What comes of something in the workflow that lasts until it has settled, as a call at work does.

    is_in_vain: whether nobody is to wait for it any more, although the run has not been cancelled.
    """
    if not _outlasts_its_wait():
        return await make()
    task: asyncio.Future[T] = asyncio.ensure_future(make())
    watch: asyncio.Task[None] | None = None
    while True:
        try:
            with anyio.CancelScope(shield=True):
                return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                return task.result()  # What it raised, with its message.
            if is_in_vain() or not _outlasts_its_wait():
                await _cancelled(task)
                raise
            watch = watch or asyncio.ensure_future(_end_with_the_run(task, is_in_vain))
            _go_on()


async def all_settled(calls: Iterable["asyncio.Task[Any]"]) -> None:
    """Wait until calls that were given up have settled. The run's cancellation is theirs."""
    while left := [call for call in calls if not call.done()]:
        try:
            await workflow.wait(left)
        except asyncio.CancelledError:
            if not _outlasts_its_wait():
                for call in left:
                    call.cancel()
                await workflow.wait(left)
                raise
            _go_on()


async def _cancelled(work: "asyncio.Future[Any]") -> None:
    """Cancel the work, and wait until it is over."""
    if not work.done():
        work.cancel()
        with anyio.CancelScope(shield=True):
            await workflow.wait([work])


async def _end_with_the_run(work: "asyncio.Future[Any]", is_in_vain: Callable[[], bool] = never) -> None:
    # Those who gave it up wait for it where the run's cancellation does not reach them.
    await workflow.wait_condition(lambda: work.done() or workflow.cancellation_reason() is not None or is_in_vain())
    work.cancel()


def _go_on() -> None:
    if task := asyncio.current_task():
        task.uncancel()


def _outlasts_its_wait() -> bool:
    try:
        return workflow.cancellation_reason() is None and workflow.patched(names.SETTLE_CALLS)
    except BaseException:  # The SDK's word, of no public type, that the run leaves the worker's memory: all is to end.
        return False


@contextmanager
def planned(
    summary: str,
    ticket: Ticket | None = None,
    retries: RetryPolicy | None = None,
    call: str = "",
    key: str = "",
    body: CallAtWork | None = None,
) -> Iterator[None]:
    """Give the activities started inside their summary, the ticket of an approved call, their retries, a digest of the
    call, its idempotency key, and its body."""
    plan, held = activity_plan.set(ActivityPlan(summary, retries, call, body)), current_ticket.set(ticket)
    before = current_key.set(key)
    try:
        yield
    finally:
        current_key.reset(before)
        current_ticket.reset(held)
        activity_plan.reset(plan)


@contextmanager
def placed(at: str) -> Iterator[None]:
    """Say where in the run belongs what is done inside."""
    before = place.set(at)
    try:
        yield
    finally:
        place.reset(before)


async def shielded(handle: "asyncio.Future[T]") -> T:
    """Wait for an activity in a way that a cancelled scope of the framework's can end.

    Such a scope cancels its task again on every turn of the loop, and Temporal's handle would swallow each one and
    never give way. The shield takes the cancellation here, once.
    """
    try:
        return await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.cancel()
        raise


async def kept(scope: CallScope, label: str, error: Exception, kind: str = "tool") -> None:
    """Keep a call that has failed for good until it is to run again. Raises its failure when nobody wants that."""
    scope.over.append(error)
    await scope.recovery.wait(FailedStep(kind, scope.path, label, error))


async def ask_about_outcome(scope: CallScope, call: GatedCall, ticket: Ticket, error: ActivityError) -> Ruling:
    """Ask a person whether an approved call happened. Raises when they give up.

    call: of kind `outcome`, without its question.
    """
    question = masked_text(
        f"Request {ticket.request_id} was approved and the call began, but {_end_of(error)}. "
        "Did it happen? Look where it would have had its effect."
    )
    ruling = await settled(partial(scope.gate.ask, dataclasses.replace(call, question=question)))
    if ruling.outcome == "given_up":
        raise outcome_unknown(call.tool, ticket, error) from error
    return ruling


def may_have_happened(error: ActivityError, *, idempotent: bool) -> bool:
    """Whether a call that failed may have had its effect. Only a worker that lacks the tool says for sure that it has
    not; what a tool raises may come before its effect or after it."""
    return not idempotent and type_of(error) != names.NOT_REGISTERED


def type_of(error: ActivityError) -> str | None:
    """The type of what a step failed with; None when that has none."""
    return error.cause.type if isinstance(error.cause, ApplicationError) else None


def used_in_vain(error: ActivityError) -> Usage:
    """What the model calls in a step have used that failed, as far as it could say it."""
    details = error.cause.details if isinstance(error.cause, ApplicationError) else ()
    try:
        return Usage.model_validate(details[0])
    except (IndexError, ValidationError):
        return Usage()


def timed_out(message: str) -> ActivityError:
    """The failure of a call whose time was over, where the framework asks the model for another one instead."""
    error = ActivityError(
        "The call's time was over.",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type="",
        activity_id="",
        retry_state=None,
    )
    error.__cause__ = ApplicationError(message, type=names.TIMED_OUT, non_retryable=True)
    return error


def is_silent(error: ActivityError) -> bool:
    """Whether the attempt ended without a word of the tool's: its worker was lost or stopped, or its time was over."""
    return is_lost(error) or type_of(error) == names.OWN_TIME_EXCEEDED


def is_lost(error: ActivityError) -> bool:
    """Whether the attempt went with its worker: nothing was heard of it any more, or its worker was stopped."""
    cause = error.cause
    silent = isinstance(cause, ActivityTimeoutError) and cause.type is TimeoutType.HEARTBEAT
    return silent or type_of(error) == names.WORKER_SHUTDOWN


def outcome_unknown(tool: str, ticket: Ticket, error: ActivityError) -> ApplicationError:
    """The failure of a run whose approved call may or may not have happened."""
    return ApplicationError(
        f"It is not known whether the approved call of {tool!r} (request {ticket.request_id}) happened: {error.cause}. "
        "It is not run again. Look where it would have had its effect.",
        type=names.OUTCOME_UNKNOWN,
        non_retryable=True,
    )


def written(value: Any) -> Any:
    """A value as JSON. Raises ApplicationError, not retried, for one that has no such form."""
    try:
        return from_json(to_json(value))
    except ValueError as error:
        raise ApplicationError(
            f"A value of type {type(value).__name__} cannot be written as JSON: {error}",
            type=names.AGENT_RUN_FAILED,
            non_retryable=True,
        ) from error


def edit_note(arguments: dict[str, Json]) -> str:
    """What the model is told of a call that ran with other arguments than it gave."""
    return (
        "A reviewer approved this call with other arguments than you gave. It ran with: "
        f"{to_json(arguments).decode()}. Take these as what happened."
    )


def has_infinite(value: Json) -> bool:
    """Whether there is a number in it that JSON has no word for."""
    if isinstance(value, dict):
        return any(has_infinite(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(has_infinite(item) for item in value)
    return isinstance(value, float) and not math.isfinite(value)


def schema_problem(error: SchemaMismatch) -> str:
    """What does not fit a JSON schema. The validator's own words quote the value, unless they are about names."""
    where = ".".join(str(step) for step in error.absolute_path)
    about_names = error.validator in ("required", "dependentRequired", "additionalProperties")
    rule = to_json({str(error.validator): error.validator_value}).decode()
    what = error.message if about_names else f"has to fit {rule if len(rule) <= 300 else f'{rule[:299]}…'}"
    return f"{where}: {what}" if where else what


def _end_of(error: ActivityError) -> str:
    if isinstance(error.cause, ActivityTimeoutError):
        return "its worker was lost"
    if isinstance(error.cause, ApplicationError):
        return f"it ended with {error.cause.type}: {error.cause.message}"
    return f"it ended with {error.cause}"
