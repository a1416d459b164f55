"""Reads what runs have recorded: for runs that were forked from them, and for their own later steps."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client as TemporalClient
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from interlock._rpc import header_text
from interlock.contracts import names
from interlock.contracts.errors import RefusedError, UnavailableError
from interlock.contracts.payloads import StepResult
from interlock.contracts.places import MODEL_SUFFIXES

_KEPT = 8


class StoredHistories:
    """What the server has of runs. The results of a run are read once and kept for a while: a fork asks for them one
    after another."""

    def __init__(self, temporal: TemporalClient) -> None:
        self._temporal = temporal
        self._kept: OrderedDict[str, dict[int, Payload]] = OrderedDict()

    async def result(self, step: StepResult) -> Payload:
        """See `Histories`."""
        results = self._kept.get(step.run_id)
        if results is None or step.event_id not in results:
            results = self._kept[step.run_id] = await self._results(step.workflow_id, step.run_id)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        if step.event_id not in results:
            raise RefusedError(
                f"Run {step.workflow_id!r} ({step.run_id}) has no result at event {step.event_id} to take over."
            )
        return results[step.event_id]

    async def model_calls(self, workflow_id: str, run_id: str) -> Mapping[str, Payload]:
        """See `Histories`."""
        found: dict[str, Payload] = {}
        async for event in self._events(workflow_id, run_id):
            attributes = event.activity_task_scheduled_event_attributes
            if attributes.activity_type.name.endswith(MODEL_SUFFIXES) and attributes.input.payloads:
                found[header_text(attributes.header.fields[names.HEADER_STEP])] = attributes.input.payloads[0]
        return dict(zip(found, await self._decoded(found.values()), strict=True))

    async def _results(self, workflow_id: str, run_id: str) -> dict[int, Payload]:
        found: dict[int, Payload] = {}
        async for event in self._events(workflow_id, run_id):
            payloads = event.activity_task_completed_event_attributes.result.payloads
            if payloads:
                found[event.event_id] = payloads[0]
        return dict(zip(found, await self._decoded(found.values()), strict=True))

    async def _events(self, workflow_id: str, run_id: str) -> AsyncIterator[HistoryEvent]:
        try:
            async for event in self._temporal.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events():
                yield event
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise RefusedError(
                    f"The history of run {workflow_id!r} ({run_id}), which this one takes steps from, is gone: the "
                    "namespace no longer keeps it. Start the work as a new run."
                ) from error
            raise UnavailableError(f"The history of run {workflow_id!r} cannot be read: {error.message}") from error

    async def _decoded(self, payloads: Iterable[Payload]) -> list[Payload]:
        stored = list(payloads)
        values = await self._temporal.data_converter.decode(stored, [RawValue] * len(stored)) if stored else []
        return [value.payload for value in values]
