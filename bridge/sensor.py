"""The sensor: waits for a workflow that somebody else has started, an agent's run or any other."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import PokeReturnValue

from interlock.bridge._airflow import BaseSensorOperator
from interlock.bridge.endings import Ending, ending_of, xcom_value
from interlock.bridge.errors import BadTaskError, RunVanishedError, TemporalUnavailableError, WaitTimedOutError
from interlock.bridge.hook import TemporalHook
from interlock.bridge.outcome import XCOM_LIMIT_BYTES, Waited, own_event
from interlock.bridge.triggers import RunTrigger
from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError


class TemporalWorkflowSensor(BaseSensorOperator):
    """Waits until a workflow has ended; its result is the sensor's value. A workflow that failed fails the sensor.

    workflow_id: of the workflow; its latest execution. must_exist: fail when there is none; else wait for it to be
    started, too. deferrable: the triggerer waits and no worker is held; `mode` and `poke_interval` are for a sensor
    that is not. timeout: in seconds, as in every sensor; it leaves the workflow alone.
    """

    template_fields: Sequence[str] = ("workflow_id", "temporal_conn_id")

    def __init__(
        self,
        *,
        workflow_id: str,
        temporal_conn_id: str = TemporalHook.default_conn_name,
        must_exist: bool = True,
        deferrable: bool = True,
        xcom_limit_bytes: int = XCOM_LIMIT_BYTES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.workflow_id = workflow_id
        self.temporal_conn_id = temporal_conn_id
        self.must_exist = must_exist
        self.deferrable = deferrable
        self.xcom_limit_bytes = xcom_limit_bytes

    def execute(self, context: Any) -> Any:
        """Wait."""
        if not self.deferrable:
            return super().execute(context)
        ending = self._ending()
        return self._value(ending) if ending else self._defer()

    def poke(self, context: Any) -> PokeReturnValue:
        """Whether the workflow has ended."""
        ending = self._ending()
        if ending is None:
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._value(ending))

    def resume(self, context: Any, event: dict[str, Any], waited: dict[str, Any] | None = None) -> Any:
        """Look at the workflow again, as the trigger has hinted. waited: as it has deferred."""
        own, event = own_event(waited, event)
        if event.get("error"):
            raise BadTaskError(event["error"])
        try:
            ending = self._ending()
        except TemporalUnavailableError as error:  # The triggerer waits until it is there again.
            self.log.warning("%s", error)
            ending = None
        if ending is not None:
            return self._value(ending)
        if event["kind"] == "timeout":
            stands = "was still open" if self.must_exist else "had not ended, or never began,"
            raise WaitTimedOutError(
                f"Workflow {self.workflow_id!r} {stands} after {timedelta(seconds=self.timeout)}, this sensor's "
                "timeout. It is left alone."
            ).about(self.workflow_id)
        return self._defer(own)

    def _defer(self, waited: Waited | None = None) -> None:
        now = datetime.now(UTC)
        waited = waited or Waited(
            temporal_conn_id=self.temporal_conn_id,
            workflow_id=self.workflow_id,
            run_id="",
            began_at=now,
            deadline=now + timedelta(seconds=self.timeout),
            on_kill="leave",
            on_stuck="wait",
            must_exist=self.must_exist,
        )
        known = waited.model_dump(mode="json")
        self.defer(trigger=RunTrigger(known), method_name="resume", kwargs={"waited": known})

    def _ending(self) -> Ending | None:
        try:
            return TemporalHook(self.temporal_conn_id).run(lambda client: ending_of(client, self.workflow_id))
        except RefusedError as error:
            if not self.must_exist:
                return None
            raise RunVanishedError(
                f"There is no workflow {self.workflow_id!r}: it was never started, or its retention time is over. "
                "Set must_exist=False to wait for one that is started later."
            ).about(self.workflow_id) from error
        except MisconfiguredError as error:
            raise BadTaskError(str(error)) from error
        except UnavailableError as error:
            raise TemporalUnavailableError(str(error)) from error

    def _value(self, ending: Ending) -> Any:
        if ending.status != "completed":
            raise ending.error()
        return xcom_value(ending, self.xcom_limit_bytes)
