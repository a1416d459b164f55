"""Ending long-running commands in an orderly way."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run `work` until it ends or a signal asks this process to end; then it is cancelled, once, and cleans up.

    Returns 130 after Ctrl+C and 0 after the signals with which programs are stopped in an orderly way.
    """
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        if len(received) == 1:  # What cleans up has limits of its own; a repeat would only leave processes behind.
            task.cancel()

    on_signals(stop)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return exit_status(received[0])


def on_signals(handle: Callable[[int], None]) -> None:
    """Call `handle(number)` in the running loop for each signal that asks this process to end."""
    for number in _SIGNALS:
        # Under nohup the hang-up stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, handle, number)


def exit_status(number: int) -> int:
    """The exit status of a program that a signal has stopped in an orderly way."""
    return 130 if number == signal.SIGINT else 0
