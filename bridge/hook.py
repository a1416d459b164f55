"""The hook: clients of Temporal, one for each process and event loop."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from temporalio.client import Client as TemporalClient
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.runtime import Runtime, TelemetryConfig

from interlock._rpc import compression_to
from interlock.bridge._airflow import AirflowNotFoundException, BaseHook, whole
from interlock.bridge.connection import TemporalSettings, data_converter, read_settings
from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
from interlock.bridge.provider import CONNECTION_TYPE
from interlock.client import Client
from interlock.contracts.errors import MisconfiguredError, UnavailableError
from interlock.tracing import interceptors

T = TypeVar("T")

_CONNECT_WITHIN_SECONDS = 10
_LOOKS_UP_AGAIN_AFTER = (1, 2, 4)  # Seconds.


class TemporalHook(BaseHook):
    """Reaches Temporal by an Airflow connection of type `temporal`.

    Nothing connects before it is used. A client belongs to one event loop of one process, and is shared there: the
    triggerer has one for all its triggers, whatever their number.
    """

    conn_name_attr = "temporal_conn_id"
    default_conn_name = "temporal_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Temporal"

    def __init__(self, temporal_conn_id: str = default_conn_name, *, task_queue: str | None = None) -> None:
        super().__init__()
        self.temporal_conn_id = temporal_conn_id
        self.task_queue = task_queue

    def settings(self) -> TemporalSettings:
        """What the connection says. For code without an event loop.

        Raises AirflowNotFoundException when there is none, BadTaskError for one of another type or form.
        """
        try:
            connection = self.get_connection(self.temporal_conn_id)
        except AirflowNotFoundException as error:
            raise _unknown(self.temporal_conn_id) from error
        return read_settings(connection)

    async def client(self) -> Client:
        """A client for the running event loop, connected.

        Raises TemporalUnavailableError when nobody answers (retried), BadTaskError for a connection that has the wrong
        form.
        """
        try:
            connection = await self._found()
        except AirflowNotFoundException as error:
            raise _unknown(self.temporal_conn_id) from error
        settings = read_settings(connection)
        temporal = await _connected(settings, self.temporal_conn_id)
        return Client(temporal, task_queue=self.task_queue or settings.task_queue)

    async def leads_elsewhere(self, client: Client) -> bool:
        """Whether the connection was edited since it has given this client, as when a key is exchanged, and works."""
        try:
            return (await self.client()).temporal is not client.temporal
        except Exception:  # Of whatever kind: what does not work is no better than what there is.
            return False

    async def _found(self) -> Any:
        # Airflow says that there is none also when it cannot look, as when its database is away for a moment, and what
        # waits in a triggerer would fail at once.
        for pause in _LOOKS_UP_AGAIN_AFTER:
            with contextlib.suppress(Exception):
                return await whole(self.aget_connection(self.temporal_conn_id))
            await asyncio.sleep(pause)
        return await whole(self.aget_connection(self.temporal_conn_id))

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Do something with a client, for code without an event loop, such as a task."""
        settings = self.settings()

        async def connected() -> T:
            temporal = await _connected(settings, self.temporal_conn_id)
            return await work(Client(temporal, task_queue=self.task_queue or settings.task_queue))

        return run_coroutine(connected())

    def get_conn(self) -> TemporalClient:
        """A client of Temporal's own, for the running event loop. Not for code without one: use `run`."""
        raise NotImplementedError("Use `hook.run(work)`, or `await hook.client()` inside an event loop.")

    def test_connection(self) -> tuple[bool, str]:
        """Whether the server answers, knows the namespace and has Interlock's search attributes. Starts nothing."""

        async def look(client: Client) -> tuple[bool, str]:
            missing = await client.missing_attributes()
            workers = await client.has_worker()
            words = [f"Connected to namespace {client.temporal.namespace!r}."]
            if missing:
                words.append(f"It lacks search attributes ({', '.join(missing)}): run `interlock server prepare`.")
            words.append(
                f"{'A' if workers else 'No'} worker takes runs from task queue {client.task_queue!r}"
                f"{' now' if workers else '; runs wait until one does'}."
            )
            return True, " ".join(words)

        try:
            return self.run(look)
        except (BadTaskError, TemporalUnavailableError, MisconfiguredError, UnavailableError) as error:
            return False, str(error)


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run to its end in an event loop of its own, also where the caller's thread has one."""
    loop = None
    with contextlib.suppress(RuntimeError):
        loop = asyncio.get_running_loop()
    if loop is None:
        return asyncio.run(work)
    result: list[T] = []
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            result.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere, name="interlock-bridge")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def _unknown(conn_id: str) -> Exception:
    """Of Airflow's own type, which is retried: a secrets backend that does not answer is told in the same way."""
    return AirflowNotFoundException(
        f"Airflow has no connection {conn_id!r}. Make one of type {CONNECTION_TYPE!r} under Admin, Connections, or set "
        f"AIRFLOW_CONN_{conn_id.upper()}."
    )


