"""The links of a task: its run in the Temporal UI, its journal, and what waits for a person.

Each is an XCom that the task writes as soon as its run has begun, before it waits: a link never asks the network.
"""

from typing import Any
from urllib.parse import quote

from interlock.bridge._airflow import BaseOperatorLink, address


class _StoredLink(BaseOperatorLink):
    name = ""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address that the running task knows; empty where it knows none."""
        links: dict[str, str] = getattr(operator, "run_links", {})
        return links.get(self.xcom_key, "")


class RunLink(_StoredLink):
    """The run, in the Temporal UI."""

    name = "Temporal run"


class JournalLink(_StoredLink):
    """What the run did, step by step."""

    name = "Journal"


class ApprovalsLink(_StoredLink):
    """What waits for a person."""

    name = "Approvals"


LINKS = (RunLink(), JournalLink(), ApprovalsLink())


def in_form(links: dict[str, str]) -> dict[str, str]:
    """Of a run's links those that whoever decides about it wants, by their names."""
    return {link.name: links[link.xcom_key] for link in LINKS[:2]}


def links_of(*, ui_url: str, namespace: str, workflow_id: str, run_id: str, conn_id: str) -> dict[str, str]:
    """The addresses of a run's links, by their XCom keys. Empty without the UI's address; the others are Airflow's own.

    The run id is in them, so that a link of an earlier try's run never opens a later one.
    """
    workflow, run = quote(workflow_id, safe=""), quote(run_id, safe="")
    place = f"{address()}/interlock/runs?connection={quote(conn_id, safe='')}&workflow_id={workflow}&run_id={run}"
    ui = ui_url.rstrip("/")
    return {
        LINKS[0].xcom_key: f"{ui}/namespaces/{quote(namespace, safe='')}/workflows/{workflow}/{run}/history"
        if ui
        else "",
        LINKS[1].xcom_key: place,
        LINKS[2].xcom_key: f"{place}#requests",
    }
