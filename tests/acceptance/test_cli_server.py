"""`server start` and `dev` as processes: what they keep, how they reload, and that nothing stays behind."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from interlock import Client, RefusedError
from interlock.server import free_port

T = TypeVar("T")

APP = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

app = Interlock([Agent(TestModel(custom_output_text="done"), name="{agent}", capabilities=[Durable()])])
"""


@contextmanager
def running(folder: Path, *arguments: str, **environment: str) -> Iterator["subprocess.Popen[bytes]"]:
    """The program at work in a folder, with what it says in the files `out` and `err` there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "INTERLOCK_"))}
    command = [sys.executable, "-m", "interlock", *arguments]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            command, cwd=folder, env={**kept, **environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        )
    try:
        yield process
    finally:
        if process.poll() is None:  # By a signal that it passes on: its server must not outlive the test.
            process.terminate()
        process.wait(30)


def eventually(ask: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + 45
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return answer


def says(folder: Path, process: "subprocess.Popen[bytes]", text: str) -> str:
    def said() -> str | None:
        so_far = (folder / "err").read_text()
        assert process.poll() is None or text in so_far, f"It ended: {so_far}"
        return so_far if text in so_far else None

    return eventually(said)


def links(folder: Path) -> dict[str, str]:
    """What `server start --json` has printed, as soon as it has."""
    found: dict[str, str] = json.loads(
        eventually(lambda: text if (text := (folder / "out").read_text()).endswith("}\n") else None)
    )
    return found


def nobody_listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


def is_gone(address: str) -> bool:
    """Whether the server of an address has ended. Any process may have been given the port by then."""
    port = address.rpartition(":")[2]
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = process.read_text(errors="replace").split("\0")
            if "start-dev" in words and port in words:
                return False
    return True


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 0)])
def test_the_server_stops_with_the_command_and_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    with running(tmp_path, "server", "start", "--port", "0", "--ui-port", str(free_port()), "--json") as process:
        server = links(tmp_path)
        assert not nobody_listens(server["address"])
        assert not nobody_listens(server["ui_url"].removeprefix("http://"))
        assert Path(server["data"]) == tmp_path / ".interlock"
        assert not is_gone(server["address"])
        process.send_signal(number)

        assert process.wait(30) == status

    assert is_gone(server["address"])
    assert "Traceback" not in (tmp_path / "err").read_text()


async def test_runs_survive_the_server(tmp_path: Path) -> None:
    start = ("server", "start", "--port", str(free_port()), "--data", "kept", "--json")
    with running(tmp_path, *start):
        client = await Client.connect(links(tmp_path)["address"])
        await client.start("support", "x", id="kept")
    with running(tmp_path, *start):
        client = await Client.connect(links(tmp_path)["address"])

        with pytest.raises(RefusedError, match="prompt differs"):
            await client.start("support", "y", id="kept")
        assert [run.workflow_id for run in await client.runs()] == ["kept"]


def test_a_server_whose_process_ends_ends_the_command_with_its_log(tmp_path: Path) -> None:
    with running(tmp_path, "server", "start", "--port", "0") as process:
        says(tmp_path, process, "Ctrl+C stops it.")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)

        assert process.wait(30) == 1

    assert "error: The Temporal server ended by itself, with status -9. Its log:" in (tmp_path / "err").read_text()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with running(tmp_path, "server", "start", "--port", str(port)) as process:
            assert process.wait(30) == 1

    assert (tmp_path / "err").read_text().startswith(f"error: Port {port} is taken.")


def test_dev_serves_reloads_and_ends_with_one_ctrl_c(tmp_path: Path) -> None:
    module = tmp_path / "support.py"
    module.write_text(APP.format(agent="first"))
    # Whatever is said about another server does not hold for the embedded one's worker.
    with running(tmp_path, "dev", "support:app", "--port", "0", TEMPORAL_ADDRESS="127.0.0.1:1") as process:
        says(tmp_path, process, "Worker for first")
        address = (tmp_path / "out").read_text().split()[1]
        module.write_text("def (:")
        says(tmp_path, process, "The worker ended. It starts again when a Python file changes.")
        module.write_text(APP.format(agent="second"))
        said = says(tmp_path, process, "Worker for second")
        assert "Changed: support.py. The worker starts again." in said
        assert "error: Module 'support' does not load: SyntaxError" in said

        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130

    assert is_gone(address)
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_dev_of_an_app_that_is_not_there_ends(tmp_path: Path) -> None:
    with running(tmp_path, "dev", "nowhere:app", "--port", "0") as process:
        assert process.wait(30) == 2

    assert "error: There is no module 'nowhere'" in (tmp_path / "err").read_text()
    assert is_gone((tmp_path / "out").read_text().split()[1])
