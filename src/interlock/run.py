"""One run: its result, its state, its steps, and the answers people give it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import AwareDatetime, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistoryEventAsyncIterator,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import (
    ANSWER_WITHIN,
    CLOSED,
    check_travels,
    current_user,
    ignoring_unanswered,
    root_failure,
    server_errors,
    status_name,
)
from interlock._versions import pin_of, workers_of
from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError, RefusedError, RunFailedError, UnavailableError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import (
    ApprovalRequest,
    Decision,
    Json,
    Payload,
    Receipt,
    Retry,
    RetryReceipt,
    RunOutput,
    RunState,
    ToolCompletion,
    Usage,
    Verdict,
)
from interlock.journal import EventReader, HistoryReader, Journal, RunEvent, Step

if TYPE_CHECKING:
    from interlock.client import Client

P = TypeVar("P", bound=Payload)

_FULL_PAGE = 100  # Events: of fewer nothing is left that was there.


class RunReport(Payload):
    """How a run stands.

    status: one of `InterlockStatus`, or `terminated` or `timed_out` for a run that Temporal ended.
    output, usage: of a completed run. error: why a run ended without an output, as `Type: message`.
    run_id: of the execution that this is about, the last one. continued_from: the run id of the execution that it goes
    on from, empty when there is none. started_at: when the first of these executions began.
    """

    workflow_id: str
    agent: str
    status: str
    output: Json = None
    usage: Usage | None = None
    error: str | None = None
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None
    run_id: str = ""
    continued_from: str = ""


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

    @property
    def started_run_id(self) -> str:
        """The run id of the execution that this process has started; empty for a run that was there."""
        return self._handle.first_execution_run_id or ""

    async def result(self) -> RunOutput:
        """Wait for the run's end and return what it gave back.

        Raises RunFailedError when it ended without an output, RefusedError when there is no such run.
        """
        with server_errors(self.id):
            try:
                return await self._handle.result()
            except WorkflowFailureError as failure:
                description = await self._handle.describe()
                kind, message = root_failure(failure.cause)
                raise RunFailedError(
                    message, workflow_id=self.id, status=status_name(description), error_type=kind
                ) from failure

    async def state(self) -> RunState:
        """What an open run does and waits for, as it says itself. Needs a worker."""
        with server_errors(self.id):
            state: RunState = await self._handle.query(names.STATUS, result_type=RunState, rpc_timeout=ANSWER_WITHIN)
            return state

    async def report(self) -> RunReport:
        """How the run stands, open or closed."""
        with server_errors(self.id):
            description = await self._handle.describe()
        return await self._client.report_of(description)

    async def approvals(self) -> list[ApprovalRequest]:
        """The run's open requests, oldest first. Needs a worker."""
        with server_errors(self.id):
            requests: list[ApprovalRequest] = await self._handle.query(
                names.APPROVALS, result_type=list[ApprovalRequest], rpc_timeout=ANSWER_WITHIN
            )
            return requests

    async def decide(
        self,
        request_id: str,
        verdict: Verdict,
        *,
        reason: str = "",
        arguments: dict[str, Json] | None = None,
        result: Json = None,
        digest: str = "",
        by: str | None = None,
    ) -> Receipt:
        """Answer an open request. Needs a worker.

        verdict, arguments, result: as in `Decision`. digest: of the request as it was shown, so that the answer cannot
        reach another. by: who decides; the user of this process when not given. Raises RefusedError, saying why, when
        the answer changes nothing.
        """
        decision = _made(
            Decision,
            request_id=request_id,
            verdict=verdict,
            digest=digest,
            arguments=arguments,
            result=result,
            reason=reason,
            decided_by=current_user() if by is None else by,
            decided_at=datetime.now(UTC),
        )
        return await self._submit(names.SUBMIT_DECISION, decision, Receipt)

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
            completed_by=current_user() if by is None else by,
            completed_at=datetime.now(UTC),
        )
        return await self._submit(names.SUBMIT_TOOL_RESULT, completion, Receipt)

    async def retry(
        self,
        *,
        step: str = "",
        usage_limits: dict[str, Json] | None = None,
        reason: str = "",
        by: str | None = None,
    ) -> RetryReceipt:
        """Have what is stuck run again: exactly the steps that failed; nothing that completed. Needs a worker.

        step: of several stuck ones, only this. usage_limits: the framework's own fields by name, in place of the
        run's, for a run that its limits stopped. Raises RefusedError, saying why, when nothing is stuck or the limits
        do not fit.
        """
        retry = _made(
            Retry,
            step=step,
            usage_limits=usage_limits,
            reason=reason,
            requested_by=current_user() if by is None else by,
            requested_at=datetime.now(UTC),
        )
        return await self._submit(names.SUBMIT_RETRY, retry, RetryReceipt)

    async def resting(self) -> int | None:
        """How many events the history has, when no workflow task is under way; None when one is."""
        with server_errors(self.id):
            description = await self._handle.describe()
        busy = description.raw_description.HasField("pending_workflow_task")
        return None if busy else description.history_length

    async def cancel(self) -> None:
        """Ask the run to end. Its open requests are withdrawn; it ends as `cancelled`.

        Raises RefusedError when it has ended, or there is none.
        """
        with server_errors(self.id):
            description = await self._handle.describe()
            if description.status in CLOSED:  # The server takes such a request in silence.
                raise RefusedError(f"Run {self.id!r} is {status_name(description)} already.")
            await self._handle.cancel()

    async def ended_in_vain(self, *, before: datetime) -> bool:
        """Whether the run ended without an output before this time."""
        with server_errors(self.id):
            description = await self._handle.describe()
        closed = description.close_time
        if closed is None or description.status is WorkflowExecutionStatus.COMPLETED:
            return False
        return closed < before

    async def journal(self, *, run_id: str | None = None, deep: bool = False) -> Journal:
        """All that the run did, from its history. See `Client.journal`."""
        return await self._client.journal(self, run_id=run_id, deep=deep)

    async def steps(self) -> list[Step]:
        """The model calls, tool calls and judges of the run, in order, from its history: its journal without the rest.

        Positions are those of the journal, so some are left out: what the gate looks up is no step of the agent's.
        """
        reader = HistoryReader(self._client.temporal.data_converter)
        with server_errors(self.id):
            async for event in self._handle.fetch_history_events():
                await reader.read(event)
        return [step for step in reader.steps if _is_the_agents(step)]

    async def watch(self) -> AsyncIterator[Change]:
        """Follow the run to its end: each step as it begins and ends, and its state whenever that changes."""
        state, run_id = None, ""
        with server_errors(self.id):
            while True:
                handle = self._client.temporal.get_workflow_handle(self.id, run_id=run_id or None)
                reader = HistoryReader(self._client.temporal.data_converter)
                events = handle.fetch_history_events(wait_new_event=True)
                async for event in events:
                    step = await reader.read(event)
                    if step is not None and _is_the_agents(step):
                        yield Change(step=step)
                    if events.current_page is None or events.current_page_index < len(events.current_page):
                        continue
                    with ignoring_unanswered():
                        now = await self.state()
                        if now != state:
                            state = now
                            yield Change(state=state)
                # A long run goes on in another execution, with a history of its own.
                run_id = reader.journal().continued_as
                if not run_id:
                    return

    async def events(
        self, *, from_offset: int = 0, follow: bool = True, pace_seconds: float = 0
    ) -> AsyncGenerator[RunEvent]:
        """Follow the run's events to its end, from an offset on: what its models say as they say it, how far its tools
        are, what is asked and decided. Of a run that was not started with `stream` it is told what each model has said
        once it has said it.

        Read from the history: no worker is needed, and the run does not notice. Every reader gets the same events under
        the same offsets, during the run or afterwards. One that stopped after an event goes on with its offset + 1.
        follow: false reads those that there are now. pace_seconds: how long it lets news gather before it asks the
        server for more; nothing costs the server as much as to be asked for each event by itself.
        Raises RefusedError when there is no such run, or the history of its beginning is no longer kept;
        UnavailableError when the server goes away: read on from where you were.
        """
        if from_offset < 0:
            raise MisconfiguredError(f"Offsets begin at 0; {from_offset} was given.")
        with server_errors(self.id):
            run_id, reader = await self._first_execution(), EventReader(self._client.temporal.data_converter)
            while run_id:
                handle = self._client.temporal.get_workflow_handle(self.id, run_id=run_id)
                history = handle.fetch_history_events(wait_new_event=follow)
                async with aclosing(_paced(history, pace_seconds)) as events:
                    async for event in events:
                        for found in await reader.read(event):
                            if found.offset >= from_offset:
                                yield found
                run_id, reader = reader.continued_as, reader.after()

    async def _first_execution(self) -> str:
        """The run id of the execution that the latest one goes back to. Not what the server says is the first: of a run
        that was reset that is another history."""
        latest = run_id = (await self._handle.describe()).run_id
        while True:
            handle = self._client.temporal.get_workflow_handle(self.id, run_id=run_id)
            try:
                first = await anext(handle.fetch_history_events(page_size=1))
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or run_id == latest:
                    raise
                raise RefusedError(
                    f"The events of run {self.id!r} cannot be counted: the history of its beginning is no longer kept. "
                    f"See `interlock journal {self.id}`."
                ) from error
            before = first.workflow_execution_started_event_attributes.continued_execution_run_id
            if not before:
                return run_id
            run_id = before

    async def accepted(self, *, within_seconds: float = 5) -> None:
        """Wait until a worker has taken the run on.

        Raises RunFailedError when it refused the input, UnavailableError when no worker is there; then the run is
        stored and begins when one starts.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with server_errors(self.id):
            while True:
                description = await self._handle.describe()
                if description.status in CLOSED and description.status is not WorkflowExecutionStatus.COMPLETED:
                    await self.result()
                if description.history_length > 3 or description.status in CLOSED:
                    return
                waited = loop.time() - begun
                # A worker that starts right now is seen a moment later.
                workers = await workers_of(self._client) if waited > 1.5 else None
                if workers and (waited > within_seconds or not workers.serve(pin_of(description))):
                    raise UnavailableError(
                        f"No worker takes runs from task queue {self._client.task_queue!r}. Run {self.id!r} is stored "
                        f"and begins when one starts. {workers.todo(pin_of(description))}"
                    )
                await asyncio.sleep(0.05)

    async def _submit(self, update: str, message: Payload, answer: type[P]) -> P:
        with server_errors(self.id):
            try:
                async with asyncio.timeout(ANSWER_WITHIN.total_seconds()):
                    receipt: P = await self._handle.execute_update(update, message, result_type=answer)
                    return receipt
            except WorkflowUpdateFailedError as refused:
                raise RefusedError(root_failure(refused.cause)[1]) from refused
            except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError) as late:
                raise UnavailableError(
                    f"No worker answered for run {self.id!r} within {ANSWER_WITHIN.total_seconds():g} s. The answer "
                    f"may still take effect: look with `interlock runs show {self.id}` before answering again. If "
                    "no worker is there, start one with `interlock worker run MODULE:APP`."
                ) from late
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                description = await self._handle.describe()
                raise RefusedError(
                    f"Run {self.id!r} is {status_name(description)}: it waits for nothing any more."
                ) from error


def _is_the_agents(step: Step) -> bool:
    return step.kind != "description"


def _made(message: type[P], **fields: Any) -> P:
    try:
        made = message(**fields)
    except ValidationError as error:
        raise MisconfiguredError(f"The answer cannot be sent: {problems(error, depth=1)}") from error
    check_travels(made, "The answer")
    return made


async def _paced(history: WorkflowHistoryEventAsyncIterator, pace_seconds: float) -> AsyncGenerator[HistoryEvent]:
    while True:
        await history.fetch_next_page()
        page = history.current_page or ()
        for event in page:
            yield event
        if not history.next_page_token:
            return
        if len(page) < _FULL_PAGE:  # Else there is more already.
            await asyncio.sleep(pace_seconds)
