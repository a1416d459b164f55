"""How long a person waits for the command line, for the import, and for the demo."""

import asyncio
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import ROOT

TIMES = 9


class _FailedError(Exception):
    pass


async def startup(tell: Tell) -> list[Figure]:
    commands = {
        "`interlock --help`": [str(Path(sys.executable).with_name("interlock")), "--help"],
        "`import interlock`": [sys.executable, "-c", "import interlock"],
        "an empty Python process": [sys.executable, "-c", "pass"],
    }
    goals = {"`interlock --help`": 0.5, "`import interlock`": 0.3}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    missing: dict[str, str] = {}
    for turn in range(TIMES + 1):
        tell(f"round {turn} of {TIMES}" if turn else "warming up")
        for name, command in commands.items():
            if name not in missing:
                try:
                    took = await _timed(command)
                except (_FailedError, OSError) as error:
                    missing[name] = f"not there: {error}"
                    continue
                if turn:
                    seconds[name].append(took)
    figures = [_figure(name, seconds[name], goals.get(name), missing.get(name)) for name in commands]
    return [*figures, await _demo(tell)]


def _figure(name: str, seconds: list[float], goal: float | None, missing: str | None) -> Figure:
    if missing or not seconds:
        return Figure(name, "s", None, goal, missing or "")
    shown = f"{min(seconds):.2f} to {max(seconds):.2f} s in {len(seconds)} processes"
    return Figure(name, "s", median(seconds), goal, shown)


async def _demo(tell: Tell) -> Figure:
    name, goal = "warm `make demo ARGS=--yes`", 15
    if find_spec("interlock.demo") is None:
        return Figure(name, "s", None, goal, "not there")
    command = ["make", "demo", "ARGS=--yes"]
    without = ""
    try:
        # A stale environment would be installed anew: that is not a warm start, and nothing a benchmark should do.
        await _timed(["make", "--question", "env"])
    except (_FailedError, OSError):
        command = [sys.executable, "-m", "interlock", "demo", "--yes"]
        without = "; without make, whose environment is not up to date"
    try:
        tell("demo, first run")
        first = await _timed(command, within_seconds=60)
        tell("demo, second run")
        second = await _timed(command, within_seconds=60)
    except _FailedError as error:
        return Figure(name, "s", None, goal, f"failed: {error}{without}")
    return Figure(name, "s", second, goal, f"the run before it: {first:.1f} s{without}")


async def _timed(command: list[str], *, within_seconds: float = 30) -> float:
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_seconds):
            _, errors = await process.communicate()
    except TimeoutError:
        raise _FailedError(f"no end within {within_seconds:g} s") from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
    took = time.perf_counter() - began
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise _FailedError(lines[-1] if lines else f"exit status {process.returncode}")
    return took
