"""Steps of a run: the activities of these agents, all with the same time limits and the same way to be cancelled."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, is_cancelled_exception
from temporalio.workflow import ActivityCancellationType

from interlock.adapters._calls import HEARTBEAT_TIMEOUT, OPEN_END, CallScope, kept, shielded
from interlock.contracts import names

T = TypeVar("T")


async def step(activity: str, given: Any, kind: Any, policy: RetryPolicy) -> Any:
    """What an activity of the adapter's returns. kind: its type. policy: without what is never tried again."""
    never = [
        *(policy.non_retryable_error_types or ()),
        *(names.NOT_SERIALIZABLE, names.RESULT_TOO_LARGE, names.SUB_RUN_FAILED),
    ]
    handle = workflow.start_activity(
        activity,
        given,
        result_type=kind,
        start_to_close_timeout=OPEN_END,
        heartbeat_timeout=HEARTBEAT_TIMEOUT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        retry_policy=dataclasses.replace(policy, non_retryable_error_types=never),
    )
    return await shielded(handle)


async def until_done(scope: CallScope, label: str, make: Callable[[], Awaitable[T]]) -> T:
    """What a step that is no call comes to. One that has failed for good keeps the run until it is to run again."""
    while True:
        try:
            return await make()
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            await kept(scope, label, error)
