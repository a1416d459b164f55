"""OpenLineage: the run is told which task is its parent, and the task's events name the run.

Needs Airflow's OpenLineage provider; without it, or where that is disabled, nothing is told.
"""

from typing import Any

from interlock.contracts.payloads import Json

MEMO_PARENT = "openlineage_parent"
"""The memo that holds the parent run facet, as the OpenLineage specification has it (`ParentRunFacet`)."""


def parent_memo(ti: Any) -> dict[str, Json]:
    """The memo for a run of a task: the facet that the run's own events are to carry. Empty without OpenLineage."""
    try:
        from airflow.providers.openlineage import conf
    except ImportError:
        return {}
    if conf.is_disabled():
        return {}
    from airflow.providers.openlineage.plugins import macros  # Half a second of processor time.

    facet: dict[str, Json] = {
        "run": {"runId": str(macros.lineage_run_id(ti))},
        "job": {"namespace": conf.namespace(), "name": macros.lineage_job_name(ti)},
        "root": {
            "run": {"runId": str(macros.lineage_root_run_id(ti))},
            "job": {"namespace": macros.lineage_root_job_namespace(ti), "name": macros.lineage_root_job_name(ti)},
        },
    }
    return {MEMO_PARENT: facet}


def facets_of(run_id: str, address: str) -> Any:
    """What the task's own events say of its run: its run id, and the server that has it. None without OpenLineage."""
    try:
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client.facet_v2 import external_query_run
    except ImportError:
        return None
    facet = external_query_run.ExternalQueryRunFacet(externalQueryId=run_id, source=f"temporal://{address}")
    return OperatorLineage(run_facets={"externalQuery": facet})
