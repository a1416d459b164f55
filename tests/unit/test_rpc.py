"""How Interlock talks to servers."""

import pytest
from temporalio.client import GrpcCompression

from interlock._rpc import compression_to


@pytest.mark.parametrize("address", ["localhost:7233", "127.0.0.1:7233", "127.8.0.1:1", "[::1]:7233"])
def test_nothing_is_compressed_on_the_way_to_a_server_on_this_machine(address: str) -> None:
    assert compression_to(address) is GrpcCompression.NONE


@pytest.mark.parametrize(
    "address", ["temporal:7233", "10.0.0.7:7233", "[fd00::7]:7233", "localhost.example.com:7233", "x"]
)
def test_elsewhere_the_default_holds(address: str) -> None:
    assert compression_to(address) is GrpcCompression.GZIP