_Clients = dict[TemporalSettings, "asyncio.Future[TemporalClient]"]
_clients: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients]" = WeakKeyDictionary()
_runtime: tuple[int, Runtime] | None = None


def _own_runtime() -> Runtime:
    # One that was made before a fork, Temporal's default one among them, cannot be used after it.
    global _runtime
    if _runtime is None or _runtime[0] != os.getpid():
        _runtime = (os.getpid(), Runtime(telemetry=TelemetryConfig()))
    return _runtime[1]


async def _connected(settings: TemporalSettings, conn_id: str) -> TemporalClient:
    clients = _clients.setdefault(asyncio.get_running_loop(), {})
    if settings not in clients:
        clients[settings] = asyncio.ensure_future(_connect(settings, conn_id))
    connecting = clients[settings]
    try:
        return await asyncio.shield(connecting)
    except BaseException:
        if connecting.done() and (connecting.cancelled() or connecting.exception()):
            clients.pop(settings, None)  # The next one tries again.
        raise


async def _connect(settings: TemporalSettings, conn_id: str) -> TemporalClient:
    options: dict[str, Any] = {}
    if settings.address:
        options = {
            "target_host": settings.address,
            "namespace": settings.namespace or "default",
            "api_key": settings.api_key or None,
            "tls": settings.tls_config,
        }
    else:
        options = _from_environment(settings)
    try:
        async with asyncio.timeout(_CONNECT_WITHIN_SECONDS):
            return await TemporalClient.connect(
                data_converter=data_converter(settings.data_converter) or pydantic_data_converter,
                interceptors=interceptors(),
                runtime=_own_runtime(),
                grpc_compression=compression_to(options["target_host"]),
                **options,
            )
    except ValueError as error:
        raise BadTaskError(f"The connection {conn_id!r} cannot be used: {error}.") from error
    except (RuntimeError, TimeoutError) as error:
        raise TemporalUnavailableError(
            f"No Temporal server answers at {options['target_host']} (connection {conn_id!r}). Is one running there, "
            f"and is the address right? {str(error) or f'Nothing came within {_CONNECT_WITHIN_SECONDS} s'}."
        ) from error


def _from_environment(settings: TemporalSettings) -> dict[str, Any]:
    from temporalio.envconfig import ClientConfig

    try:
        options: dict[str, Any] = dict(ClientConfig.load_client_connect_config())
    except Exception as error:
        raise BadTaskError(f"Temporal's client configuration cannot be read: {error}") from error
    options.setdefault("target_host", "localhost:7233")
    if settings.namespace:
        options["namespace"] = settings.namespace
    if settings.api_key:
        options["api_key"] = settings.api_key
    if settings.tls_config is not None:
        options["tls"] = settings.tls_config
    return options
