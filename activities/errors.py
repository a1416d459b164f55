"""How an error leaves an activity: by the exact name of its type, with the word on whether to try again."""

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from temporalio.exceptions import ApplicationError

from interlock.contracts.errors import InterlockError, UnavailableError

P = ParamSpec("P")
R = TypeVar("R")


def typed_errors(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Turn Interlock's errors into Temporal's: UnavailableError is retried, the other families are not."""

    @functools.wraps(function)
    async def typed(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await function(*args, **kwargs)
        except InterlockError as error:
            retried = isinstance(error, UnavailableError)
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=not retried) from error

    return typed
