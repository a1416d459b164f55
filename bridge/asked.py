"""Which request a Required Action shows."""

import hashlib
import re
from typing import Self

from interlock.contracts.payloads import Payload


class Asked(Payload):
    """Which request a run of the approvals Dag shows: its configuration. The request itself is read from Temporal.

    run_id, digest: of the request. assignees: ids of the Airflow users who may answer; all who may when empty.
    round: how many times it was asked here. said: why it is asked again. in_place: on the task that waits for the run.
    """

    temporal_conn_id: str
    workflow_id: str
    run_id: str
    request_id: str
    digest: str
    assignees: tuple[str, ...] = ()
    round: int = 1
    said: str = ""
    in_place: bool = False

    @property
    def form_id(self) -> str:
        """What a form carries that is one of several of a task: an answer to an earlier one is none to this one."""
        return f"{self.request_id}/{self.digest[:12]}/{self.round}" if self.in_place else ""

    @property
    def dag_run_id(self) -> str:
        """The run of the approvals Dag that shows it. Asking again for the same is the same run."""
        key = "\0".join((self.workflow_id, self.run_id, self.request_id))
        words = re.sub(r"[^A-Za-z0-9_.~-]+", ".", f"{self.workflow_id[:150]}.{self.request_id[:40]}")
        again = f"-{self.round}" if self.round > 1 else ""
        return f"{words}.{hashlib.sha256(key.encode()).hexdigest()[:12]}{again}"

    def again(self, said: str) -> Self:
        """The same, to be asked once more. said: why."""
        return self.model_copy(update={"round": self.round + 1, "said": said})
