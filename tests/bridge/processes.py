"""Processes as Linux tells of them: whose child each one is, and what it calls itself."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def _stat(pid: int) -> tuple[str, int] | None:
    """State and parent of a process; None when it is gone."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return state, int(parent)


def is_alive(pid: int) -> bool:
    stat = _stat(pid)
    return stat is not None and stat[0] != "Z"


def _alive() -> Iterator[tuple[int, int]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))) and stat[0] != "Z":
            yield int(folder.name), stat[1]


def descendants(pid: int) -> list[int]:
    """The processes that this one has started, and those that they have."""
    parents = dict(_alive())
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def title(pid: int) -> str:
    """What a process calls itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def memory_bytes(pid: int) -> int:
    """The memory of a process, of what it shares its share."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def send(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
