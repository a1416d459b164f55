"""Turns what would fail a workflow task, and with it the same task again and again, into a failure of one step or run.

An error in workflow code fails its task, which the server then gives out again, without end and with no word to anyone.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.common import RawValue
from temporalio.converter import PayloadConverter, SerializationContext, WithSerializationContext
from temporalio.exceptions import ActivityError, ApplicationError, FailureError
from temporalio.worker import (
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    StartChildWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

with workflow.unsafe.imports_passed_through():
    from interlock._failures import ended_by, failure_of
    from interlock.contracts import names
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.failures import told, unread
    from interlock.contracts.payloads import Message
    from interlock.contracts.ports import Unreadable

LARGEST_INPUT_BYTES = 2_097_152
"""What the server takes as the input of one step."""

LARGEST_TASK_BYTES = 4_000_000
"""What the server takes as the inputs of all steps that begin at once; its limit on a message is 4 MiB."""


is_cancelling: ContextVar[bool] = ContextVar("interlock_is_cancelling", default=False)
"""Whether the task at hand cancels the run. For validators only: a replay does not see it at the same messages."""


class GuardInterceptor(Interceptor):
    """Refuses what the server would not take, and keeps what strangers send from failing a run's task."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See `Interceptor`."""
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        task = asyncio.current_task()
        try:
            return await super().execute_workflow(input)
        except BaseException as error:
            failure = ended_by(error, task)
            if failure is error or workflow.unsafe.is_replaying():
                raise  # On a replay it is this code that is wrong, not the run.
            raise failure from None

    async def handle_signal(self, input: HandleSignalInput) -> None:
        """Whatever a signal makes a handler, or a validator of the user's in it, raise: it changes nothing."""
        try:
            await super().handle_signal(input)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            workflow.logger.warning("signal.failed", extra={"signal": input.signal, "error": told(error).message})

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        try:
            super().handle_update_validator(input)
        except RefusedError:
            raise
        except BaseException as error:
            what = told(error)
            raise RefusedError(f"{input.update} could not be checked: {what.type}: {what.message}") from None

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        try:
            return await super().handle_update_handler(input)
        except FailureError:
            raise
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise failure_of(error) from None


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        super().__init__(next)
        self._sent = (0, 0)

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        label = input.summary or input.activity
        payloads = workflow.payload_converter().to_payloads(input.args)
        self._check_size(label, Payloads(payloads=payloads).ByteSize())
        input.args = [RawValue(payload) for payload in payloads]
        handle = super().start_activity(input)
        _fail_if_unreadable(handle, label, input.activity)
        return handle

    async def start_child_workflow(self, input: StartChildWorkflowInput) -> workflow.ChildWorkflowHandle[Any, Any]:
        payloads = workflow.payload_converter().to_payloads(input.args)
        self._check_size(input.id, Payloads(payloads=payloads).ByteSize())
        input.args = [RawValue(payload) for payload in payloads]
        handle = await super().start_child_workflow(input)
        _fail_if_unreadable(handle, input.id, input.workflow)
        return handle

    def _check_size(self, label: str, size: int) -> None:
        if size > LARGEST_INPUT_BYTES:
            raise ApplicationError(
                f"The input of step '{label}' has {size:,} bytes; at most {LARGEST_INPUT_BYTES:,} fit. A model call "
                "takes the whole conversation: return references to large data from tools instead of the data.",
                type=names.INPUT_TOO_LARGE,
                non_retryable=True,
            )
        task = workflow.info().get_current_history_length()  # Another one in each workflow task.
        sent = size + (self._sent[1] if self._sent[0] == task else 0)
        if sent > LARGEST_TASK_BYTES:
            raise ApplicationError(
                f"The inputs of the steps that begin together with '{label}' have {sent:,} bytes; at most "
                f"{LARGEST_TASK_BYTES:,} fit. Give the tools less data, or have them run one after another.",
                type=names.INPUT_TOO_LARGE,
                non_retryable=True,
            )
        self._sent = (task, sent)


