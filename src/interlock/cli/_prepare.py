"""Gives a server that is there already what runs need."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli._connect import connect
from interlock.cli._console import emit_json, say
from interlock.cli._options import AsJson
from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError, UnavailableError

if TYPE_CHECKING:
    from interlock.client import Client

_SEEN_WITHIN_SECONDS = 60


def prepare(
    retention_days: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="How long a new namespace keeps ended runs."),
    ] = 30,
    as_json: AsJson = False,
) -> int:
    """Add to the addressed server what Interlock needs and it lacks: the namespace, and search attributes.

    What is there stays as it is, so it may be run any number of times. It may take a minute until a server shows what
    was added; then the command ends.

    \b
    Examples:
      TEMPORAL_ADDRESS=temporal.internal:7233 interlock server prepare
    """
    return asyncio.run(_prepare(retention_days, as_json=as_json))


async def _prepare(retention_days: int, *, as_json: bool) -> int:
    from interlock._rpc import server_errors

    client = await connect()
    try:
        with server_errors(""):
            async with asyncio.timeout(_SEEN_WITHIN_SECONDS):
                added = [*await _add_namespace(client, retention_days), *await _add_attributes(client)]
    except TimeoutError as error:
        raise UnavailableError(
            f"The server does not show within {_SEEN_WITHIN_SECONDS} s what was added. Run this again."
        ) from error
    if as_json:
        emit_json({"namespace": client.temporal.namespace, "added": added})
    else:
        say(f"Added: {', '.join(added)}." if added else "Nothing was missing.")
    return 0


async def _add_namespace(client: "Client", retention_days: int) -> list[str]:
    from google.protobuf.duration_pb2 import Duration
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
    from temporalio.service import RPCError, RPCStatusCode

    service, name = client.temporal.workflow_service, client.temporal.namespace
    try:
        await service.describe_namespace(DescribeNamespaceRequest(namespace=name))
        return []
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
    kept = Duration(seconds=retention_days * 86_400)
    with _unless_added_meanwhile():
        await service.register_namespace(
            RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept)
        )
    return [f"namespace {name}"]


async def _add_attributes(client: "Client") -> list[str]:
    from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

    missing = await _missing(client)
    if missing:
        added = {name: kind for name, kind in _types().items() if name in missing}
        with _unless_added_meanwhile():
            await client.temporal.operator_service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.temporal.namespace, search_attributes=added)
            )
        while await _missing(client):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.2)
    return missing


async def _missing(client: "Client") -> list[str]:
    """Interlock's search attributes that the server does not have, as soon as the server knows the namespace."""
    from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
    from temporalio.service import RPCError, RPCStatusCode

    request = ListSearchAttributesRequest(namespace=client.temporal.namespace)
    while True:
        try:
            known = (await client.temporal.operator_service.list_search_attributes(request)).custom_attributes
            break
        except RPCError as error:  # A namespace is known everywhere only some seconds after it was added.
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            await asyncio.sleep(0.2)
    types = _types()
    for name in types:
        if known.get(name, types[name]) != types[name]:
            raise MisconfiguredError(
                f"Search attribute {name} is there with another type than {names.SEARCH_ATTRIBUTES[name]}. "
                "Take another namespace, or remove the attribute and run this again."
            )
    return [name for name in types if name not in known]


@contextmanager
def _unless_added_meanwhile() -> Iterator[None]:
    from temporalio.service import RPCError, RPCStatusCode

    try:
        yield
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise


def _types() -> dict[str, Any]:
    from temporalio.api.enums.v1 import IndexedValueType

    numbers = {
        "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
        "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
        "Int": IndexedValueType.INDEXED_VALUE_TYPE_INT,
    }
    return {name: numbers[kind] for name, kind in names.SEARCH_ATTRIBUTES.items()}
