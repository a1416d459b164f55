"""Records what a step says while it works, in batches, as signals in the history of its own run."""

import asyncio
import logging
import math
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from pydantic_core import to_json
from temporalio import activity
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.workflowservice.v1 import SignalWorkflowExecutionRequest
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from interlock.contracts import names
from interlock.contracts.failures import told
from interlock.contracts.masked_stream import MaskedArguments, MaskedText
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import EventBatch, Said
from interlock.contracts.ports import event_sink

_FIRST_SECONDS = 0.2
_AT_FULL_PACE = (
    4  # Steps of one run in one worker. Of more at once each waits longer, so that a run gets no more signals.
)
_BATCH_CHARACTERS = 16_000
_MOST_PIECES = 200
_MOST_WAITING = (
    400_000  # In characters. The server is away, or slower than the model: the rest is in the step's result.
)
_LAST_WORD_SECONDS = 2.0
_RETRY_SECONDS = 1.0
_LONGEST_NOTE = 500
_PASSING = (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED)
_logger = logging.getLogger("interlock.worker")

Send = Callable[[EventBatch], Awaitable[None]]


class StreamInterceptor(Interceptor):
    """Gives the activities of streamed runs somewhere to tell how far they are. No attempt ever waits for it, except,
    for 2 s at most, one that failed: what it said has to be taken back."""

    def __init__(self) -> None:
        self._writing: Counter[str] = Counter()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Inbound(next, self._writing)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, writing: "Counter[str]") -> None:
        super().__init__(next)
        self._writing = writing

    def execute_activity(self, input: ExecuteActivityInput) -> Coroutine[Any, Any, Any]:
        # No coroutine of its own where nothing is streamed: its frame would be in every stack trace, and the server
        # shows no failure of more than 4 kB of a step that is tried again.
        if names.HEADER_STREAM in input.headers:
            return self._streamed(input)
        return self.next.execute_activity(input)

    async def _streamed(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        run = info.workflow_run_id or ""
        writer = EventWriter(
            _signal,
            activity_id=info.activity_id,
            attempt=info.attempt,
            slower=lambda: max(1.0, self._writing[run] / _AT_FULL_PACE),
        )
        token = event_sink.set(writer)
        self._writing[run] += 1
        try:
            result = await self.next.execute_activity(input)
        except BaseException as error:
            await writer.fail(error)
            raise
        finally:
            event_sink.reset(token)
            writer.stop()
            self._writing[run] -= 1
            if not self._writing[run]:
                del self._writing[run]
        return result


class EventWriter:
    """Collects what one attempt of a step says, and sends it in batches that come the rarer the longer it takes.

    An attempt after the first says at once that it has begun. What is not sent when the attempt succeeds is dropped:
    the step's result, which is recorded next, holds it. slower: how many times longer than by itself it waits.
    """

    def __init__(
        self, send: Send, *, activity_id: str, attempt: int, slower: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._send = send
        self._slower = slower
        self._activity_id = activity_id
        self._attempt = attempt
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._texts = {"text": MaskedText(), "thinking": MaskedText()}
        self._calls: dict[str, tuple[str, MaskedArguments]] = {}
        self._waiting: list[str] = []  # Kinds, and ids of calls, with something new; in their order.
        self._characters = 0
        self._full = False  # Then nothing more is told of what a model says: it would not follow on what was told.
        self._progress: Said | None = None
        self._more = asyncio.Event()
        self._sending = asyncio.create_task(self._run())

    def text(self, delta: str) -> None:
        """See `EventSink`."""
        self._add_text("text", delta)

    def thinking(self, delta: str) -> None:
        """See `EventSink`."""
        self._add_text("thinking", delta)

    def call(self, call_id: str, tool: str, delta: str) -> None:
        """See `EventSink`."""
        if self._takes(delta):
            self._calls.setdefault(call_id, (tool, MaskedArguments()))[1].add(delta)
            self._note(f"call {call_id}")

    def progress(self, done: float | None, total: float | None, text: str) -> None:
        """See `EventSink`."""
        note = masked_text(str(text)[:_LONGEST_NOTE])
        said = Said(kind="progress", done=_number(done), total=_number(total), text=note)
        self._loop.call_soon_threadsafe(self._set_progress, said)

    async def fail(self, error: BaseException) -> None:
        """The attempt has failed: what it said does not count."""
        self.stop()
        if self._number == 0:
            return
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(self._send(self._batch((), failed=_why(error))), _LAST_WORD_SECONDS)

    def stop(self) -> None:
        """Send nothing more."""
        self._sending.cancel()

    async def _run(self) -> None:
        try:
            if self._attempt > 1:
                await self._sent(self._batch(()))
            while True:
                await self._more.wait()
                await asyncio.sleep(interval_seconds(self._loop.time() - self._began) * self._slower())
                if said := self._take():
                    await self._sent(self._batch(said))
        except RPCError as error:  # The run has ended, or takes no more signals.
            _logger.info("events.dropped", extra={"activity_id": self._activity_id, "why": error.status.name})
        except Exception as error:  # What a model says may be no Unicode, or have ids of any length.
            _logger.warning("events.dropped", extra={"activity_id": self._activity_id, "why": type(error).__name__})

    async def _sent(self, batch: EventBatch) -> None:
        while True:
            try:
                return await self._send(batch)
            except RPCError as error:
                if error.status not in _PASSING:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _batch(self, said: tuple[Said, ...], *, failed: str = "") -> EventBatch:
        self._number += 1
        return EventBatch(
            activity_id=self._activity_id, attempt=self._attempt, number=self._number, said=said, failed=failed
        )

    def _take(self) -> tuple[Said, ...]:
        """What can be told now."""
        self._more.clear()
        waiting, self._waiting, self._characters = self._waiting, [], 0
        said = [one for key in waiting for one in self._said(key)]
        if self._progress:
            said.append(self._progress)
            self._progress = None
        return tuple(said[:_MOST_PIECES])

    def _said(self, key: str) -> list[Said]:
        if key in self._texts:
            text = self._texts[key].take()
            parts = [text[at : at + _BATCH_CHARACTERS] for at in range(0, len(text), _BATCH_CHARACTERS)]
            return [Said(kind=key, text=part) for part in parts]
        call_id = key.removeprefix("call ")
        tool, written = self._calls[call_id]
        arguments = written.take()
        if len(to_json(arguments)) > _BATCH_CHARACTERS:
            arguments = {}  # Once the call is recorded, its beginning is shown.
        return [Said(kind="call_delta", text=tool, call_id=call_id, arguments=arguments, size=written.size)]

    def _add_text(self, kind: str, delta: str) -> None:
        if self._takes(delta):
            self._texts[kind].add(delta)
            self._note(kind)

    def _takes(self, delta: str) -> bool:
        self._characters += len(delta)
        self._full = self._full or self._characters > _MOST_WAITING
        return not self._full

    def _note(self, key: str) -> None:
        if key not in self._waiting:
            self._waiting.append(key)
        self._more.set()

    def _set_progress(self, said: Said) -> None:
        self._progress = said
        self._more.set()


def interval_seconds(elapsed: float) -> float:
    """How long a batch is waited for, by how long the attempt has worked, both in seconds.

    At first 0.2, then a tenth of the time that has passed, at most 2; after ten minutes a 300th of it. So an attempt of
    a minute makes about 50 batches at most, one of an hour about 900, and one of a day 1,900.
    """
    return max(_FIRST_SECONDS, min(elapsed / 10, 2.0), elapsed / 300)


async def _signal(batch: EventBatch) -> None:
    """Signal the run that the activity belongs to: this execution of it, and each batch once, however often it is sent.

    By the bare call, since interceptors, such as the one that makes a span of every signal, have no business here.
    """
    client, info = activity.client(), activity.info()
    payloads = await client.data_converter.encode([batch.model_dump(mode="json", exclude_defaults=True)])
    await client.workflow_service.signal_workflow_execution(
        SignalWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or ""),
            signal_name=names.RECORD_EVENTS,
            input=Payloads(payloads=payloads),
            identity=client.identity,
            request_id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{batch.activity_id}/{batch.attempt}/{batch.number}")),
        )
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _why(error: BaseException) -> str:
    what = told(error)
    kind = error.type if isinstance(error, ApplicationError) and error.type else what.type
    return f"{kind}: {what.message}"[:_LONGEST_NOTE]
