"""How an Airflow connection of type `temporal` says where Temporal is."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Protocol

from temporalio.converter import DataConverter
from temporalio.service import TLSConfig

from interlock.bridge.errors import BadTaskError
from interlock.bridge.provider import CONNECTION_TYPE
from interlock.contracts import names

CONVERTERS = "interlock.data_converters"
_KNOWN = (
    "namespace",
    "task_queue",
    "tls",
    "tls_server_name",
    "tls_server_ca",
    "tls_client_cert",
    "tls_client_private_key",
    "data_converter",
    "ui_url",
)
_WORDS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}


class AirflowConnection(Protocol):
    """What is read of a connection."""

    conn_id: str
    conn_type: str | None
    host: str | None
    port: int | None
    password: str | None

    @property
    def extra_dejson(self) -> Mapping[str, Any]:
        """The extra fields."""
        ...


@dataclass(frozen=True)
class TemporalSettings:
    """Where Temporal is, and how it is spoken to.

    address: HOST:PORT; empty leaves it, and whatever else is empty, to Temporal's own environment and profiles.
    tls: None follows the API key and the certificate. data_converter: the name of an entry point.
    """

    address: str = ""
    namespace: str = ""
    api_key: str = ""
    tls: bool | None = None
    tls_server_name: str = ""
    tls_server_ca: str = ""
    tls_client_cert: str = ""
    tls_client_private_key: str = ""
    data_converter: str = ""
    task_queue: str = names.DEFAULT_TASK_QUEUE
    ui_url: str = ""

    def __repr__(self) -> str:
        return f"TemporalSettings(address={self.address!r}, namespace={self.namespace!r})"  # The rest has keys.

    @property
    def tls_config(self) -> bool | TLSConfig | None:
        """As Temporal's client takes it; None for its own default, which is TLS when there is an API key."""
        if self.tls is False:
            return False
        if not (self.tls_server_name or self.tls_server_ca or self.tls_client_cert):
            return self.tls
        return TLSConfig(
            server_root_ca_cert=self.tls_server_ca.encode() or None,
            domain=self.tls_server_name or None,
            client_cert=self.tls_client_cert.encode() or None,
            client_private_key=self.tls_client_private_key.encode() or None,
        )


def read_settings(connection: AirflowConnection) -> TemporalSettings:
    """The settings that a connection holds. Raises BadTaskError naming the field that cannot be used."""
    # The password of a database, say, would be sent as the API key to wherever it is.
    if connection.conn_type != CONNECTION_TYPE:
        raise _bad(connection, f"is of type {connection.conn_type!r}; it has to be of type {CONNECTION_TYPE!r}")
    extra = connection.extra_dejson or {}
    unknown = sorted(set(extra) - set(_KNOWN))
    if unknown:
        raise _bad(connection, f"has unknown extra fields {', '.join(unknown)}; known: {', '.join(_KNOWN)}")
    texts = {name: _text(connection, name, extra.get(name)) for name in _KNOWN if name != "tls"}
    texts["task_queue"] = texts["task_queue"] or names.DEFAULT_TASK_QUEUE
    if bool(texts["tls_client_cert"]) != bool(texts["tls_client_private_key"]):
        raise _bad(connection, "has one of tls_client_cert and tls_client_private_key; they go together")
    host = (connection.host or "").strip()
    if "://" in host or "/" in host:
        raise _bad(connection, f"has the address {host!r}: it is a host name without a scheme, such as localhost")
    address = ""
    if host:
        address = host if connection.port is None and ":" in host else f"{host}:{connection.port or 7233}"
    return TemporalSettings(
        address=address, api_key=connection.password or "", tls=_flag(connection, extra.get("tls")), **texts
    )


def data_converter(name: str) -> DataConverter | None:
    """The data converter that an installed package has under this name; None for an empty one.

    Taken from entry points alone: a connection, which more people can edit than install code, names no module.
    """
    if not name:
        return None
    found = {one.name: one for one in entry_points(group=CONVERTERS)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise BadTaskError(
            f"There is no data converter {name!r}; installed: {known}. A package makes one known by an entry point of "
            f"the group {CONVERTERS!r}."
        )
    made = found[name].load()
    if not isinstance(made, DataConverter):
        raise BadTaskError(f"The entry point {name!r} of {CONVERTERS!r} is no temporalio DataConverter: {made!r}.")
    return made


def _text(connection: AirflowConnection, name: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _bad(connection, f"has a {type(value).__name__} as {name}; it is a text")  # Not the value: of a key, too.
    return value.strip()


def _flag(connection: AirflowConnection, value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word == "":
        return None
    if word not in _WORDS:
        raise _bad(connection, f"has tls={value!r}; it is true or false")
    return _WORDS[word]


def _bad(connection: AirflowConnection, what: str) -> BadTaskError:
    return BadTaskError(f"The connection {connection.conn_id!r} {what}. Edit it under Admin, Connections.")
