"""A cluster that nobody has prepared: Interlock's search attributes are missing, and runs work all the same."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from pydantic_ai import Tool
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from interlock import Client, Interlock, UnavailableError
from interlock.cli import main
from interlock.contracts import names
from interlock.server import EmbeddedServer, free_port, temporal_binary
from interlock.testing import eventually, running
from tests.workflows.scripts import Script, agent, call


@pytest.fixture
async def bare_server() -> AsyncIterator[EmbeddedServer]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        temporal_binary(),
        *["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port), "--log-level", "never"],
        stdout=asyncio.subprocess.DEVNULL,
    )
    server = EmbeddedServer(f"127.0.0.1:{port}", "", None, process)

    async def answers() -> bool:
        try:
            return bool(await (await Client.connect(server.address)).missing_attributes())
        except UnavailableError:
            return False

    await eventually(answers)
    yield server
    await server.stop()


async def test_runs_work_where_the_search_attributes_are_missing(bare_server: EmbeddedServer) -> None:
    script = Script([call("refund", "a")], "done")
    refund = Tool(lambda: "refunded", name="refund", requires_approval=True)
    async with running(Interlock([agent(script, tools=[refund])]), bare_server) as app:
        assert await app.client.missing_attributes() == list(names.SEARCH_ATTRIBUTES)
        run = await app.client.start("support", "go")
        await app.requests(run, 1)
        (request,) = await app.client.approvals()
        assert (await run.report()).status == "awaiting_approval"
        await run.decide(request.request_id, "approve", digest=request.digest)

        assert (await run.result()).output == "done"
        assert [report.status for report in await app.client.runs()] == ["completed"]


async def prepare(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    return await asyncio.to_thread(main, ["server", "prepare", *options])


async def test_a_server_is_prepared_and_what_is_there_stays(
    bare_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "team")
    assert await prepare(bare_server, monkeypatch, "--retention-days", "7", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert await prepare(bare_server, monkeypatch, "--retention-days", "9", "--json") == 0
    second = json.loads(capsys.readouterr().out)

    assert first == {"namespace": "team", "added": ["namespace team", *names.SEARCH_ATTRIBUTES]}
    assert second == {"namespace": "team", "added": []}
    client = await Client.connect(bare_server.address, namespace="team")
    assert await client.missing_attributes() == []
    described = await client.temporal.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace="team"))
    assert described.config.workflow_execution_retention_ttl.ToTimedelta().days == 7


async def test_a_search_attribute_of_another_type_is_said(
    bare_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    client = await Client.connect(bare_server.address)
    await client.temporal.operator_service.add_search_attributes(
        AddSearchAttributesRequest(
            namespace="default",
            search_attributes={names.ATTRIBUTE_STATUS: IndexedValueType.INDEXED_VALUE_TYPE_INT},
        )
    )

    assert await prepare(bare_server, monkeypatch) == 1
    assert "InterlockStatus is there with another type than Keyword" in capsys.readouterr().err
