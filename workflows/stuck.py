"""Where a step that has failed for good keeps its run, until somebody has the step run again."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.masking import masked_text
    from interlock.contracts.payloads import Retry, RetryReceipt, StuckStep
    from interlock.contracts.ports import FailedStep
    from interlock.workflows.reuse import Reuse

_LONGEST_MESSAGE = 1_000


@dataclass
class _Stuck:
    failed: FailedStep
    shown: StuckStep
    retry: Retry | None = None


class StuckSteps:
    """Holds the stuck steps of one run. Each runs again once it is asked for; until then the run stands, for a while.

    seconds: for how long; 0 ends the run at once. changed: called after every change of what is stuck.
    agents_of, end_agents: see `Recovery`. reuse: what a forked run takes over. before: how many steps were stuck in
    earlier executions.
    """

    def __init__(
        self,
        seconds: float,
        changed: Callable[[], None],
        agents_of: Callable[[str], tuple[int, int]],
        end_agents: Callable[[str], Coroutine[Any, Any, None]],
        reuse: Reuse,
        before: int,
    ) -> None:
        self._seconds = seconds
        self._changed = changed
        self.agents_of = agents_of
        self.end_agents = end_agents
        self._stuck: dict[str, _Stuck] = {}
        self._reuse = reuse
        self.number = before
        """How many steps have been stuck so far."""

    @property
    def steps(self) -> list[StuckStep]:
        """The stuck steps, oldest first."""
        return [stuck.shown for stuck in self._stuck.values()]

    @property
    def keeps(self) -> bool:
        """See `Recovery`."""
        return bool(self._seconds)

    async def wait(self, step: FailedStep) -> Retry:
        """See `Recovery`."""
        if step.kind == "model" and self._reuse.was_retried():
            return Retry(requested_at=workflow.now())
        if not self.keeps:
            raise step.error
        stuck = self._keep(step)
        try:
            await workflow.wait_condition(
                lambda: stuck.retry is not None,
                timeout=timedelta(seconds=self._seconds),
                timeout_summary=f"stuck: {stuck.shown.label}",
            )
        except TimeoutError:
            pass
        finally:
            self._stuck.pop(stuck.shown.step_id, None)
            self._changed()
        if stuck.retry is None:
            raise step.error
        return stuck.retry

    def check(self, retry: Retry) -> None:
        """Raise RefusedError, saying why, when nothing would run again."""
        self._check(retry, strict=True)

    def _check(self, retry: Retry, *, strict: bool) -> None:
        chosen = self._chosen(retry)
        if retry.usage_limits is None:
            return
        checks = [stuck.failed.check_limits for stuck in chosen if stuck.failed.check_limits]
        if not checks:
            raise RefusedError(
                f"New limits are no help: {chosen[0].shown.label} did not fail by a limit. Retry without them."
            )
        for check in checks:
            try:
                check(retry.usage_limits, strict)
            except ValueError as error:
                raise RefusedError(f"The new limits do not fit: {error}") from None

    def retry(self, retry: Retry) -> RetryReceipt:
        """Have stuck steps run again. Raises RefusedError when none would."""
        # A validator may not say which code it ran with, so what it has let through is looked at again here.
        self._check(retry, strict=retry.usage_limits is not None and workflow.patched(names.STRICT_LIMITS))
        chosen = self._chosen(retry)
        for stuck in chosen:
            stuck.retry = retry
        steps = tuple(stuck.shown.step_id for stuck in chosen)
        for step in steps:
            del self._stuck[step]  # At once, so that a second request is told that nothing is stuck.
        self._changed()
        return RetryReceipt(workflow_id=workflow.info().workflow_id, steps=steps)

    def _keep(self, step: FailedStep) -> _Stuck:
        kind, message = _told(step.error)
        now = workflow.now()
        self.number += 1
        shown = StuckStep(
            step_id=str(self.number),
            kind=step.kind,
            agent_path=step.agent_path,
            label=step.label,
            error_type=kind,
            message=masked_text(message)[:_LONGEST_MESSAGE],
            since=now,
            ends_at=now + timedelta(seconds=self._seconds),
        )
        stuck = self._stuck[shown.step_id] = _Stuck(step, shown)
        self._changed()
        return stuck

    def _chosen(self, retry: Retry) -> list[_Stuck]:
        if not self._stuck:
            raise RefusedError("No step of this run is stuck: there is nothing to retry.")
        if not retry.step:
            return list(self._stuck.values())
        if retry.step not in self._stuck:
            raise RefusedError(f"Step {retry.step!r} is not stuck; stuck: {', '.join(self._stuck)}.")
        return [self._stuck[retry.step]]


def _told(error: BaseException) -> tuple[str, str]:
    """The type and the message of what is at the bottom of a failure."""
    while isinstance(error, FailureError) and error.cause is not None:
        error = error.cause
    if isinstance(error, ApplicationError):
        return error.type or type(error).__name__, error.message
    return type(error).__name__, str(error)
