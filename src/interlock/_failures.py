"""How errors end runs, and how they are written into histories."""

import asyncio

from temporalio import workflow
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter
from temporalio.exceptions import ApplicationError, FailureError

from interlock.contracts import names
from interlock.contracts.failures import LONGEST_MESSAGE, bounded, told, unread

_CAUSES = 5
_NOT_DECODED = "Failed decoding arguments"  # What the SDK says, and no more.
_STACK_CHARACTERS = 20_000


def ended_by(error: BaseException, task: "asyncio.Task[object] | None") -> BaseException:
    """What ends a run whose code raises the error; the error itself where it is Temporal's own word.

    task: in which that code ran. Left alone, an error of a hook's or a validator's is taken for a bug in workflow code:
    the same task is tried again without end. A `BaseException` is not noticed at all: the run would stand still.
    """
    if isinstance(error, FailureError) or type(error).__module__.startswith("temporalio."):
        return error
    if isinstance(error, asyncio.CancelledError) and workflow.cancellation_reason() is not None:
        return error
    if isinstance(error, GeneratorExit) and _current_task() is not task:
        return error  # The run is taken apart; nobody raised this.
    return failure_of(error)


def failure_of(error: BaseException) -> ApplicationError:
    """The failure of what the error ended, not to be tried again, with its type and where it arose."""
    what = told(error)
    return ApplicationError(what.message, type=what.type, non_retryable=True).with_traceback(error.__traceback__)


def _current_task() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


class ToldFailures(DefaultFailureConverter):
    """Writes every error there can be: one that cannot be written would fail its task again and again.

    Messages are as `told` makes them. Of causes the first five are kept.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See `FailureConverter`."""
        try:
            super().to_failure(_chain(exception, _CAUSES), payload_converter, failure)
            failure.message = bounded(failure.message, LONGEST_MESSAGE + 1_000)  # With room for a place.
        except Exception:  # Details that are no JSON, or text that is no Unicode.
            failure.Clear()
            super().to_failure(_application_error(exception), payload_converter, failure)
        failure.stack_trace = failure.stack_trace[-_STACK_CHARACTERS:]


def _chain(error: BaseException, causes: int) -> BaseException:
    if isinstance(error, ApplicationError) and error.message == _NOT_DECODED and error.__cause__ is not None:
        return _unreadable(error.__cause__)
    if isinstance(error, FailureError):
        return error
    made = _application_error(error)
    made.__cause__ = _chain(error.__cause__, causes - 1) if error.__cause__ is not None and causes else None
    return made


def _unreadable(cause: BaseException) -> ApplicationError:
    """What a step was given and cannot read. It is tried again: another worker may have the code that can."""
    return ApplicationError(
        f"The step cannot read what it was given: {unread(cause)}. Its type has changed since the run wrote it, or it "
        "does not survive being written as JSON and read again; look at the dependencies (deps) first.",
        type=names.UNREADABLE_INPUT,
    )


def _application_error(error: BaseException) -> ApplicationError:
    if isinstance(error, ApplicationError):
        kind, words = error.type or type(error).__name__, bounded(error.message)
        made = ApplicationError(words, type=kind, non_retryable=error.non_retryable)
    else:
        what = told(error)
        made = ApplicationError(what.message, type=what.type)
    made.__suppress_context__ = True
    return made.with_traceback(error.__traceback__)
