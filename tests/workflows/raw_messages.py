"""Messages as anybody with a Temporal client can send them: any name, any bytes, any headers."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from temporalio.api.common.v1 import Header, Payload, Payloads, WorkflowExecution
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.failure.v1 import Failure
from temporalio.api.query.v1 import WorkflowQuery
from temporalio.api.update.v1 import Input, Meta, Request, WaitPolicy
from temporalio.api.workflowservice.v1 import (
    QueryWorkflowRequest,
    SignalWorkflowExecutionRequest,
    UpdateWorkflowExecutionRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

Kind = Literal["signal", "update", "query"]
_REFUSALS = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.UNKNOWN)


@dataclass(frozen=True)
class Body:
    """One argument of a message. encoding: None for a payload that does not name one."""

    data: bytes
    encoding: bytes | None = b"json/plain"
    metadata: Mapping[str, bytes] = field(default_factory=dict)

    def payload(self) -> Payload:
        encoding = {} if self.encoding is None else {"encoding": self.encoding}
        return Payload(metadata={**self.metadata, **encoding}, data=self.data)


@dataclass(frozen=True)
class Message:
    kind: Kind
    name: str
    bodies: tuple[Body, ...]
    headers: Mapping[str, Body] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(body.data) for body in self.bodies)

    def payloads(self) -> Payloads:
        return Payloads(payloads=[body.payload() for body in self.bodies])

    def header(self) -> Header:
        return Header(fields={name: body.payload() for name, body in self.headers.items()})


@dataclass(frozen=True)
class Answer:
    """What came of a message. failure: the run's own refusal. refused: by the server, before the run saw it."""

    accepted: bool
    failure: Failure | None = None
    refused: str = ""

    @property
    def text(self) -> str:
        """All that the sender can read, causes included."""
        texts, failure = [self.refused], self.failure
        while failure is not None:
            texts += [failure.message, failure.stack_trace]
            failure = failure.cause if failure.HasField("cause") else None
        return "\n".join(texts)


async def send(client: Client, run_id: str, message: Message) -> Answer:
    """Send a message to a run and wait for what comes of it: of a signal, that the server has it."""
    try:
        match message.kind:
            case "signal":
                return await _signal(client, run_id, message)
            case "update":
                return await _update(client, run_id, message)
            case "query":
                return await _query(client, run_id, message)
    except RPCError as error:
        if error.status in _REFUSALS:
            return Answer(False, refused=error.message)
        raise


async def send_all(client: Client, run_id: str, messages: Sequence[Message]) -> list[Answer]:
    """Send messages at once; no more of them than a server lets be under way for one run."""
    slots = asyncio.Semaphore(8)

    async def one(message: Message) -> Answer:
        async with slots:
            return await send(client, run_id, message)

    return list(await asyncio.gather(*(one(message) for message in messages)))


async def _signal(client: Client, run_id: str, message: Message) -> Answer:
    await client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            signal_name=message.name,
            input=message.payloads(),
            request_id=uuid.uuid4().hex,
            header=message.header(),
        )
    )
    return Answer(True)


async def _update(client: Client, run_id: str, message: Message) -> Answer:
    stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
    response = await client.workflow_service.update_workflow_execution(
        UpdateWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            wait_policy=WaitPolicy(lifecycle_stage=stage),
            request=Request(
                meta=Meta(update_id=uuid.uuid4().hex),
                input=Input(name=message.name, args=message.payloads(), header=message.header()),
            ),
        )
    )
    if response.outcome.HasField("failure"):
        return Answer(False, failure=response.outcome.failure)
    return Answer(True)


async def _query(client: Client, run_id: str, message: Message) -> Answer:
    try:
        await client.workflow_service.query_workflow(
            QueryWorkflowRequest(
                namespace=client.namespace,
                execution=WorkflowExecution(workflow_id=run_id),
                query=WorkflowQuery(query_type=message.name, query_args=message.payloads(), header=message.header()),
            )
        )
    except RPCError as error:
        return Answer(False, refused=error.message)
    return Answer(True)
