"""Worker deployment versions: where a run's next task goes, and whether a worker is there to take it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from temporalio.api.deployment.v1 import WorkerDeploymentVersion as VersionMessage
from temporalio.api.enums.v1 import TaskQueueType, VersioningBehavior, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import WorkflowExecutionDescription
from temporalio.common import WorkerDeploymentVersion

if TYPE_CHECKING:
    from interlock.client import Client

Version = WorkerDeploymentVersion | None
"""None: workers without a version."""


@dataclass(frozen=True)
class Workers:
    """Who takes runs from a task queue.

    current: the version that new runs go to. polling: the versions that have a worker. hosts: the machines with one.
    """

    current: Version
    polling: frozenset[Version]
    hosts: frozenset[str] = frozenset()

    def serve(self, pinned_to: Version = None) -> bool:
        """Whether a worker is there for a run that is pinned to a version, or to none."""
        return (pinned_to or self.current) in self.polling

    def todo(self, pinned_to: Version = None) -> str:
        """What to do when no worker is there."""
        version = pinned_to or self.current
        waiting = [polling for polling in self.polling if polling is not None]
        if version is None and len(waiting) == 1:
            return f"Version {shown(waiting[0])} has workers but is not current. Make it so: {promotion(waiting[0])}"
        if version is None and waiting:
            names = ", ".join(sorted(map(shown, waiting)))
            return f"Versions {names} have workers, but none is current. Make one so: {promotion(waiting[0])}"
        if version is None:
            return "Start one: interlock worker run MODULE:APP"
        options = f"--deployment {shlex.quote(version.deployment_name)} --build-id {shlex.quote(version.build_id)}"
        return f"Start one of that build: interlock worker run MODULE:APP {options}"


async def workers_of(client: Client) -> Workers:
    """Who has asked for runs on the client's task queue within the last minute, and where new runs go."""
    response = await client.temporal.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.temporal.namespace,
            task_queue=TaskQueue(name=client.task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    recently = datetime.now(UTC) - timedelta(minutes=1)
    polling = [one for one in response.pollers if one.last_access_time.ToDatetime(tzinfo=UTC) > recently]
    current = _version(response.versioning_info.current_deployment_version)
    hosts = frozenset(one.identity.rpartition("@")[2] for one in polling)
    return Workers(current, frozenset(map(_of_poller, polling)), hosts)


def pin_of(description: WorkflowExecutionDescription) -> Version:
    """The version that a run stays on; None for one that goes to the current version."""
    info = description.raw_description.workflow_execution_info.versioning_info
    override = info.versioning_override
    if override.HasField("pinned"):
        return _version(override.pinned.version)
    if override.auto_upgrade or info.behavior != VersioningBehavior.VERSIONING_BEHAVIOR_PINNED:
        return None
    return _version(info.deployment_version)


def shown(version: WorkerDeploymentVersion) -> str:
    """As Temporal's search attributes and its UI name it."""
    return f"{version.deployment_name}:{version.build_id}"


def promotion(version: WorkerDeploymentVersion) -> str:
    """The command that makes a version current."""
    return (
        f"temporal worker deployment set-current-version --deployment-name {shlex.quote(version.deployment_name)} "
        f"--build-id {shlex.quote(version.build_id)} --yes"
    )


def _of_poller(poller: PollerInfo) -> Version:
    options = poller.deployment_options
    versioned = options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED
    return WorkerDeploymentVersion(options.deployment_name, options.build_id) if versioned else None


def _version(message: VersionMessage) -> Version:
    return WorkerDeploymentVersion(message.deployment_name, message.build_id) if message.build_id else None
