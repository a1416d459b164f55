"""What OpenLineage is told: the run carries its parent's facet, and the task names its run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

ASK = """
import json, sys, types, datetime
from interlock.bridge.lineage import facets_of, parent_memo
now = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
dag_run = types.SimpleNamespace(run_after=now, logical_date=now, clear_number=0, conf={}, run_id="r")
ti = types.SimpleNamespace(
    dag_id="tickets", task_id="handle", run_id="r", map_index=-1, try_number=1, dag_run=dag_run, logical_date=now,
    task=types.SimpleNamespace(task_id="handle", dag_id="tickets"),
)
ti.get_template_context = lambda: {"dag_run": dag_run, "logical_date": now}
memo = parent_memo(ti)
loaded = "airflow.providers.openlineage.plugins.macros" in sys.modules
facet = facets_of("run-7", "temporal:7233").run_facets["externalQuery"]
print(json.dumps({"memo": memo, "loaded": loaded, "run": facet.externalQueryId, "server": facet.source}))
"""


def asked(**environment: str) -> dict[str, Any]:
    # In a process of its own: Airflow reads its configuration once.
    told = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def test_a_run_carries_the_facet_of_its_task_and_the_task_names_its_run(tmp_path: Path) -> None:
    told = asked(AIRFLOW_HOME=str(tmp_path), AIRFLOW__OPENLINEAGE__TRANSPORT='{"type": "console"}')
    facet: dict[str, Any] = told["memo"]["openlineage_parent"]

    assert facet["job"] == {"namespace": "default", "name": "tickets.handle"}
    assert facet["root"]["job"] == {"namespace": "default", "name": "tickets"}
    assert UUID(facet["run"]["runId"]) != UUID(facet["root"]["run"]["runId"])
    assert (told["run"], told["server"]) == ("run-7", "temporal://temporal:7233")


def test_nothing_is_told_or_loaded_where_open_lineage_is_not_set_up(tmp_path: Path) -> None:
    told = asked(AIRFLOW_HOME=str(tmp_path))

    assert (told["memo"], told["loaded"]) == ({}, False)  # Every task that starts a run would pay for it.
