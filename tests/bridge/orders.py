"""Workflows that are no agents, for the operators which run any. A test runs their worker itself."""

from datetime import timedelta
from typing import NoReturn

from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from interlock.bridge.identity import MEMO_TASK


class Order(BaseModel):
    """What is bought, and how many."""

    lines: dict[str, int]


@activity.defn
async def pack(is_final: bool) -> NoReturn:
    raise ApplicationError("out of boxes", type="OutOfBoxesError", non_retryable=is_final)


@workflow.defn
class Deliver:
    """Ends as it is told: at its start, or later by a signal. One that is started by a later try completes."""

    def __init__(self) -> None:
        self._end = ""

    @workflow.signal
    def end(self, how: str) -> None:
        self._end = how

    @workflow.run
    async def run(self, end: str) -> str:
        if workflow.memo_value(MEMO_TASK, {}).get("try_number", 1) > 1:
            return "delivered at last"
        self._end = self._end or end
        await workflow.wait_condition(lambda: bool(self._end))
        if self._end == "complete":
            return "delivered"
        await workflow.execute_activity(
            pack,
            self._end == "fail for good",
            start_to_close_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=1), maximum_attempts=2),
        )
        return ""


@workflow.defn
class Price:
    """What an order costs."""

    @workflow.run
    async def run(self, order: Order, each: int) -> dict[str, int]:
        return {name: count * each for name, count in order.lines.items()}
