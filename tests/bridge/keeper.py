"""Keeps real Airflow, a Temporal server and a worker up: `python -m tests.bridge.keeper FOLDER SETUP COMPONENTS`.

Whatever of it ends is started again, as a service manager would do, unless FOLDER/down has a file of its name. Who uses
it holds a shared lock on FOLDER/users; once nobody does it kills everything and ends.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from interlock._processes import END_WITH_PARENT
from interlock.server import EmbeddedServer
from tests.bridge.processes import descendants, send

REPOSITORY = Path(__file__).parents[2]
DAGS = Path(__file__).parent / "dags"
TEMPORAL, WORKER = "temporal", "worker"
API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER = "api-server", "scheduler", "dag-processor", "triggerer"
AIRFLOW = {API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER}
COMPONENTS = (TEMPORAL, WORKER, API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)
USERS = {"ada": "admin", "olga": "op", "uma": "user", "vera": "viewer", "nora": ""}
"""The users of Airflow and their roles; nora may nothing. Each one's password is the name."""

_PR_SET_CHILD_SUBREAPER = 36
_BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Setup:
    """What is kept up. app: the worker's, as MODULE:APP. dags: the folder of the Dag files."""

    app: str = "tests.bridge.agents:app"
    dags: str = str(DAGS)

    def __str__(self) -> str:
        return json.dumps(asdict(self))


class Ending(Protocol):
    """A process that can be waited for."""

    pid: int

    async def wait(self) -> int: ...


