"""A killed `interlock dev` leaves nothing running: a worker that outlived it would go on with the old code."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from interlock.server import free_port
from interlock.testing import eventually

APP = """
from pydantic_ai import Agent
from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

app = Interlock([Agent("test", name="support", capabilities=[Durable()])])
"""


def children(parent: int) -> list[int]:
    """The processes that this one has started and that are there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # It has ended meanwhile.
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
async def test_what_a_killed_dev_has_started_ends(tmp_path: Path) -> None:
    (tmp_path / "support.py").write_text(APP)
    log = tmp_path / "log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    ports = ["--port", str(free_port()), "--ui-port", str(free_port())]
    with log.open("wb") as out:
        dev = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "interlock", "dev", "support:app", *ports],
            cwd=tmp_path,
            env=environment,
            stdout=out,
            stderr=out,
        )

    async def serves() -> bool:
        return "Worker for support" in log.read_text()

    await eventually(serves)
    started = children(dev.pid)
    assert len(started) >= 2
    dev.kill()
    await dev.wait()

    async def all_ended() -> bool:
        return not any(is_there(pid) for pid in started)

    await eventually(all_ended)
