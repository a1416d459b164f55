"""Takes the result of a step over from another run."""

from temporalio import activity
from temporalio.common import RawValue

from interlock.activities.errors import typed_errors
from interlock.contracts import names
from interlock.contracts.payloads import StepResult
from interlock.contracts.ports import Histories


class RecallStep:
    """The activity, over the histories of the server that the worker is connected to."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories

    @activity.defn(name=names.RECALL_STEP)
    @typed_errors
    async def recall_step(self, step: StepResult) -> RawValue:
        """The result as it is stored in the other run's history, of whatever type it is.

        Raises RefusedError (not retried) when that history is gone or holds no such result, UnavailableError (retried)
        when the server does not answer. Source: the history of the run that was forked; nothing runs again.
        """
        return RawValue(await self._histories.result(step))
