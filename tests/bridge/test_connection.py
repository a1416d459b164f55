"""What a connection of type `temporal` says, and how clients come and go."""

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from airflow.sdk import Connection
from airflow.sdk._shared.secrets_masker import should_hide_value_for_key
from temporalio.service import TLSConfig

from interlock.bridge._airflow import AirflowNotFoundException
from interlock.bridge.connection import TemporalSettings, data_converter, read_settings
from interlock.bridge.errors import BadTaskError
from interlock.bridge.hook import TemporalHook, run_coroutine
from interlock.bridge.provider import get_provider_info
from interlock.server import EmbeddedServer, free_port


def connection(host: str | None = "temporal", port: int | None = None, **extra: Any) -> Connection:
    return Connection(conn_id="temporal_default", conn_type="temporal", host=host, port=port, extra=json.dumps(extra))


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("temporal", None, "temporal:7233"),
        ("temporal", 7300, "temporal:7300"),
        ("temporal:7300", None, "temporal:7300"),
        (None, None, ""),
    ],
)
def test_the_address_is_host_and_port(host: str | None, port: int | None, address: str) -> None:
    assert read_settings(connection(host, port)).address == address


def test_each_field_of_the_form_is_read() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    given: Any = {name: f"some {name}" for name in fields if name != "tls"}
    settings = read_settings(connection(tls="true", **given))

    assert {name: getattr(settings, name) for name in given} == given
    assert settings.tls is True
    # For these two Airflow has fields of its own.
    assert fields.keys() | {"address", "api_key"} == set(TemporalSettings.__dataclass_fields__)


def test_an_empty_form_is_the_default() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    empty: Any = {name: None if name == "tls" else "" for name in fields}
    settings = read_settings(connection(**empty))

    assert (settings.task_queue, settings.tls_config) == ("interlock", None)


def test_tls_is_what_the_fields_say() -> None:
    assert read_settings(connection(tls=False, tls_server_name="t")).tls_config is False
    made = read_settings(
        connection(tls_client_cert="cert", tls_client_private_key="key", tls_server_ca="ca")
    ).tls_config
    assert made == TLSConfig(server_root_ca_cert=b"ca", client_cert=b"cert", client_private_key=b"key")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"host": "https://temporal"}, "has the address 'https://temporal': it is a host name without a scheme"),
        ({"namspace": "x"}, "has unknown extra fields namspace; known: namespace, "),
        ({"tls": "maybe"}, "has tls='maybe'; it is true or false"),
        ({"tls_client_private_key": ["a key"]}, "has a list as tls_client_private_key; it is a text"),
        ({"tls_client_cert": "x"}, "has one of tls_client_cert and tls_client_private_key; they go together"),
    ],
)
def test_what_cannot_be_used_is_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadTaskError, match=f"^The connection 'temporal_default' {said}"):
        read_settings(connection(**wrong))


def test_one_of_another_type_is_refused() -> None:
    """Its password would be sent as the API key to wherever it is."""
    database = Connection(conn_id="warehouse", conn_type="postgres", host="db", password="secret")
    with pytest.raises(BadTaskError, match="'warehouse' is of type 'postgres'; it has to be of type 'temporal'"):
        read_settings(database)


def test_one_that_is_not_there_is_told_with_what_to_do() -> None:
    hook = TemporalHook("nowhere")
    for ask in (hook.settings, lambda: run_coroutine(hook.client())):
        with pytest.raises(AirflowNotFoundException, match=r"'nowhere'. Make one .* or set AIRFLOW_CONN_NOWHERE"):
            ask()


def test_an_error_brings_none_of_how_it_was_run() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as failed:
        run_coroutine(fail())
    assert failed.value.__context__ is None


def test_a_connection_names_no_code() -> None:
    with pytest.raises(BadTaskError, match=r"There is no data converter 'os:system'; installed: none"):
        data_converter("os:system")


def test_keys_are_not_shown() -> None:
    settings = TemporalSettings(api_key="secret", tls_client_private_key="secret")

    assert "secret" not in repr(settings)


def test_airflow_hides_what_the_form_hides() -> None:
    """It goes by the names, for whoever may look at connections."""
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    secret = {name for name, field in fields.items() if field["schema"].get("format") == "password"}

    hidden: Any = should_hide_value_for_key
    assert secret == {name for name in fields if hidden(name)} == {"tls_client_private_key"}


@pytest.fixture
def conn_env(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = server.address.rpartition(":")
    monkeypatch.setenv(
        "AIRFLOW_CONN_TEMPORAL_HERE", json.dumps({"conn_type": "temporal", "host": host, "port": int(port)})
    )


@pytest.mark.usefixtures("conn_env")
async def test_all_in_one_event_loop_share_a_client() -> None:
    hook = TemporalHook("temporal_here", task_queue="elsewhere")
    found = await asyncio.gather(*(hook.client() for _ in range(20)))

    assert len({id(client.temporal) for client in found}) == 1
    assert found[0].task_queue == "elsewhere"


@pytest.mark.usefixtures("conn_env")
async def test_code_without_an_event_loop_has_a_client_of_its_own_each_time() -> None:
    hook = TemporalHook("temporal_here")

    async def own(client: Any) -> Any:
        return client.temporal

    assert hook.run(own) is not hook.run(own)  # Also inside of a running loop.
    assert hook.test_connection()[0] is True
    assert hook.test_connection()[1].startswith("Connected to namespace 'default'.")


def test_a_server_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_NOBODY", json.dumps({"conn_type": "temporal", "host": "127.0.0.1", "port": free_port()})
    )

    works, said = TemporalHook("nobody").test_connection()
    assert not works
    assert said.startswith("No Temporal server answers at 127.0.0.1:")


FORK = """
import json, os, sys
from interlock.bridge.hook import TemporalHook
hook = TemporalHook("temporal_here")
async def namespace(client): return client.temporal.namespace
before = hook.run(namespace)
child = os.fork()
if not child:
    try:
        os._exit(0 if hook.run(namespace) == before else 1)
    finally:
        os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.usefixtures("conn_env")
def test_a_client_works_after_a_fork_too() -> None:
    told = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=False, timeout=60)

    assert told.returncode == 0, told.stderr
