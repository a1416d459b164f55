"""Shows what a run asks as Required Actions: each request is a run of its own of the approvals Dag.

One task instance can show one request only: up to Airflow 3.3 the text of a Required Action never changes.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Self

import structlog
from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import quoted
from interlock.bridge._airflow import start_dag_run
from interlock.bridge.errors import ApprovalsDagError
from interlock.bridge.outcome import Waited
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.errors import RefusedError
from interlock.contracts.payloads import ApprovalRequest, Payload

APPROVALS_DAG = "interlock_approvals"

_log = structlog.get_logger(logger_name="interlock.run")


class Asked(Payload):
    """Which request a run of the approvals Dag shows: its configuration. The request itself is read from Temporal.

    run_id, digest: of the request. assignees: ids of the Airflow users who may answer; all who may when empty.
    round: how many times it was asked here. said: why it is asked again.
    """

    temporal_conn_id: str
    workflow_id: str
    run_id: str
    request_id: str
    digest: str
    assignees: tuple[str, ...] = ()
    round: int = 1
    said: str = ""

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


def start(asked: Asked, dag_id: str) -> bool:
    """Have a request shown; false when it was already. For code of a task. Raises ApprovalsDagError."""
    try:
        return start_dag_run(dag_id, asked.dag_run_id, asked.model_dump(mode="json"))
    except LookupError as error:
        raise ApprovalsDagError(
            f"Request {asked.request_id!r} of run {asked.workflow_id!r} cannot be shown in Airflow: no run of Dag "
            f"{dag_id!r} can be started: {error}. The Dag comes by a file in the Dags folder that calls "
            "`interlock.bridge.approvals_dag()`. The agent's run waits; the next try shows the request."
        ) from error


async def open_requests(client: Client, workflow_id: str, *, own: bool = True) -> Mapping[str, ApprovalRequest]:
    """What a run, and the runs of agents below it, ask people now, by keys that stay the same. Needs a worker.

    own: whether the run itself may have any. A run that ends meanwhile asks nothing.
    """
    found: dict[str, ApprovalRequest] = {}
    for place in [*([workflow_id] if own else []), *await _asking_below(client, workflow_id)]:
        try:
            requests = await client.attach(place).approvals()
        except RefusedError:
            continue
        # Of which execution, too: one that was reset asks again, by the same number.
        prefix = "" if place == workflow_id else f"{place.removeprefix(workflow_id)}#"
        found |= {f"{prefix}{one.run_id}#{one.request_id}": one for one in requests}
    return found


async def _asking_below(client: Client, workflow_id: str) -> list[str]:
    """The runs that tools of a run have started, at any depth, which say that they have open requests."""
    begins = re.split(r'[\\"]', f"{workflow_id}/")[0]  # The server finds nothing that begins with these two.
    query = (
        f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' "
        f"AND {names.ATTRIBUTE_PENDING_APPROVALS} > 0 AND WorkflowId STARTS_WITH {quoted(begins)}"
    )
    try:
        found = [one async for one in client.temporal.list_workflows(query)]
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:  # The server has no such search attributes.
            return []
        raise
    return sorted([one.id for one in found if await _is_below(client, one, workflow_id)])


async def _is_below(client: Client, run: WorkflowExecution, workflow_id: str) -> bool:
    """Whether a run was started below another one, at any depth. An id that begins alike may be a run of its own, which
    other people are to be asked about, and some servers take small letters for capitals."""
    parent = await run.memo_value(names.MEMO_PARENT, "")
    while parent != workflow_id:
        if not parent.startswith(f"{workflow_id}/"):
            return False
        try:
            above = await client.temporal.get_workflow_handle(parent).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        parent = await above.memo_value(names.MEMO_PARENT, "")
    return True


async def show_requests(client: Client, waited: Waited, *, dag_id: str, assignees: Sequence[str]) -> Waited:
    """Have the run's open requests shown that are not yet. Needs a worker. For code of a task."""
    requests = await open_requests(client, waited.workflow_id)
    for key, request in requests.items():
        if key in waited.asked:
            continue
        asked = Asked(
            temporal_conn_id=waited.temporal_conn_id,
            workflow_id=request.workflow_id,
            run_id=request.run_id,
            request_id=request.request_id,
            digest=request.digest,
            assignees=tuple(assignees),
        )
        if start(asked, dag_id):
            of = "" if request.workflow_id == waited.workflow_id else f" of {request.workflow_id}"
            _log.info(
                f"Request {request.request_id}{of}, {request.tool}: a Required Action of {dag_id}, {asked.dag_run_id}."
            )
    # Those that are settled need not be known any longer: no other request gets their keys.
    return waited.model_copy(update={"asked": tuple(requests)})
