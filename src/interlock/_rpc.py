"""What Temporal answers, in Interlock's own words."""

import getpass
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address

from temporalio.api.common.v1 import Payload as TemporalPayload
from temporalio.api.failure.v1 import Failure
from temporalio.client import (
    GrpcCompression,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.converter import DataConverter
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError
from interlock.contracts.payloads import Payload

ANSWER_WITHIN = timedelta(seconds=10)
"""How long a worker may take to answer a question or take a decision."""

_PLAIN = DataConverter.default.payload_converter
_LARGEST_BYTES = 1_000_000  # Temporal refuses payloads of 2 MB; one message must leave room for others in its task.

CLOSED: Mapping[WorkflowExecutionStatus, str] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


NO_NAMESPACE = (
    "The Temporal server has no such namespace ({}). Set TEMPORAL_NAMESPACE (in Airflow, the connection's namespace), "
    "or make it: `interlock server prepare`."
)


def header_text(header: TemporalPayload | None) -> str:
    """What a header of an activity says; empty when it is not there. Headers are written by the payload converter
    alone: no codec is applied to them."""
    return str(_PLAIN.from_payload(header, str)) if header is not None and header.data else ""


def compression_to(address: str) -> GrpcCompression:
    """What Temporal's clients do by default, except towards a server on this machine: there it only takes both sides
    time."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        is_here = host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # A name.
        is_here = False
    return GrpcCompression.NONE if is_here else GrpcCompression.GZIP


def has_no_namespace(error: BaseException) -> bool:
    """Whether the server said that the client's namespace is not there."""
    return isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND and "amespace" in error.message


@contextmanager
def server_errors(workflow_id: str, *, run_id: str | None = None) -> Iterator[None]:
    """Turn Temporal's errors into Interlock's. workflow_id: the run in question, empty when there is none.

    run_id: of one of its executions, when that is what was asked for.
    """
    try:
        yield
    except RPCError as error:
        if has_no_namespace(error):
            raise MisconfiguredError(NO_NAMESPACE.format(error.message.rstrip("."))) from error
        if workflow_id and (error.status is RPCStatusCode.NOT_FOUND or error.message.startswith("Invalid RunId")):
            execution = f" with an execution {run_id!r}" if run_id else ""
            raise RefusedError(f"There is no run {workflow_id!r}{execution}. See `interlock runs list`.") from error
        # FAILED_PRECONDITION: the server has seen no worker on the run's task queue lately.
        if error.status in (
            RPCStatusCode.DEADLINE_EXCEEDED,
            RPCStatusCode.CANCELLED,
            RPCStatusCode.FAILED_PRECONDITION,
        ):
            raise UnavailableError(
                f"No worker answered{f' for run {workflow_id!r}' if workflow_id else ''} in time. "
                "Start one with `interlock worker run MODULE:APP`."
            ) from error
        if error.status is RPCStatusCode.UNAVAILABLE or "transport error" in error.message:
            raise UnavailableError(f"The Temporal server does not answer: {error.message}") from error
        raise MisconfiguredError(f"The Temporal server refused the request: {error.message}") from error
    except WorkflowQueryFailedError as error:
        if error.message.startswith(names.DEADLOCK):
            raise UnavailableError(
                f"The worker that was asked for run {workflow_id!r} had no answer within Temporal's limit of 2 s: it "
                "is too busy, or code of the run holds it; then its log says `run.blocked` and where. Ask again."
            ) from error
        raise RefusedError(f"Run {workflow_id!r} could not be asked: {error.message}") from error


@contextmanager
def ignoring_unanswered() -> Iterator[None]:
    """For what a run says of itself where its history says enough: no answer is no error."""
    try:
        yield
    except (UnavailableError, RefusedError):
        return


def check_travels(message: Payload, what: str) -> None:
    """Raise MisconfiguredError when a message is no JSON, or larger than a history takes."""
    try:
        size = len(message.model_dump_json())
    except ValueError as error:
        raise MisconfiguredError(f"{what} cannot be sent, since it is not plain JSON: {error}.") from error
    if size > _LARGEST_BYTES:
        raise MisconfiguredError(
            f"{what} cannot be sent: it has {size:,} bytes; at most {_LARGEST_BYTES:,} are allowed. "
            "Send a reference to the data instead of the data."
        )


def status_name(description: WorkflowExecutionDescription) -> str:
    """A run's status by what Temporal says of it: one of `CLOSED`, or `running`."""
    return CLOSED.get(description.status, "running") if description.status else "running"


def root_failure(error: BaseException | None) -> tuple[str, str]:
    """The type and message of a failure, without the activities and runs it came through."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    if isinstance(error, FailureError):
        kind = getattr(error, "type", None)  # Of a timeout this is a number.
        return (kind if isinstance(kind, str) and kind else type(error).__name__), error.message
    return type(error).__name__, str(error)


_PASSED_THROUGH = ("activity_failure_info", "child_workflow_execution_failure_info", "server_failure_info")


def own_failure(failure: Failure) -> Failure:
    """A stored failure without the activities and runs it came through, and without the server's own words: of a
    failure over 4 kB whose step is tried again, it keeps the beginning as the cause of one that says so."""
    while failure.HasField("cause") and failure.WhichOneof("failure_info") in _PASSED_THROUGH:
        failure = failure.cause
    return failure


def quoted(text: str) -> str:
    """A text as Temporal's list filters take it."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def current_user() -> str:
    """Who this process runs for, as `user@host`. Not proven: whoever starts a process can say who they are."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()
