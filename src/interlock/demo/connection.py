"""Connects to the demo's own server, whatever cluster the person's environment names."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.client import Client


async def connect(address: str) -> "Client":
    """A client of the server at this address. Raises UnavailableError when nothing answers there."""
    from temporalio.client import Client as TemporalClient
    from temporalio.contrib.pydantic import pydantic_data_converter

    from interlock.client import Client
    from interlock.contracts.errors import UnavailableError

    try:
        # `Client.connect` would take the TLS, key and namespace of the person's own cluster along.
        return Client(await TemporalClient.connect(address, data_converter=pydantic_data_converter))
    except RuntimeError as error:
        raise UnavailableError(f"The demo's Temporal server does not answer at {address}: {error}") from error
