"""Agents that the code of an activity runs: each is a run of its own, which a later attempt finds again."""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar

import anyio
from temporalio import activity
from temporalio.exceptions import ApplicationError

from interlock.activities.own_time import waiting_for_others
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.errors import RunFailedError
from interlock.contracts.payloads import Account, Json, Parent, RunInput, RunOutput
from interlock.contracts.ports import SubRuns


class Delegation:
    """Starts the runs of agents for the code of activities, and waits for their ends.

    failed: the framework's error, from its message, for an agent whose run ended without an output.
    """

    def __init__(self, sub_runs: SubRuns | None, failed: Callable[[str], Exception]) -> None:
        self._sub_runs = sub_runs
        self._failed = failed

    async def run(self, agent: str, make: Callable[[Parent, Account | None, str], RunInput]) -> RunOutput:
        """Run the agent as a run of its own, below that of the activity. make: its input from `parent`, `account` and
        `key_root`, as in `RunInput`.

        The id of the new run comes from the key of the tool's call, so that a later attempt attaches to it, and so does
        the call when it is run again by hand. Raises ApplicationError (`BudgetUsedUpError`, not retried) when it ended
        by the budget, and what `failed` makes when it ended without an output for another reason.
        """
        info = activity.info()
        assert self._sub_runs
        assert info.workflow_id
        assert info.workflow_run_id
        parent = Parent(workflow_id=info.workflow_id, run_id=info.workflow_run_id, agent_path=_path.get())
        key, number = _key.get(), next(_numbers.get())
        workflow_id = f"{info.workflow_id}/{agent}{names.sub_runs_place(key)}{number}"
        run = make(parent, _account.get(), digest([key, agent, number])[:32])
        with waiting_for_others():
            try:
                return await self._sub_runs.run(workflow_id, run, not_before=info.scheduled_time)
            except RunFailedError as error:
                if error.error_type == names.BUDGET_USED_UP:
                    # The budget is that of this run too: it ends by it, whatever its tool would make of the error.
                    raise ApplicationError(str(error), type=names.BUDGET_USED_UP, non_retryable=True) from error
                raise self._failed(f"Agent {agent!r} failed ({error.error_type or error.status}): {error}") from error
            except asyncio.CancelledError:
                with anyio.CancelScope(shield=True):
                    if await self._nobody_waits(info.workflow_id):
                        await self._sub_runs.cancel(workflow_id)
                raise

    async def _nobody_waits(self, workflow_id: str) -> bool:
        """Whether this attempt is cancelled since its run is cancelled or gone, or its tool has given the agent up.
        Otherwise, as when its worker stops, the run goes on and the next attempt finds the agent's run."""
        details = activity.cancellation_details()
        if self._sub_runs is None:
            return False
        if details is None:
            return not activity.is_worker_shutdown()
        return details.cancel_requested or (details.not_found and await self._sub_runs.is_over(workflow_id))


def begin(told: Mapping[str, Json]) -> None:
    """Have the agents that the code of this activity runs belong to its run. told: what it was told of that."""
    _numbers.set(itertools.count(1))
    _path.set(tuple(told.get("interlock_path", ())))
    _key.set(told.get("interlock_key") or _place(activity.info()))
    account = told.get("interlock_account")
    _account.set(Account.model_validate(account) if account else None)


_numbers: ContextVar[Iterator[int]] = ContextVar("interlock_sub_runs")
_path: ContextVar[tuple[str, ...]] = ContextVar("interlock_path")
_key: ContextVar[str] = ContextVar("interlock_key")
_account: ContextVar[Account | None] = ContextVar("interlock_account", default=None)


def _place(info: activity.Info) -> str:
    """What stands for the key of an activity that is no tool call."""
    return digest([info.workflow_run_id, info.activity_id])
