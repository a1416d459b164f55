"""Reads what runs have recorded, for the runs that were forked from them."""

from collections import OrderedDict

from temporalio.api.common.v1 import Payload
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError, RPCStatusCode

from interlock.contracts.errors import RefusedError, UnavailableError
from interlock.contracts.payloads import StepResult

_KEPT = 8


class StoredHistories:
    """The results of completed activities, by run. Each run's are read once and kept for a while: a fork asks for them
    one after another."""

    def __init__(self, temporal: TemporalClient) -> None:
        self._temporal = temporal
        self._kept: OrderedDict[str, dict[int, Payload]] = OrderedDict()

    async def result(self, step: StepResult) -> Payload:
        """See `Histories`."""
        results = self._kept.get(step.run_id)
        if results is None or step.event_id not in results:
            results = self._kept[step.run_id] = await self._read(step)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        if step.event_id not in results:
            raise RefusedError(
                f"Run {step.workflow_id!r} ({step.run_id}) has no result at event {step.event_id} to take over."
            )
        return results[step.event_id]

    async def _read(self, step: StepResult) -> dict[int, Payload]:
        handle = self._temporal.get_workflow_handle(step.workflow_id, run_id=step.run_id)
        found: dict[int, Payload] = {}
        try:
            async for event in handle.fetch_history_events():
                payloads = event.activity_task_completed_event_attributes.result.payloads
                if payloads:
                    found[event.event_id] = payloads[0]
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise RefusedError(
                    f"The history of run {step.workflow_id!r} ({step.run_id}), which this run was forked from, is "
                    "gone: the namespace no longer keeps it. Start the work as a new run."
                ) from error
            raise UnavailableError(
                f"The history of run {step.workflow_id!r} cannot be read: {error.message}"
            ) from error
        if (codec := self._temporal.data_converter.payload_codec) is not None:
            decoded = await codec.decode(list(found.values()))
            found = dict(zip(found, decoded, strict=True))
        return found
