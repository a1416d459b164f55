"""The client: starts runs, finds them again, shows what they wait for and carries people's answers to them."""

import asyncio
import getpass
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, TypeVar

from pydantic import AwareDatetime, ValidationError
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import (
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ActivityError, ChildWorkflowError, FailureError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import MisconfiguredError, RefusedError, RunFailedError, UnavailableError
from interlock.contracts.payloads import (
    ApprovalRequest,
    Decision,
    Json,
    Payload,
    Receipt,
    RunInput,
    RunOptions,
    RunOutput,
    RunState,
    ToolCompletion,
    Usage,
)
from interlock.steps import Step, StepReader, read_steps

P = TypeVar("P", bound=Payload)

_ANSWER_WITHIN = timedelta(seconds=10)
_DEFAULT_ADDRESS = "localhost:7233"
_UNFIT = (names.UNKNOWN_AGENT, names.INVALID_INPUT)
_CLOSED: Mapping[WorkflowExecutionStatus, str] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "cancelled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
}


class RunReport(Payload):
    """How a run stands.

    status: one of `InterlockStatus`, or `terminated` or `timed_out` for a run that Temporal ended.
    output, usage: of a completed run. error: why a run ended without an output, as `Type: message`.
    """

    workflow_id: str
    agent: str
    status: str
    output: Json = None
    usage: Usage | None = None
    error: str | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None


@dataclass(frozen=True)
class Change:
    """What a watched run did last: a step that began or changed, or what it now says of itself."""

    step: Step | None = None
    state: RunState | None = None


