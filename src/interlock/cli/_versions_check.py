"""What `interlock doctor` says of worker deployment versions: runs that wait for a version nobody works for."""

from __future__ import annotations

import shlex
from collections import Counter
from typing import TYPE_CHECKING

from interlock.contracts import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from interlock._versions import Workers
    from interlock.cli.doctor import Check
    from interlock.client import Client

_LOOKED_AT = 1_000
_VERSION = "TemporalWorkerDeploymentVersion"


async def versions_checks(client: Client, workers: Workers) -> AsyncIterator[Check]:
    """A check for each version that open runs of the task queue are pinned to without a worker being there.

    Nothing at all where no versions are used.
    """
    from interlock._versions import shown
    from interlock.cli.doctor import Check

    stranded = await _stranded(client, workers)
    for version, count in sorted(stranded.items()):
        found = f"no worker; open runs that are pinned to it: {count}{'' if count < _LOOKED_AT else ' or more'}"
        yield Check(f"version {version}", ok=False, found=found, todo=_todo(version, workers))
    if workers.current and not stranded:
        yield Check("versions", ok=True, found=f"{shown(workers.current)} is current; no run waits for another")


async def _stranded(client: Client, workers: Workers) -> Counter[str]:
    from temporalio.common import SearchAttributeKey

    from interlock._rpc import quoted
    from interlock._versions import shown

    query = (
        f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus = 'Running' "
        f"AND TaskQueue = {quoted(client.task_queue)} AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    polling = [quoted(shown(version)) for version in workers.polling if version]
    if polling:
        query += f" AND {_VERSION} NOT IN ({', '.join(polling)})"
    key = SearchAttributeKey.for_keyword(_VERSION)
    found = client.temporal.list_workflows(query, limit=_LOOKED_AT)
    return Counter([execution.typed_search_attributes.get(key) or "?" async for execution in found])


def _todo(version: str, workers: Workers) -> str:
    from temporalio.common import WorkerDeploymentVersion

    deployment, _, build_id = version.partition(":")
    start = workers.todo(WorkerDeploymentVersion(deployment, build_id))
    if workers.current is None or workers.current not in workers.polling:
        return start
    return f"{start} Or, if `interlock replay` says that they replay, move them: {_move(version, workers)}"


def _move(version: str, workers: Workers) -> str:
    from interlock._rpc import quoted

    assert workers.current
    query = f"ExecutionStatus = 'Running' AND {_VERSION} = {quoted(version)}"
    return (
        f"temporal workflow update-options --query {shlex.quote(query)} --versioning-override-behavior pinned "
        f"--versioning-override-deployment-name {shlex.quote(workers.current.deployment_name)} "
        f"--versioning-override-build-id {shlex.quote(workers.current.build_id)} --yes"
    )
