"""Real Airflow with a Temporal server and a worker, one for all processes of a test run. See `tests.bridge.keeper`."""

import asyncio
import fcntl
import json
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import IO, Any

import httpx

from interlock import Client, UnavailableError
from interlock._processes import END_WITH_PARENT
from interlock.testing import eventually
from tests.bridge.airflow_api import AirflowAPI, Task
from tests.bridge.keeper import (
    API_SERVER,
    COMPONENTS,
    DAG_PROCESSOR,
    REPOSITORY,
    SCHEDULER,
    TEMPORAL,
    TRIGGERER,
    WORKER,
    Setup,
    environment,
)
from tests.bridge.processes import descendants, is_alive, memory_bytes, send, title

_HEARTBEATS = {
    SCHEDULER: ("scheduler", "latest_scheduler_heartbeat"),
    TRIGGERER: ("triggerer", "latest_triggerer_heartbeat"),
    DAG_PROCESSOR: ("dag_processor", "latest_dag_processor_heartbeat"),
}
_UP_SECONDS = 150


class Stack:
    """The components, as a test finds them in the folder of their keeper."""

    def __init__(self, folder: Path, setup: Setup | None = None) -> None:
        self.folder = folder
        self._setup = setup or Setup()

    @classmethod
    @asynccontextmanager
    async def shared(
        cls, folder: Path, components: Sequence[str] = COMPONENTS, *, setup: Setup | None = None
    ) -> AsyncIterator["Stack"]:
        """The stack in the folder, which is started when nobody uses it yet and ends when nobody does any more."""
        folder.mkdir(exist_ok=True)
        async with _locked(folder / "users", fcntl.LOCK_SH):  # Waits for a keeper that is about to end.
            async with _locked(folder / "starting", fcntl.LOCK_EX):
                stack = cls(folder, setup)
                if not stack._has_keeper():
                    stack._start_keeper(components)
                await stack._all_up(components)
            yield stack

    @property
    def api_url(self) -> str:
        """Airflow's address."""
        return str(self._told()["api"])

    @property
    def temporal_address(self) -> str:
        """The Temporal server's address."""
        return str(self._told()["temporal"])

    def environment(self) -> Mapping[str, str]:
        """What a process needs to be one of the components, such as one that works on Airflow's database."""
        ports = [int(address.rpartition(":")[2]) for address in (self.api_url, self.temporal_address)]
        return environment(self.folder, self._setup, *ports)

    def pid(self, name: str) -> int | None:
        """The component's process; None while it is down."""
        pid: int | None = self._told()["pids"][name]
        return pid

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill a component with all that it has started, and wait until its successor is up."""
        await self._end(name, number)
        await self.up(name)

    @asynccontextmanager
    async def down(self, name: str) -> AsyncIterator[None]:
        """The component is killed, and away for as long as the block takes."""
        mark = self.folder / "down" / name
        mark.touch()
        try:
            await self._end(name, signal.SIGKILL)
            yield
        finally:
            mark.unlink()
            await self.up(name)

    @asynccontextmanager
    async def another(self, name: str) -> AsyncIterator[None]:
        """One more of a component of Airflow is at work for as long as the block takes."""
        with (self.folder / "logs" / f"another-{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(Path(sys.executable).parent / "airflow", name, "--skip-serve-logs"),
                cwd=REPOSITORY,
                env=dict(self.environment()),
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=END_WITH_PARENT,
                start_new_session=True,
            )
        try:
            yield
        finally:
            send([process.pid, *descendants(process.pid)], signal.SIGKILL)
            await process.wait()

    async def program(self, module: str, *arguments: str, statuses: Sequence[int] = (0,)) -> str:
        """What a module says that runs where Airflow's database is. Raises RuntimeError for another exit status."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            cwd=REPOSITORY,
            env=dict(self.environment()),
            stdin=DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            preexec_fn=END_WITH_PARENT,
        )
        said, _ = await process.communicate()
        if process.returncode not in statuses:
            raise RuntimeError(f"{module} failed: {said.decode(errors='replace')[-1_000:]}")
        return said.decode()

    @asynccontextmanager
    async def stopped(self, name: str) -> AsyncIterator[None]:
        """The component does nothing, and is not gone, for as long as the block takes."""
        pids = self._tree(name)

        async def is_stopped() -> bool:
            send(pids, signal.SIGSTOP)
            if await asyncio.to_thread(self._is_free):
                return True
            send(pids, signal.SIGCONT)  # It stood still in a transaction, and nobody else could write.
            return False

        try:
            await eventually(is_stopped)
            yield
        finally:
            send(pids, signal.SIGCONT)

    def _is_free(self) -> bool:
        """Whether Airflow's database can be written to, now or within seconds."""
        with closing(sqlite3.connect(self.folder / "home" / "airflow.db", timeout=3)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError:
                return False
            database.rollback()
            return True

    async def task_processes(self, task: Task) -> list[int]:
        """The processes that run the task instance's code: one while it runs, none while it waits."""
        return self.processes_of((await task.info())["id"])

    def processes_of(self, id: str) -> list[int]:
        """The same, by the id that Airflow has for the task instance."""
        return [pid for pid in self._tree(SCHEDULER) if title(pid) == f"airflow worker -- {id}"]

    async def up(self, name: str, since: float | None = None) -> None:
        """Wait until a component that has begun since then (now when not given) is at work."""
        began = time.time() if since is None else since

        async def is_up() -> bool:
            pid = self.pid(name)
            return pid is not None and is_alive(pid) and await self._works(name, began)

        await eventually(is_up, within_seconds=_UP_SECONDS, every_seconds=0.1)

    def open_gate(self, gate: str) -> None:
        """Let the calls of the tool `wait` end that wait for it."""
        (self.folder / "gates").mkdir(exist_ok=True)
        (self.folder / "gates" / gate).touch()

    def ledger(self, run_id: str) -> list[dict[str, Any]]:
        """The model calls and effects of a run of an agent, in order."""
        ledger = self.folder / "ledger"
        lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
        return [line for line in lines if line.pop("run") == run_id]

    def memory_bytes(self) -> dict[str, int]:
        """The memory of each component with all that it has started."""
        return {name: sum(memory_bytes(pid) for pid in self._tree(name)) for name in COMPONENTS}

    def log_sizes(self) -> dict[Path, int]:
        """The components' logs, and how much is in them."""
        return {log: log.stat().st_size for log in sorted((self.folder / "logs").glob("*.log"))}

    @asynccontextmanager
    async def turn(self, *, alone: bool) -> AsyncIterator[None]:
        """While the block runs, nobody's turn is alone. alone: nobody else has a turn at all.

        Whoever waits for a turn alone is next: others wait behind it at the door.
        """
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        async with _locked(self.folder / "door", fcntl.LOCK_EX):
            turn = _locked(self.folder / "turn", kind)
            await turn.__aenter__()
        try:
            yield
        finally:
            await turn.__aexit__(None, None, None)

    def _has_keeper(self) -> bool:
        with (self.folder / "keeper").open("ab") as lock:
            return not _try_lock(lock, fcntl.LOCK_EX)

    def _start_keeper(self, components: Sequence[str]) -> None:
        (self.folder / "stack.json").unlink(missing_ok=True)
        with (self.folder / "keeper.log").open("ab") as log:
            # Nobody waits for it: it must live on when this process ends and another still uses it.
            keeper = Popen(
                [sys.executable, "-m", "tests.bridge.keeper", str(self.folder), str(self._setup), *components],
                cwd=REPOSITORY,
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        keeper.returncode = 0  # Else its object warns, when it goes, that the process is still there.

    async def _all_up(self, components: Sequence[str]) -> None:
        try:
            async with asyncio.timeout(_UP_SECONDS):
                while not (self.folder / "stack.json").exists():
                    await asyncio.sleep(0.05)
                for name in components:
                    await self.up(name, since=0)
                if DAG_PROCESSOR in components:
                    async with AirflowAPI.connected(self.api_url, "ada") as api:
                        await self._dags_are_there(api)
        except (TimeoutError, AssertionError) as error:
            error.add_note(self.last_words())
            raise

    async def _dags_are_there(self, api: AirflowAPI) -> None:
        """Each file of `dags/` makes Dags of which one has the file's name."""
        wanted = {file.stem for file in Path(self._setup.dags).glob("[!_]*.py")}

        async def are_there() -> bool:
            assert not (errors := await api.import_errors()), "\n".join(errors.values())
            return wanted <= set(await api.dags())

        await eventually(are_there, within_seconds=_UP_SECONDS, every_seconds=0.2)

    def last_words(self, since: dict[Path, int] | None = None, lines: int = 20) -> str:
        """The end of each log that has grown since then, without what only informs."""
        parts = []
        for log, size in [(self.folder / "keeper.log", 0), *self.log_sizes().items()]:
            said = log.read_bytes()[(since or {}).get(log, 0) : size or None].decode(errors="replace").splitlines()
            if news := [line for line in said if line.strip() and "[info " not in line]:
                parts += [f"--- {log}", *news[-lines:]]
        return "\n".join(parts)

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / "stack.json").read_text())
        return told

    def _tree(self, name: str) -> list[int]:
        pid = self.pid(name)
        return [] if pid is None else [pid, *descendants(pid)]

    async def _end(self, name: str, number: signal.Signals) -> None:
        pid, tree = self.pid(name), self._tree(name)
        # All at once for SIGKILL, as when a machine is lost. Others are for the component, which stops its own.
        send(tree if number == signal.SIGKILL else tree[:1], number)

        async def is_gone() -> bool:
            return self.pid(name) != pid

        await eventually(is_gone, within_seconds=30)

    async def _works(self, name: str, since: float) -> bool:
        if name == TEMPORAL:
            return True  # The keeper tells of it once it answers.
        try:
            if name == WORKER:
                return await (await Client.connect(self.temporal_address)).has_worker()
            async with AirflowAPI.connected(self.api_url, "ada") as api:
                if name == API_SERVER:
                    return await api.serves_tasks()
                health = await api.health()
        except (httpx.TransportError, UnavailableError):
            return False  # What it is seen by is not up.
        part, heartbeat = _HEARTBEATS[name]
        told = health[part] or {}
        heard = told.get(heartbeat)
        return told["status"] == "healthy" and heard is not None and datetime.fromisoformat(heard).timestamp() > since


@asynccontextmanager
async def _locked(path: Path, kind: int) -> AsyncIterator[None]:
    """Holds the file's lock. Asks again and again: waiting in the system would stop this process's other tasks."""
    with path.open("ab") as file:
        while not _try_lock(file, kind):
            await asyncio.sleep(0.05)
        yield


def _try_lock(file: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
