"""Processes that must not outlive the one that started them, also when that one is killed."""

import ctypes
import signal
import sys
from collections.abc import Callable

# Loaded here and not between fork and exec, where nothing may be loaded.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    # A program that is killed cannot stop what it started; the kernel can.
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


END_WITH_PARENT: Callable[[], None] | None = _end_with_parent if _LIBC is not None else None
"""For `preexec_fn`: the process gets SIGTERM when the thread that started it ends. None where this cannot be had."""
