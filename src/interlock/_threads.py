"""The threads in which a worker's event loop runs plain functions."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


def take_plain_functions() -> None:
    """Have the running loop run plain functions so that whoever waits for one learns of every error in it.

    Python does so itself from 3.12 on. Before that StopIteration, as of `next()` on an iterator at its end, does
    not get from a thread's future to the loop's, and `await asyncio.to_thread(...)` never returns.
    """
    if sys.version_info < (3, 12):
        asyncio.get_running_loop().set_default_executor(_Threads(thread_name_prefix="interlock-functions"))


class _Threads(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """See `Executor`."""
        return super().submit(_called, fn, *args, **kwargs)


def _called(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return fn(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError(f"The function raised StopIteration({error}): an iterator was at its end") from error