class ReadableConverter(PayloadConverter, WithSerializationContext):
    """Reads every payload; what cannot be read comes out as `Unreadable` for whoever waits for it to deal with."""

    def __init__(self, inner: PayloadConverter) -> None:
        self._inner = inner

    def to_payloads(self, values: Sequence[Any]) -> list[Any]:
        """See `PayloadConverter`."""
        return self._inner.to_payloads(values)

    def from_payloads(self, payloads: Sequence[Any], type_hints: list[type] | None = None) -> list[Any]:
        """See `PayloadConverter`."""
        try:
            values = self._inner.from_payloads(payloads, type_hints)
        except Exception as error:  # Whatever a type, or a converter of the user's, makes of what anybody may send.
            values = [Unreadable(unread(error)) for _ in payloads]
        hint = type_hints[0] if type_hints and len(type_hints) == 1 else None
        return [_as_message(values[0], hint)] if isinstance(hint, type) and issubclass(hint, Message) else values

    def from_payload(self, payload: Any, type_hint: type | None = None) -> Any:
        """See `PayloadConverter`. For workflow code that asks for one value and takes the error itself."""
        return self._inner.from_payload(payload, type_hint)  # type: ignore[arg-type]

    def with_context(self, context: SerializationContext) -> "ReadableConverter":
        """See `WithSerializationContext`."""
        if not isinstance(self._inner, WithSerializationContext):
            return self
        return ReadableConverter(self._inner.with_context(context))


def _as_message(value: Any, kind: type[Message]) -> Message | Unreadable:
    """The message, or what its sender is told of what they sent instead. Left alone, the SDK would write the values of
    such a message into its log and into the answer."""
    if isinstance(value, kind):
        return value
    wrong = value.why if isinstance(value, Unreadable) else "it is null or not JSON"
    return Unreadable(
        f"A {kind.__name__} is expected, and this is none: {wrong}. One has {', '.join(kind.model_fields)}."
    )


class Contained(Coroutine[Any, Any, Any]):
    """A coroutine of a workflow that ends with an ordinary error where it would end more than itself.

    asyncio lets SystemExit and KeyboardInterrupt of a task out of its event loop, past every handler in the run, and
    GeneratorExit passes for the word that the run is taken apart.
    """

    def __init__(self, inner: Coroutine[Any, Any, Any]) -> None:
        self._inner = inner

    def send(self, value: Any) -> Any:
        """See `Coroutine`."""
        try:
            return self._contained(self._inner.send, value)
        except GeneratorExit as error:
            raise failure_of(error) from None

    def throw(self, *error: Any) -> Any:
        """See `Coroutine`."""
        return self._contained(self._inner.throw, *error)

    def close(self) -> None:
        """See `Coroutine`."""
        self._inner.close()

    def __await__(self) -> Any:
        return self._inner.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # What a stack trace is made of.

    def _contained(self, step: Callable[..., Any], *args: Any) -> Any:
        try:
            return step(*args)
        except (SystemExit, KeyboardInterrupt) as error:
            raise failure_of(error) from None


def _fail_if_unreadable(handle: Any, label: str, kind: str) -> None:
    # The result is read before the waiting code runs, so an error there has nobody to go to. As a failure of the step
    # it reaches whoever waits for it.
    succeed, fail = handle._resolve_success, handle._resolve_failure

    def resolve(result: Any) -> None:
        if isinstance(result, Unreadable):
            fail(_unreadable(label, kind, result))
        else:
            succeed(result)

    handle._resolve_success = resolve


def _unreadable(label: str, kind: str, result: Unreadable) -> ActivityError:
    error = ActivityError(
        "The step has run, but its result cannot be read.",
        scheduled_event_id=0,
        started_event_id=0,
        identity="",
        activity_type=kind,
        activity_id="",
        retry_state=None,
    )
    error.__cause__ = ApplicationError(
        f"Step '{label}' has run, but its result cannot be read: {result.why}. It is not run again by itself: its "
        "type has changed since, or what it returns does not survive being written as JSON and read again.",
        type=names.UNREADABLE_RESULT,
        non_retryable=True,
    )
    return error
