"""Follows one run to its end, and carries the answers of whoever decides to it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from interlock._rpc import own_failure
from interlock.client import Client
from interlock.contracts.errors import RefusedError, UnavailableError
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import ApprovalRequest, RunOutput
from interlock.demo.screen import Answer, Screen
from interlock.journal import Step
from interlock.run import Run

_SLOW_SECONDS = 2


class Follower:
    """Shows the steps of a run as they end, and what it waits for now."""

    def __init__(self, client: Client, run: Run, screen: Screen) -> None:
        self._client = client
        self._run = run
        self._screen = screen
        self._in_flight: dict[int, Step] = {}
        self._ended = 0
        self._requests: list[ApprovalRequest] = []

    async def follow(self) -> RunOutput:
        """Wait for the run's end and return what it gave back. Raises RunFailedError when it gave nothing back."""
        self._show_waiting()
        async for change in self._run.watch():
            if change.step is not None:
                self._take(change.step)
            if change.state is not None:
                self._requests = change.state.requests
            self._show_waiting()
        return await self._run.result()

    async def watch_attempts(self) -> NoReturn:
        """Say why a call is tried again while it is: its history tells only of its end."""
        while True:
            await asyncio.sleep(_SLOW_SECONDS)
            if self._in_flight:
                self._show_waiting(await self._trouble())

    async def quiet(self, *, within_seconds: float) -> None:
        """Wait until no call is in flight and each that ended is shown, but no longer than this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_seconds):
                while True:
                    steps = await self._run.steps()
                    if self._ended == len(steps) and all(step.ended_at for step in steps):
                        return
                    await asyncio.sleep(0.05)

    def _take(self, step: Step) -> None:
        if step.ended_at is None:
            self._in_flight[step.position] = step
            return
        self._in_flight.pop(step.position, None)
        self._ended += 1
        took = f"{(step.ended_at - step.scheduled_at).total_seconds():.2f} s"
        again = f", attempt {step.attempts}" if step.attempts > 1 else ""
        if step.error is None:
            self._screen.say(f"{step.summary} ({took}{again})", mark="✓", style="green")
        else:
            self._screen.say(f"{step.summary} ({took}{again}): {step.error[:300]}", mark="✗", style="red")

    def _show_waiting(self, trouble: str = "") -> None:
        things = [request_label(request) for request in self._requests]
        if things:
            more = f" and {len(things) - 1} more" if len(things) > 1 else ""
            self._screen.waits_for(f"a person, to decide {things[0]}{more}")
        elif self._in_flight:
            self._screen.waits_for(", ".join(step.summary for step in self._in_flight.values()) + trouble)
        else:
            self._screen.waits_for("the worker, to go on with the run")

    async def _trouble(self) -> str:
        description = await self._client.temporal.get_workflow_handle(self._run.id).describe()
        for pending in description.raw_description.pending_activities:
            if pending.HasField("last_failure"):
                message = own_failure(pending.last_failure).message
                return f", attempt {pending.attempt}, because: {message[:200]}"
        return ""


class Reviewer:
    """Settles the requests of a run one after the other, the oldest first.

    ask: whoever decides; the decision is recorded under `by`, the user of this process when that is None.
    before_last: called once, when a single request is open and nothing else happens.
    """

    def __init__(
        self,
        run: Run,
        screen: Screen,
        follower: Follower,
        *,
        ask: Callable[[ApprovalRequest], Awaitable[Answer]],
        by: str | None,
        before_last: Callable[[ApprovalRequest], Awaitable[None]] | None,
    ) -> None:
        self._run = run
        self._screen = screen
        self._follower = follower
        self._ask = ask
        self._by = by
        self._before_last = before_last

    async def review(self) -> NoReturn:
        """Settle whatever is asked for, until cancelled."""
        while True:
            requests = await self._open()
            if not requests:
                await asyncio.sleep(0.1)
                continue
            await self._follower.quiet(within_seconds=2)
            if len(requests) == 1:
                await self._interlude(requests[0])
            await self._settle(requests[0])

    async def _interlude(self, request: ApprovalRequest) -> None:
        before_last, self._before_last = self._before_last, None
        if before_last is not None:
            await self._follower.quiet(within_seconds=60)
            await before_last(request)

    async def _settle(self, request: ApprovalRequest) -> None:
        while (answer := await self._answer(request)) is not None:
            try:
                await self._run.decide(
                    request.request_id,
                    answer.verdict,
                    reason=answer.reason,
                    arguments=answer.arguments,
                    digest=request.digest,
                    by=self._by,
                )
            except (RefusedError, UnavailableError) as error:
                self._screen.say(str(error), mark="!", style="yellow")
                if await self._is_settled(request):
                    return
            else:
                self._screen.say(_decided(request, answer, self._by), mark="•", style="yellow")
                return

    async def _answer(self, request: ApprovalRequest) -> Answer | None:
        """The answer, or None when the request was settled from elsewhere meanwhile."""
        asking = asyncio.ensure_future(self._ask(request))
        settled = asyncio.ensure_future(self._until_settled(request))
        try:
            await asyncio.wait({asking, settled}, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                return asking.result()
            self._screen.say(f"Request {request.request_id} was settled from elsewhere.", mark="•", style="yellow")
            return None
        finally:
            asking.cancel()
            settled.cancel()
            await asyncio.gather(asking, settled, return_exceptions=True)

    async def _until_settled(self, request: ApprovalRequest) -> None:
        while True:
            await asyncio.sleep(0.5)
            if await self._is_settled(request):
                return

    async def _is_settled(self, request: ApprovalRequest) -> bool:
        requests = await self._open()
        return requests is not None and request.request_id not in {one.request_id for one in requests}

    async def _open(self) -> list[ApprovalRequest] | None:
        try:
            return await self._run.approvals()
        except (UnavailableError, RefusedError):  # No worker is there, or not yet.
            return None


def request_label(request: ApprovalRequest) -> str:
    """A request in one line."""
    return call_label(request.tool, request.arguments)


def _decided(request: ApprovalRequest, answer: Answer, by: str | None) -> str:
    who = f" by {by}" if by else ""
    if answer.verdict == "reject":
        return f"rejected{who}: {request_label(request)}{f' ({answer.reason})' if answer.reason else ''}"
    if answer.arguments is not None:
        return f"approved{who} with other arguments: {call_label(request.tool, answer.arguments)}"
    return f"approved{who}: {request_label(request)}"
