"""docs/operating.md says what is so: its settings, its services, its metrics and its queries."""

import re
from pathlib import Path

import pytest

from interlock import Client, Settings
from interlock.contracts import names
from interlock.server import EmbeddedServer
from tests.acceptance.test_compose import SERVICES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/operating.md").read_text()
QUERIES = [query for block in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL) for query in block.splitlines()]


def rows(first_cell: str) -> dict[str, str]:
    """The first two cells of each row of the tables whose first cells look so."""
    cells = [[cell.strip(" `") for cell in line.split("|")] for line in TEXT.splitlines() if line.startswith("| `")]
    return {cell[1]: cell[2] for cell in cells if re.fullmatch(first_cell, cell[1])}


def test_every_setting_is_there_with_its_default() -> None:
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    written = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in defaults.items()}
    assert rows(r"INTERLOCK_\w+") == {f"INTERLOCK_{name.upper()}": value for name, value in written.items()}


def test_every_service_of_the_compose_file_is_there() -> None:
    assert rows("[a-z-]+").keys() == SERVICES.keys()


def test_the_metrics_of_our_own_are_there() -> None:
    metrics = {
        f"{names.METRIC_APPROVALS_REQUESTED}_total",
        f"{names.METRIC_APPROVALS_ESCALATED}_total",
        f"{names.METRIC_APPROVALS_SETTLED}_total",
        f"{names.METRIC_APPROVAL_WAIT}_seconds",
    }
    assert rows(r"interlock_\w+").keys() == metrics
    used = {name.removesuffix("_bucket") for name in re.findall(r"\binterlock_\w+", TEXT)}
    assert used == metrics


@pytest.mark.parametrize("query", QUERIES)
async def test_the_server_understands_each_query(query: str, server: EmbeddedServer) -> None:
    client = await Client.connect(server.address)
    assert (await client.temporal.count_workflows(query)).count >= 0


def test_there_are_queries() -> None:
    assert len(QUERIES) == 8