class Run:
    """One run. `Client.start` and `Client.attach` make these; none is closed by letting go of it."""

    def __init__(self, client: "Client", handle: WorkflowHandle[Any, RunOutput]) -> None:
        self._client = client
        self._handle = handle

    @property
    def id(self) -> str:
        """The workflow id."""
        return self._handle.id

    async def result(self) -> RunOutput:
        """Wait for the run's end and return what it gave back.

        Raises RunFailedError when it ended without an output, RefusedError when there is no such run.
        """
        with _server_errors(self.id):
            try:
                return await self._handle.result()
            except WorkflowFailureError as failure:
                description = await self._handle.describe()
                kind, message = _root(failure.cause)
                raise RunFailedError(
                    message, workflow_id=self.id, status=_status_name(description), error_type=kind
                ) from failure

    async def state(self) -> RunState:
        """What an open run does and waits for, as it says itself. Needs a worker."""
        with _server_errors(self.id):
            state: RunState = await self._handle.query(names.STATUS, result_type=RunState, rpc_timeout=_ANSWER_WITHIN)
            return state

    async def report(self) -> RunReport:
        """How the run stands, open or closed."""
        with _server_errors(self.id):
            description = await self._handle.describe()
        return await self._client.report_of(description)

    async def approvals(self) -> list[ApprovalRequest]:
        """The run's open requests, oldest first. Needs a worker."""
        with _server_errors(self.id):
            requests: list[ApprovalRequest] = await self._handle.query(
                names.APPROVALS, result_type=list[ApprovalRequest], rpc_timeout=_ANSWER_WITHIN
            )
            return requests

    async def decide(
        self,
        request_id: str,
        verdict: Literal["approve", "reject"],
        *,
        reason: str = "",
        arguments: dict[str, Json] | None = None,
        digest: str = "",
        by: str | None = None,
    ) -> Receipt:
        """Answer an open request. Needs a worker.

        digest: of the request as it was shown, so that the answer cannot reach another. by: who decides; the user of
        this process when not given. Raises RefusedError, saying why, when the answer changes nothing.
        """
        decision = _made(
            Decision,
            request_id=request_id,
            verdict=verdict,
            digest=digest,
            arguments=arguments,
            reason=reason,
            decided_by=_user() if by is None else by,
            decided_at=datetime.now(UTC),
        )
        return await self._submit(names.SUBMIT_DECISION, decision)

    async def complete_tool_call(
        self, call_id: str, *, result: Json = None, error: str | None = None, digest: str = "", by: str | None = None
    ) -> Receipt:
        """Report the result of a tool call that ran outside. Needs a worker.

        call_id: the model's id for the call, or the request id. error: in place of a result, for the model to read.
        Raises RefusedError, saying why, when nothing waits for this result.
        """
        completion = _made(
            ToolCompletion,
            call_id=call_id,
            result=result,
            error=error,
            digest=digest,
            completed_by=_user() if by is None else by,
            completed_at=datetime.now(UTC),
        )
        return await self._submit(names.SUBMIT_TOOL_RESULT, completion)

    async def history_length(self) -> int:
        """How many events the run's history has."""
        with _server_errors(self.id):
            return (await self._handle.describe()).history_length

    async def cancel(self) -> None:
        """Ask the run to end. Its open requests are withdrawn; it ends as `cancelled`."""
        with _server_errors(self.id):
            try:
                await self._handle.cancel()
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                description = await self._handle.describe()
                raise RefusedError(f"Run {self.id!r} is {_status_name(description)} already.") from error

    async def steps(self) -> list[Step]:
        """The model calls, tool calls and judges of the run, in order, from its history."""
        with _server_errors(self.id):
            return await read_steps(self._handle.fetch_history_events())

    async def watch(self) -> AsyncIterator[Change]:
        """Follow the run to its end: each step as it begins and ends, and its state whenever that changes."""
        reader, state = StepReader(), None
        with _server_errors(self.id):
            events = self._handle.fetch_history_events(wait_new_event=True)
            async for event in events:
                step = reader.read(event)
                if step is not None:
                    yield Change(step=step)
                if events.current_page is None or events.current_page_index < len(events.current_page):
                    continue
                with _ignoring_queries():
                    now = await self.state()
                    if now != state:
                        state = now
                        yield Change(state=state)

    async def accepted(self, *, within_seconds: float = 5) -> None:
        """Wait until a worker has taken the run on.

        Raises RunFailedError when it refused the input, UnavailableError when no worker is there; then the run is
        stored and begins when one starts.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_seconds
        with _server_errors(self.id):
            while True:
                description = await self._handle.describe()
                if description.status in _CLOSED and description.status is not WorkflowExecutionStatus.COMPLETED:
                    await self.result()
                if description.history_length > 3 or description.status in _CLOSED:
                    return
                if loop.time() > deadline or not await self._client.has_worker():
                    raise UnavailableError(
                        f"No worker takes runs from task queue {self._client.task_queue!r}. Run {self.id!r} is stored "
                        "and begins when one starts: `interlock worker run MODULE:APP`."
                    )
                await asyncio.sleep(0.05)

    async def _submit(self, update: str, message: Payload) -> Receipt:
        with _server_errors(self.id):
            try:
                async with asyncio.timeout(_ANSWER_WITHIN.total_seconds()):
                    receipt: Receipt = await self._handle.execute_update(update, message, result_type=Receipt)
                    return receipt
            except WorkflowUpdateFailedError as refused:
                raise RefusedError(_root(refused.cause)[1]) from refused
            except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as late:
                raise UnavailableError(
                    f"No worker answered for run {self.id!r} within {_ANSWER_WITHIN.total_seconds():g} s, so nothing "
                    "was recorded. Start one with `interlock worker run MODULE:APP` and answer again."
                ) from late
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                description = await self._handle.describe()
                raise RefusedError(
                    f"Run {self.id!r} is {_status_name(description)}: it waits for nothing any more."
                ) from error


class Client:
    """A connection to Temporal, for runs on one task queue."""

    def __init__(self, temporal: TemporalClient, *, task_queue: str = names.DEFAULT_TASK_QUEUE) -> None:
        self.temporal = temporal
        self.task_queue = task_queue
        self._attributes: tuple[str, ...] | None = None

    @classmethod
    async def connect(
        cls, address: str | None = None, *, namespace: str | None = None, task_queue: str = names.DEFAULT_TASK_QUEUE
    ) -> Self:
        """Connect to a server.

        What is not given comes from Temporal's own environment variables and profiles (`TEMPORAL_ADDRESS`,
        `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, ...), then from Temporal's defaults.
        Raises UnavailableError when no server answers, MisconfiguredError when the configuration is not readable.
        """
        try:
            config = dict(ClientConfig.load_client_connect_config())
        except Exception as error:
            raise MisconfiguredError(f"Temporal's client configuration cannot be read: {error}") from error
        target = address or str(config.pop("target_host", None) or _DEFAULT_ADDRESS)
        config.pop("target_host", None)
        if namespace:
            config["namespace"] = namespace
        try:
            temporal = await TemporalClient.connect(target, data_converter=pydantic_data_converter, **config)  # type: ignore[arg-type]
        except RuntimeError as error:
            raise UnavailableError(
                f"No Temporal server answers at {target}. Start one with `interlock server start`, "
                "or set TEMPORAL_ADDRESS to where one is."
            ) from error
        return cls(temporal, task_queue=task_queue)

    async def start(
        self,
        agent: str,
        prompt: str | Sequence[Json],
        *,
        id: str | None = None,
        deps: Json = None,
        message_history: list[Json] | None = None,
        model: str | None = None,
        model_settings: dict[str, Json] | None = None,
        usage_limits: dict[str, Json] | None = None,
        requested_by: str | None = None,
        restart: bool = False,
    ) -> Run:
        """Start a run, or find the one that is there.

        id: a business key makes asking twice one run; made up when not given. The other fields are those of
        `RunInput`. restart: when the run with this id has ended, start it over (its history stays).
        Raises RefusedError when the id is taken by a run with another input, naming what differs;
        MisconfiguredError when a field has the wrong form.
        """
        try:
            run = RunInput(
                agent=agent,
                prompt=prompt if isinstance(prompt, str) else list(prompt),
                deps=deps,
                message_history=message_history,
                model=model,
                model_settings=model_settings,
                usage_limits=usage_limits,
                requested_by=_user() if requested_by is None else requested_by,
            )
        except (ValidationError, TypeError) as error:
            raise MisconfiguredError(f"The run cannot be started: {_problems(error)}") from error
        return await self.start_run(id or f"{agent}-{uuid.uuid4().hex[:12]}", run, restart=restart)

    async def start_run(self, id: str, run: RunInput, *, restart: bool = False) -> Run:
        """`start` for an input that is made already."""
        with _server_errors(id):
            run = run.model_copy(update={"options": RunOptions(search_attributes=await self._known_attributes())})
            try:
                return await self._start(id, run, restart=restart)
            except WorkflowAlreadyStartedError:
                existing = self.attach(id)
                description = await existing._handle.describe()
                different = _differences(await description.memo(), run)
                if not different:
                    return existing
                if await _was_unfit(existing, description):
                    return await self._start(id, run, restart=True)
                raise RefusedError(
                    f"Run {id!r} exists with another input: {', '.join(different)} differ"
                    f"{'s' if len(different) == 1 else ''}. Take another id, or start it with the same input."
                ) from None

    def attach(self, id: str) -> Run:
        """The run with this id; nothing is asked of the server."""
        return Run(self, self.temporal.get_workflow_handle(id, result_type=RunOutput))

    async def runs(self, *, limit: int = 50) -> list[RunReport]:
        """The newest runs, without their outputs."""
        with _server_errors(""):
            found = self.temporal.list_workflows(f"WorkflowType = '{names.AGENT_WORKFLOW}'", limit=limit)
            return [await self._listed(execution) async for execution in found]

    async def approvals(self, *, unanswered: Callable[[str], None] = lambda workflow_id: None) -> list[ApprovalRequest]:
        """The open requests of all runs, oldest first. Needs a worker.

        unanswered: called with the id of each run that could not be asked. Raises UnavailableError when none could.
        """
        query = f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus = 'Running'"
        with _server_errors(""):
            if names.ATTRIBUTE_PENDING_APPROVALS in await self._known_attributes():
                query += f" AND {names.ATTRIBUTE_PENDING_APPROVALS} > 0"
            open_ids = [execution.id async for execution in self.temporal.list_workflows(query)]
        slots = asyncio.Semaphore(20)

        async def ask(id: str) -> list[ApprovalRequest] | None:
            async with slots:
                try:
                    return await self.attach(id).approvals()
                except UnavailableError:
                    unanswered(id)
                except RefusedError:  # It has ended meanwhile.
                    return []
                return None

        answers = await asyncio.gather(*(ask(open_id) for open_id in open_ids))
        if open_ids and all(answer is None for answer in answers):
            raise UnavailableError(
                f"No worker answered for any of {len(open_ids)} open runs. "
                "Start one with `interlock worker run MODULE:APP`."
            )
        requests = [request for answer in answers for request in answer or []]
        return sorted(requests, key=lambda request: request.requested_at)

    async def has_worker(self) -> bool:
        """Whether a worker has asked for runs on the task queue within the last minute."""
        with _server_errors(""):
            response = await self.temporal.workflow_service.describe_task_queue(
                DescribeTaskQueueRequest(
                    namespace=self.temporal.namespace,
                    task_queue=TaskQueue(name=self.task_queue),
                    task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
                )
            )
        recently = datetime.now(UTC) - timedelta(minutes=1)
        return any(poller.last_access_time.ToDatetime(tzinfo=UTC) > recently for poller in response.pollers)

    async def missing_attributes(self) -> list[str]:
        """Interlock's search attributes that the server does not have. Runs work without them."""
        with _server_errors(""):
            known = await self._known_attributes()
        return [name for name in names.SEARCH_ATTRIBUTES if name not in known]

    async def report_of(self, description: WorkflowExecutionDescription) -> RunReport:
        """How the run stands that Temporal describes so."""
        report = await self._listed(description)
        run = self.attach(description.id)
        if report.status == "completed":
            output = await run.result()
            return report.model_copy(update={"output": output.output, "usage": output.usage})
        if description.status is not WorkflowExecutionStatus.RUNNING:
            try:
                await run.result()
            except RunFailedError as error:
                message = f"{error.error_type}: {error}" if error.error_type else str(error)
                return report.model_copy(update={"error": message})
        if await self.has_worker():
            with _ignoring_queries():
                return report.model_copy(update={"status": (await run.state()).status})
        return report

    async def _start(self, id: str, run: RunInput, *, restart: bool) -> Run:
        handle = await self.temporal.start_workflow(
            names.AGENT_WORKFLOW,
            run,
            id=id,
            task_queue=self.task_queue,
            result_type=RunOutput,
            id_reuse_policy=(
                WorkflowIDReusePolicy.ALLOW_DUPLICATE if restart else WorkflowIDReusePolicy.REJECT_DUPLICATE
            ),
            memo={
                names.MEMO_AGENT: run.agent,
                names.MEMO_INPUT_DIGESTS: _digests(run),
                **({names.MEMO_PARENT: run.parent.workflow_id} if run.parent else {}),
            },
            search_attributes=_first_attributes(run),
            static_summary=f"{run.agent}: {_first_line(run.prompt)}",
        )
        return Run(self, handle)

    async def _known_attributes(self) -> tuple[str, ...]:
        if self._attributes is None:
            response = await self.temporal.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=self.temporal.namespace)
            )
            self._attributes = tuple(name for name in names.SEARCH_ATTRIBUTES if name in response.custom_attributes)
        return self._attributes

    async def _listed(self, execution: Any) -> RunReport:
        attributes = execution.typed_search_attributes
        status = _CLOSED.get(execution.status)
        return RunReport(
            workflow_id=execution.id,
            agent=str(await execution.memo_value(names.MEMO_AGENT, "")),
            status=status or attributes.get(SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)) or "running",
            started_at=execution.start_time,
            ended_at=execution.close_time,
        )


def _digests(run: RunInput) -> dict[str, str]:
    fields = run.model_dump(mode="json", exclude={"options", "requested_by", "parent"})
    return {name: digest(value)[:16] for name, value in fields.items()}


def _differences(memo: Mapping[str, Any], run: RunInput) -> list[str]:
    before = memo.get(names.MEMO_INPUT_DIGESTS, {})
    return [name for name, value in _digests(run).items() if before.get(name) != value]


async def _was_unfit(run: Run, description: WorkflowExecutionDescription) -> bool:
    # A run that no worker could take on has done nothing: its id is free for a corrected input.
    if description.status is not WorkflowExecutionStatus.FAILED:
        return False
    try:
        await run.result()
    except RunFailedError as error:
        return error.error_type in _UNFIT
    return False


def _first_attributes(run: RunInput) -> TypedSearchAttributes:
    values: dict[str, Any] = {
        names.ATTRIBUTE_AGENT: run.agent,
        names.ATTRIBUTE_STATUS: "running",
        names.ATTRIBUTE_PENDING_APPROVALS: 0,
        names.ATTRIBUTE_REQUESTED_BY: run.requested_by,
    }
    return TypedSearchAttributes(
        [
            SearchAttributePair(
                SearchAttributeKey.for_int(name) if isinstance(value, int) else SearchAttributeKey.for_keyword(name),
                value,
            )
            for name, value in values.items()
            if name in run.options.search_attributes and value != ""
        ]
    )


def _first_line(prompt: str | Sequence[Json]) -> str:
    from interlock.contracts.masking import masked_text

    text = " ".join(masked_text(prompt if isinstance(prompt, str) else str(prompt[0])).split())
    return text if len(text) <= 100 else f"{text[:99]}…"


def _status_name(description: WorkflowExecutionDescription) -> str:
    return _CLOSED.get(description.status, "running") if description.status else "running"


def _root(error: BaseException | None) -> tuple[str, str]:
    """The type and message of a failure, without the activities and runs it came through."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    if isinstance(error, FailureError):
        return getattr(error, "type", None) or type(error).__name__, error.message
    return type(error).__name__, str(error)


def _problems(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(str(step) for step in one['loc'][:1])}: {one['msg']}" for one in found)


def _made(message: type[P], **fields: Any) -> P:
    try:
        return message(**fields)
    except ValidationError as error:
        raise MisconfiguredError(f"The answer cannot be sent: {_problems(error)}") from error


def _user() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):
        return socket.gethostname()


@contextmanager
def _server_errors(workflow_id: str) -> Any:
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and "amespace" in error.message:
            raise MisconfiguredError(
                f"The Temporal server has no such namespace: {error.message}. Set TEMPORAL_NAMESPACE, or create it."
            ) from error
        if error.status is RPCStatusCode.NOT_FOUND and workflow_id:
            raise RefusedError(f"There is no run {workflow_id!r}. See `interlock runs list`.") from error
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
        if error.status is RPCStatusCode.UNAVAILABLE:
            raise UnavailableError(f"The Temporal server does not answer: {error.message}") from error
        raise MisconfiguredError(f"The Temporal server refused the request: {error.message}") from error
    except WorkflowQueryFailedError as error:
        raise RefusedError(f"Run {workflow_id!r} could not be asked: {error.message}") from error


@contextmanager
def _ignoring_queries() -> Any:
    # What a watched run says of itself is an extra: its history is followed all the same.
    try:
        yield
    except (UnavailableError, RefusedError):
        return
