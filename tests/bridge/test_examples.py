"""The example Dags, and the worker that the documentation starts for them in an empty folder."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from interlock.bridge.example_dags import fan_out, three_approvals, ticket
from interlock.demo import settings
from interlock.server import EmbeddedServer
from interlock.testing import running


async def test_the_worker_of_the_documentation_serves_the_examples_from_an_empty_folder(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served,) = re.findall(r"interlock dev (\S+):app", (Path(__file__).parents[2] / "docs" / "airflow.md").read_text())
    for example in (ticket, fan_out, three_approvals):
        assert f"Served by `interlock dev {served}:app`" in (example.__doc__ or "")
    monkeypatch.delenv(settings.DATABASE_VARIABLE, raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    async with running(import_module(served).app, server) as at_work:
        run = await at_work.client.start("support", ticket.TICKET)
        for request in await at_work.requests(run, 2):
            await run.decide(request.request_id, "approve", digest=request.digest)
        output = (await run.result()).output

    assert output == "Order A-1001 was refunded with 64.90. Order A-1002 was refunded with 38.50."