class Keeper:
    """The components, in one folder. It tells of them in FOLDER/stack.json."""

    def __init__(self, folder: Path, setup: Setup, components: Sequence[str]) -> None:
        self._folder = folder
        self._setup = setup
        self._api, self._temporal = lasting_port(), lasting_port()
        self._pids: dict[str, int | None] = dict.fromkeys(components)
        self._environment = environment(folder, setup, self._api, self._temporal)
        # Its event loop waits for the lock that another of its requests holds, which needs the loop to let go of it.
        self._own = {API_SERVER: {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": _database(folder, wait_seconds=1)}}
        (folder / "down").mkdir(exist_ok=True)
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "passwords.json").write_text(json.dumps({user: user for user in USERS}))

    async def keep_up(self) -> None:
        """Start everything, and start again what ends."""
        migrated = asyncio.create_task(self._migrate())
        async with asyncio.TaskGroup() as group:
            for name in self._pids:
                group.create_task(self._keep_up(name, migrated if name in AIRFLOW else None))

    async def _migrate(self) -> None:
        if AIRFLOW.isdisjoint(self._pids):
            return
        process = await self._program("migrate", _BIN / "airflow", "db", "migrate")
        if status := await process.wait():
            raise RuntimeError(f"airflow db migrate ended with exit status {status}")

    async def _keep_up(self, name: str, after: asyncio.Task[None] | None) -> None:
        if after:
            await after
        while True:
            while (self._folder / "down" / name).exists():
                await asyncio.sleep(0.05)
            process = await self._start(name)
            self._tell(name, process.pid)
            await process.wait()
            self._tell(name, None)
            await asyncio.sleep(0.2)  # One that ends at once must not take the machine's time from the others.

    async def _start(self, name: str) -> Ending:
        if name == TEMPORAL:
            server = await EmbeddedServer.start(
                port=self._temporal, ui_port=lasting_port(), data=self._folder / TEMPORAL, ui=False
            )
            return server.process
        if name == WORKER:
            return await self._program(name, _BIN / "interlock", "worker", "run", self._setup.app)
        # Their servers of logs would listen on all interfaces; logs are read from the folder.
        options = ["--skip-serve-logs"] if name in (SCHEDULER, TRIGGERER) else []
        return await self._program(name, _BIN / "airflow", name, *options)

    async def _program(self, name: str, *command: str | Path) -> asyncio.subprocess.Process:
        with (self._folder / "logs" / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=REPOSITORY,
                env={**self._environment, **self._own.get(name, {})},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=END_WITH_PARENT,
                start_new_session=True,
            )

    def _tell(self, name: str, pid: int | None) -> None:
        self._pids[name] = pid
        told = {"api": f"http://127.0.0.1:{self._api}", "temporal": f"127.0.0.1:{self._temporal}", "pids": self._pids}
        (self._folder / "stack.new").write_text(json.dumps(told))
        (self._folder / "stack.new").rename(self._folder / "stack.json")


def lasting_port() -> int:
    """A port that is free now and stays so: out of the range from which the system gives ports to connections."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


def _database(folder: Path, *, wait_seconds: int) -> str:
    """wait_seconds: for SQLite's one lock for writers. The scheduler ends when it does not get it."""
    return f"sqlite:///{folder / 'home' / 'airflow.db'}?timeout={wait_seconds}"


def environment(folder: Path, setup: Setup, api: int, temporal: int) -> Mapping[str, str]:
    """Of all components: where they find each other and what they work on. api, temporal: their ports."""
    ours = ("AIRFLOW", "INTERLOCK_", "TEMPORAL_")
    connection: dict[str, Any] = {"conn_type": "temporal", "host": "127.0.0.1", "port": temporal}
    connection["extra"] = {"namespace": "default"}
    settings = {
        "CORE__DAGS_FOLDER": setup.dags,
        "CORE__PLUGINS_FOLDER": folder / "plugins",
        "CORE__LOAD_EXAMPLES": False,
        "CORE__PARALLELISM": 4,
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": False,
        "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": 1,
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{role}" for user, role in USERS.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": folder / "passwords.json",
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
        "DATABASE__SQL_ALCHEMY_CONN": _database(folder, wait_seconds=60),
        "API__HOST": "127.0.0.1",
        "API__PORT": api,
        "API__BASE_URL": f"http://127.0.0.1:{api}",
        # Without these each process makes up its own, and no process believes another.
        "API__SECRET_KEY": "key-of-tests-" * 5,
        "API_AUTH__JWT_SECRET": "jwt-secret-of-tests-" * 4,
        "CORE__FERNET_KEY": "a2V5LW9mLXRlc3RzLWtleS1vZi10ZXN0cy1rZXktLS0=",
        # Dags are parsed once, and again when their files change.
        "DAG_PROCESSOR__REFRESH_INTERVAL": 5,
        "DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": 3600,
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": 0.2,
        "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": 1,
        "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": 5,  # What a killed scheduler had queued would wait for 300 s.
        # The scheduler fails tasks whose deferral it hears of late (apache/airflow#72716): the default of 5 s makes
        # that frequent.
        "WORKERS__MIN_HEARTBEAT_INTERVAL": 1,
        "WORKERS__EXECUTION_API_TIMEOUT": 30,  # The default of 5 s is too short where all starts at once.
        # How soon what was killed counts as dead; a busy machine must not bring a live one there.
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": 30,
        "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": 2,
        "TRIGGERER__JOB_HEARTBEAT_SEC": 1,
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": 10,
        "LOGGING__COLORED_CONSOLE_LOG": False,
    }
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        **{f"AIRFLOW__{name}": str(value) for name, value in settings.items()},
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW_CONN_TEMPORAL_DEFAULT": json.dumps(connection),
        "PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "",  # Else every task process compiles what is not installed: Dags, and interlock.
        "PYTHONPATH": str(REPOSITORY),  # Dags and agents import from `tests`.
        "TEMPORAL_ADDRESS": f"127.0.0.1:{temporal}",
        "BRIDGE_TESTS_FOLDER": str(folder),
        "NO_PROXY": "127.0.0.1",
    }


async def _keep_while_used(keeper: Keeper, users: IO[bytes]) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    keeping = asyncio.create_task(keeper.keep_up())
    while not stopped.is_set() and not keeping.done() and not _is_locked(users):
        await asyncio.sleep(0.2)
    keeping.cancel()
    _kill_all()
    if keeping.done():
        keeping.result()


def _is_locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kill_all() -> None:
    deadline = time.monotonic() + 10
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        send(left, signal.SIGKILL)
        time.sleep(0.02)


def main(folder: Path, setup: Setup, components: Sequence[str]) -> None:
    """Keep the components up in the folder. Another keeper of the same folder must not be at work."""
    # What a killed component has started becomes this one's to end.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with (folder / "keeper").open("wb") as lock, (folder / "users").open("wb") as users:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        asyncio.run(_keep_while_used(Keeper(folder, setup, components), users))
        # Before the other lock, which lets the next ones in: they must not take this one for one that is at work.
        lock.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Setup(**json.loads(sys.argv[2])), sys.argv[3:])
