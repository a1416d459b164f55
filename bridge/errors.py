"""How tasks of the bridge fail. Airflow's retry policies match on these types.

| error | retried | what to do next |
|---|---|---|
| RunFailedError | yes | nothing: the next try goes on where the run stopped |
| RunFailedForGoodError | no | change what the message names, then clear the task |
| RunStuckError | yes | the next try runs the step that failed again, in place; `interlock runs retry` does it at once |
| RunCancelledError, RunTerminatedError, RunTimedOutError | yes | somebody, or Temporal, ended the run |
| WaitTimedOutError | yes | the task's own time was over |
| InputChangedError | no | see `on_changed_input` |
| ForeignRunError | no | take another workflow id |
| RunVanishedError | no | see `on_vanished_run` |
| NotRunningError | yes | no open workflow has the id that a signal is for, or not yet |
| BadTaskError | no | an argument of the task has the wrong form |
| ApprovalsDagError | yes | the approvals Dag is missing, or cannot run; the agent's run waits |
| TemporalUnavailableError | yes | Temporal, or its worker, did not answer |
"""

from typing import Self

from interlock.bridge._airflow import AirflowException, AirflowFailException


class _AboutRun:
    """workflow_id, run_id: of the run; empty when there is none. error_type: of what ended it, by Temporal's name."""

    workflow_id: str = ""
    run_id: str = ""
    error_type: str = ""

    def about(self, workflow_id: str, run_id: str = "", error_type: str = "") -> Self:
        """Say which run it is about."""
        self.workflow_id, self.run_id, self.error_type = workflow_id, run_id, error_type
        return self


class RunFailedError(_AboutRun, AirflowException):
    """The run failed, and trying again can help."""


class RunFailedForGoodError(_AboutRun, AirflowFailException):
    """The run failed in a way that no retry helps against."""


class RunCancelledError(_AboutRun, AirflowException):
    """Somebody cancelled the run."""


class RunTerminatedError(_AboutRun, AirflowException):
    """Somebody terminated the run."""


class RunTimedOutError(_AboutRun, AirflowException):
    """The run took longer than Temporal let it."""


class RunStuckError(_AboutRun, AirflowException):
    """A step of the run has failed for good, and the run waits to be retried; nothing of it is lost."""


class WaitTimedOutError(_AboutRun, AirflowException):
    """The task's own time was over before the run's end."""


class InputChangedError(_AboutRun, AirflowFailException):
    """The run of this task was started with another input than the task has now."""


class ForeignRunError(_AboutRun, AirflowFailException):
    """The workflow id belongs to a workflow that this task did not start."""


class RunVanishedError(_AboutRun, AirflowFailException):
    """Temporal does not know the run any more."""


class NotRunningError(_AboutRun, AirflowException):
    """A signal is for a workflow that has ended, or was not started yet."""


class BadTaskError(AirflowFailException):
    """An argument of the task has the wrong form."""


class ApprovalsDagError(AirflowException):
    """What the run asks cannot be shown in Airflow. The run waits; requests can be decided elsewhere."""


class TemporalUnavailableError(AirflowException):
    """Temporal did not answer."""
