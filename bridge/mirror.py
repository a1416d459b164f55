"""Shows what a run asks as Required Actions: one of them on its own task, where Airflow lets a task ask again, and each
other one by a run of its own of the approvals Dag.

One task instance can show one request at a time, and up to Airflow 3.3 its text never changes.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from temporalio.client import WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import quoted
from interlock.bridge._airflow import start_dag_run
from interlock.bridge.asked import Asked
from interlock.bridge.errors import ApprovalsDagError
from interlock.bridge.outcome import Waited
from interlock.bridge.settling import standing_of
from interlock.bridge.showing import show, tell
from interlock.client import Client
from interlock.contracts import names
from interlock.contracts.errors import RefusedError
from interlock.contracts.payloads import ApprovalRequest, Receipt

APPROVALS_DAG = "interlock_approvals"

_log = structlog.get_logger(logger_name="interlock.run")


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


@dataclass(frozen=True)
class OwnTask:
    """The task that waits for the run, as a place for a request. links: addresses by their names."""

    ti_id: Any
    links: Mapping[str, str]


async def show_requests(
    client: Client, waited: Waited, *, dag_id: str, assignees: Sequence[str], task: OwnTask, in_place: bool
) -> Waited:
    """Have the run's open requests shown that are not yet. Needs a worker. For code of a task.

    task: whose code this is. in_place: one of them is shown on it; what it shows already is answered there either way.
    """
    if waited.answer is not None:
        waited = await _pass_on(client, waited, task)
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
            in_place=in_place and waited.here is None,
        )
        if asked.in_place:
            waited = await _show_here(client, waited, asked, key, task)
        elif start(asked, dag_id):
            of = "" if request.workflow_id == waited.workflow_id else f" of {request.workflow_id}"
            _log.info(
                f"Request {request.request_id}{of}, {request.tool}: a Required Action of {dag_id}, {asked.dag_run_id}."
            )
    # Those that are settled need not be known any longer: no other request gets their keys.
    return waited.model_copy(update={"asked": tuple(requests)})


async def _show_here(client: Client, waited: Waited, asked: Asked, key: str, task: OwnTask) -> Waited:
    standing = await standing_of(client, asked)
    if standing.request is None:
        _log.info(f"Request {asked.request_id} of run {asked.workflow_id}: {standing.settled}.")
        return waited
    show(task.ti_id, asked, standing.request, requested_by=standing.requested_by, links=task.links)
    _log.info(f"Request {asked.request_id} of run {asked.workflow_id}: a Required Action of this task.")
    return waited.model_copy(update={"here": asked, "here_key": key})


async def _pass_on(client: Client, waited: Waited, task: OwnTask) -> Waited:
    """Tell the run what a person has answered on the task; ask them again when it is not taken."""
    asked, answer = waited.here, waited.answer
    assert asked is not None
    assert answer is not None
    became = await tell(client, asked, answer)
    if isinstance(became, str):
        _log.info(f"The answer of {answer.by} was not taken, so it is asked again. {became}")
        said = f"{answer.by} answered: {', '.join(answer.options)}. {became}"
        return await _show_here(client, waited.without_request(), asked.again(said), waited.here_key, task)
    if isinstance(became, Receipt):
        _log.info(f"Request {asked.request_id} of run {asked.workflow_id}: {became.outcome} by {answer.by}.")
    elif became.settled is not None:  # By an earlier try, which had passed the same answer on, or by others.
        late = "" if became.settled.by == answer.by else f" The answer of {answer.by} came too late."
        _log.info(f"Request {asked.request_id} of run {asked.workflow_id}: {became.settled}.{late}")
    return waited.without_request()
