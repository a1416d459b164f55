"""Gives a model call all of its messages, however it was written into the history."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from interlock._rpc import header_text
from interlock.activities.errors import typed_errors
from interlock.contracts import conversation, names
from interlock.contracts.conversation import Request
from interlock.contracts.places import MODEL_SUFFIXES
from interlock.contracts.ports import Histories

_KEPT_BYTES = 32_000_000  # Of all runs together. What is not kept any more is read from the history.
_DEFINITION = "__temporal_activity_definition"


class WholeRequests(Interceptor):
    """Puts the messages that a model call goes on from before its own: those that this worker remembers, or the ones
    in the run's history."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._takes: dict[str, Sequence[type]] = {}
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._bytes = 0

    def of(self, activities: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """The same activities; those that ask a model are given what they take by this interceptor."""
        return [self._raw(one) for one in activities]

    def _raw(self, function: Callable[..., Any]) -> Callable[..., Any]:
        definition = activity._Definition.must_from_callable(function)
        if not definition.arg_types or not (definition.name or "").endswith(MODEL_SUFFIXES):
            return function
        self._takes[str(definition.name)] = definition.arg_types
        stored = partial(function)
        setattr(stored, _DEFINITION, replace(definition, fn=stored, arg_types=[RawValue] * len(definition.arg_types)))
        return stored

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Inbound(next, self)

    async def read(self, input: ExecuteActivityInput) -> None:
        """Read the arguments of an activity that asks a model."""
        takes = self._takes.get(activity.info().activity_type, ())
        if not takes or not all(isinstance(one, RawValue) for one in input.args):
            return
        payloads = [one.payload for one in input.args]
        payloads[0] = await self._whole(payloads[0], input.headers)
        input.args = activity.payload_converter().from_payloads(payloads, list(takes))

    @typed_errors
    async def _whole(self, payload: Payload, headers: Mapping[str, Payload]) -> Payload:
        request = _request(payload)
        if request is None or names.HEADER_STEP not in headers:
            return payload
        info = activity.info()
        run_id, step = info.workflow_run_id or "", header_text(headers[names.HEADER_STEP])
        messages = self._kept.get((run_id, step)) or request.messages
        if request.follows and (run_id, step) not in self._kept:
            before = self._kept.get((run_id, request.follows))
            if before is None:
                stored = await self._histories.model_calls(info.workflow_id or "", run_id)
                before = _all_messages(stored, request.follows)
            if request.digest and conversation.digest_of(before) != request.digest:
                raise _lost(request.follows, "has other messages than it was given")
            messages = conversation.joined([before, messages])
        self._keep(run_id, step, messages, instead_of=request.follows)
        if not request.follows:
            return payload
        return Payload(
            metadata={"encoding": b"json/plain"}, data=replace(request, messages=messages, follows="").data()
        )

    def _keep(self, run_id: str, step: str, messages: bytes, *, instead_of: str) -> None:
        self._bytes -= len(self._kept.pop((run_id, step), b"")) + len(self._kept.pop((run_id, instead_of), b""))
        self._kept[run_id, step] = messages
        self._bytes += len(messages)
        while self._bytes > _KEPT_BYTES:
            _, gone = self._kept.popitem(last=False)
            self._bytes -= len(gone)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, requests: WholeRequests) -> None:
        super().__init__(next)
        self._requests = requests

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        await self._requests.read(input)
        return await self.next.execute_activity(input)


def _all_messages(stored: Mapping[str, Payload], step: str) -> bytes:
    """The messages of a call of the run, from what the history has of its calls."""
    left, pieces = dict(stored), list[bytes]()
    while step:
        request = _request(left.pop(step), plain=True) if step in left else None
        if request is None:
            raise _lost(step, "is not in the history")
        pieces.append(request.messages)
        step = request.follows
    return conversation.joined(reversed(pieces))


def _request(payload: Payload, *, plain: bool = False) -> Request | None:
    length = payload.metadata.get(conversation.METADATA)
    if length is None and not plain:
        return None
    return conversation.read(payload.data, None if length is None else int(length))


def _lost(step: str, why: str) -> ApplicationError:
    return ApplicationError(
        f"This model call goes on from step {step!r} of its run, which {why}. Retry the run: the call is then written "
        "whole.",
        type=names.CONVERSATION_LOST,
        non_retryable=True,
    )
