"""The approval gate: where a tool call waits inside the run until somebody has decided."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.canonical import digest
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.failures import bounded
    from interlock.contracts.limits import due_at, escalated, standing, timer_summary, unanswered
    from interlock.contracts.masking import call_label, masked, unmasked
    from interlock.contracts.payloads import (
        Account,
        ApprovalRequest,
        Carried,
        Decision,
        JudgeVerdict,
        Outcome,
        Receipt,
        RequestKind,
        Settled,
        Stage,
        Ticket,
        TimeLimit,
        ToolCompletion,
        ToolDescription,
        ToolQuestion,
        Usage,
        Verdict,
    )
    from interlock.contracts.ports import CallsInside, GatedCall, ModelCall, Ruling
    from interlock.workflows import meters
    from interlock.workflows.ledger import Ledger
    from interlock.workflows.reuse import Reuse

_SETTLED_KEPT = 200
_REASON_KEPT = 500  # In characters.
_SHORTEST_TIMER = timedelta(milliseconds=1)  # So that each stage that is reached, however late, is in the history.
_VERDICTS: dict[RequestKind, tuple[Verdict, ...]] = {
    "approval": ("approve", "reject"),
    "tool_result": ("reject",),
    "outcome": ("happened", "not_happened", "give_up"),
    "budget": ("approve", "reject"),
    "output": ("approve", "reject", "give_up"),
}
_WAITS_FOR: dict[RequestKind, str] = {
    "approval": "waits for an approval, not for a result: approve or reject it with `interlock approvals decide`.",
    "tool_result": "waits for the result of a tool call, not for an approval. "
    "Report the result with `interlock tools complete`, or reject it.",
    "outcome": "asks whether an approved call happened. Answer with `interlock approvals decide` and one of "
    "--happened, --not-happened and --give-up.",
    "budget": "asks whether to extend the budget: approve or reject it with `interlock approvals decide`.",
    "output": "asks whether this is the run's output. Answer with `interlock approvals decide` and one of --approve, "
    "--reject and --give-up.",
}


@dataclass
class _Waiting:
    call: GatedCall
    request: ApprovalRequest
    fingerprint: str
    limit: TimeLimit
    answer: "asyncio.Future[Ruling]"


class ApprovalGate:
    """Holds the open requests of one run. The first valid answer to one wins; anything else changes nothing.

    changed: called after every change of what is open, so that whoever shows the run can show the truth.
    reuse: what a forked run takes over. carried: from an earlier execution. ledger: of the run.
    """

    def __init__(self, changed: Callable[[], None], reuse: Reuse, carried: Carried, ledger: Ledger) -> None:
        self.settled: list[Settled] = list(carried.settled)
        self._ledger = ledger
        self._changed = changed
        self._reuse = reuse
        self._waiting: dict[str, _Waiting] = {}
        self.asked = carried.asked

    @property
    def requests(self) -> list[ApprovalRequest]:
        """The open requests, by number."""
        return sorted((waiting.request for waiting in self._waiting.values()), key=lambda one: int(one.request_id))

    @property
    def account(self) -> Account | None:
        """See `Gate`."""
        return self._ledger.account

    def model_call(self, agent_path: tuple[str, ...]) -> AbstractAsyncContextManager[ModelCall]:
        """See `Gate`."""
        return self._ledger.model_call(agent_path)

    def step(self) -> AbstractContextManager[CallsInside]:
        """See `Gate`."""
        return self._ledger.step()

    def count(self, usage: Usage) -> None:
        """Take the usage of the run's own agents so far."""
        self._ledger.count(usage)

    async def ask(self, call: GatedCall) -> Ruling:
        """See `Gate`. Judges come first, then people, whose time is limited from the opening of the request."""
        # Numbered before anything is awaited, so that numbers follow the order of the calls.
        self.asked += 1
        request_id = str(self.asked)
        described = await _described(call, request_id)
        fingerprint = described.fingerprint
        judge = None if self._reuse.is_decided(call.arguments) else call.judge
        if judge is not None:
            async with self._ledger.model_call(call.agent_path):
                verdict = await judge()
                self._ledger.judged(verdict.usage)
            if ruling := self._judged(call, fingerprint, request_id, verdict):
                return ruling
        waiting = self._open(call, fingerprint, request_id, described.time_limit or TimeLimit())
        try:
            self._settle_as_before(waiting)
            return await self._answered(waiting)
        finally:
            if self._waiting.pop(waiting.request.request_id, None):
                meters.settled(waiting.request, "withdrawn")
                self._record(waiting.request.request_id, call, None)
                self._changed()

    def check_decision(self, decision: Decision) -> None:
        """Raise RefusedError, saying why, when the decision would change nothing."""
        waiting = self._find(decision.request_id, decision.digest, decision.decided_at)
        if decision.verdict not in _VERDICTS[waiting.request.kind]:
            raise RefusedError(f"Request {decision.request_id!r} {_WAITS_FOR[waiting.request.kind]}")
        if waiting.request.kind == "output" and decision.verdict == "reject" and not decision.reason.strip():
            raise RefusedError("Say what is to be changed: the agent is given the reason, and goes on by it.")
        if decision.result is not None and decision.verdict != "happened":
            raise RefusedError("Only a call that happened has a result.")
        if decision.arguments is not None:
            if decision.verdict != "approve":
                raise RefusedError("Only an approval takes arguments. Reject with a reason.")
            _edited(waiting.call, decision.arguments)

    def check_completion(self, completion: ToolCompletion) -> None:
        """Raise RefusedError, saying why, when the result would change nothing."""
        waiting = self._find(self._request_of(completion.call_id), completion.digest, completion.completed_at)
        if waiting.request.kind != "tool_result":
            raise RefusedError(f"Call {completion.call_id!r} {_WAITS_FOR[waiting.request.kind]}")

    def decide(self, decision: Decision) -> Receipt:
        """Settle an open request. Raises RefusedError when the decision changes nothing."""
        self.check_decision(decision)
        waiting = self._waiting[decision.request_id]
        call = waiting.call
        reason = decision.reason.strip()
        if decision.verdict == "reject":
            ruling = Ruling("rejected", call.arguments, reason=reason)
        elif decision.verdict == "happened":
            ruling = Ruling("happened", call.arguments, result=decision.result)
        elif decision.verdict == "give_up":
            ruling = Ruling("given_up", call.arguments, reason=reason)
        else:
            outcome: Outcome = "approved" if decision.verdict == "approve" else "not_happened"
            arguments = call.arguments if decision.arguments is None else _edited(call, decision.arguments)
            ruling = self._approval(outcome, waiting.request.request_id, call, waiting.fingerprint, arguments)
        return self._settle(waiting, ruling, by=decision.decided_by, reason=decision.reason)

    def complete(self, completion: ToolCompletion) -> Receipt:
        """Give a waiting call its result. Raises RefusedError when the result changes nothing."""
        self.check_completion(completion)
        waiting = self._waiting[self._request_of(completion.call_id)]
        if completion.error is not None:
            ruling = Ruling("failed", waiting.call.arguments, reason=completion.error)
        else:
            ruling = Ruling("completed", waiting.call.arguments, result=completion.result)
        return self._settle(waiting, ruling, by=completion.completed_by, reason=completion.error or "")

    async def _answered(self, waiting: _Waiting) -> Ruling:
        """The answer, or what the request's limit makes of it."""
        for passed, stage in enumerate(waiting.limit.stages, start=1):
            if not await _reaches(waiting, stage):
                break
            if stage.then == "escalate":
                self._escalate(waiting, stage, passed)
            else:
                self._time_out(waiting)
        ruling = await waiting.answer
        if ruling.outcome == "timed_out" and waiting.request.then == "fail":
            raise _unanswered(waiting.request, ruling)
        return ruling

    def _escalate(self, waiting: _Waiting, stage: Stage, passed: int) -> None:
        request = waiting.request
        change = standing(waiting.limit, request.requested_at, passed) | escalated(request, stage, workflow.now())
        waiting.request = request.model_copy(update=change)
        meters.escalated(request)
        self._changed()

    def _time_out(self, waiting: _Waiting) -> None:
        reason = unanswered(waiting.request)
        self._settle(waiting, Ruling("timed_out", waiting.call.arguments, reason=reason), by="", reason=reason)

    def _settle_as_before(self, waiting: _Waiting) -> None:
        """Settle the request of a forked run the way it was settled in the run it was forked from."""
        reused = self._reuse.ruling(waiting.call.arguments)
        if reused is None:
            return
        request_id = waiting.request.request_id
        try:
            if reused.decision:
                self.decide(reused.decision.model_copy(update={"request_id": request_id, "digest": ""}))
            if reused.completion:
                self.complete(reused.completion.model_copy(update={"call_id": request_id, "digest": ""}))
            if reused.denied_by_limit and waiting.request.then == "deny":
                self._time_out(waiting)
        except RefusedError as error:  # Then a person is asked.
            workflow.logger.info("ruling.not_reused", extra={"request_id": request_id, "why": str(error)})

    def _open(self, call: GatedCall, fingerprint: str, request_id: str, limit: TimeLimit) -> _Waiting:
        info, now = workflow.info(), workflow.now()
        bound = (info.run_id, request_id, call.agent_path, call.toolset, call.tool)
        request = ApprovalRequest(
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            request_id=request_id,
            kind=call.kind,
            agent_path=call.agent_path,
            tool=call.tool,
            description=call.description,
            call_id=call.call_id,
            arguments=masked(call.arguments),
            digest=digest([*bound, call.call_id, call.arguments, fingerprint]),
            metadata=masked(call.metadata),
            question=call.question,
            requested_at=now,
            **standing(limit, now, 0),
        )
        waiting = _Waiting(call, request, fingerprint, limit, asyncio.get_running_loop().create_future())
        self._waiting[request.request_id] = waiting
        meters.requested(request)
        self._changed()
        return waiting

    def _judged(self, call: GatedCall, fingerprint: str, request_id: str, verdict: JudgeVerdict) -> Ruling | None:
        if verdict.verdict == "approve":
            try:
                arguments = call.arguments if verdict.arguments is None else _edited(call, verdict.arguments)
            except RefusedError:
                return None  # A judge that edits a call into something invalid is unsure: a person is asked.
            ruling = self._approval("approved", request_id, call, fingerprint, arguments)
        elif verdict.verdict == "reject":
            ruling = Ruling("rejected", call.arguments, reason=verdict.reason.strip())
        elif verdict.verdict == "complete" and call.kind == "tool_result":
            ruling = Ruling("completed", call.arguments, result=verdict.result)
        elif verdict.verdict == "fail" and call.kind == "tool_result":
            ruling = Ruling("failed", call.arguments, reason=verdict.reason)
        else:
            return None
        self._record(request_id, call, ruling, by=verdict.by, reason=verdict.reason)
        return ruling

    def _approval(
        self, outcome: Outcome, request_id: str, call: GatedCall, fingerprint: str, arguments: dict[str, Any]
    ) -> Ruling:
        ticket = Ticket(
            request_id=request_id,
            agent=call.agent_path[-1],
            toolset=call.toolset,
            tool=call.tool,
            arguments_digest=digest(arguments),
            fingerprint=fingerprint,
        )
        return Ruling(outcome, arguments, edited=digest(arguments) != digest(call.arguments), ticket=ticket)

    def _settle(self, waiting: _Waiting, ruling: Ruling, *, by: str, reason: str) -> Receipt:
        del self._waiting[waiting.request.request_id]
        waiting.answer.set_result(ruling)
        if waiting.call.ruled:
            waiting.call.ruled(waiting.request.request_id, ruling, by)
        meters.settled(waiting.request, ruling.outcome)
        self._record(waiting.request.request_id, waiting.call, ruling, by=by, reason=reason)
        self._changed()
        return Receipt(
            workflow_id=waiting.request.workflow_id, request_id=waiting.request.request_id, outcome=ruling.outcome
        )

    def _record(
        self, request_id: str, call: GatedCall, ruling: Ruling | None, *, by: str = "", reason: str = ""
    ) -> None:
        settled = Settled(
            request_id=request_id,
            tool=call.tool,
            label=call_label(call.tool, ruling.arguments if ruling else call.arguments),
            outcome=ruling.outcome if ruling else "withdrawn",
            by=by,
            at=workflow.now(),
            reason=bounded(reason.strip(), _REASON_KEPT),
            edited=ruling is not None and ruling.edited,
        )
        # Bounded, because a query returns it whole; the history has every decision.
        self.settled = [*self.settled[-(_SETTLED_KEPT - 1) :], settled]

    def _find(self, request_id: str, shown_digest: str, answered_at: datetime) -> _Waiting:
        waiting = self._waiting.get(request_id)
        if waiting is None:
            raise RefusedError(self._why_not_open(request_id))
        if shown_digest and shown_digest != waiting.request.digest:
            raise RefusedError(
                f"Request {request_id!r} is not the one this answer was given for: the run, the call or the tool has "
                "changed since. Look at it again with `interlock approvals list`."
            )
        expires_at = waiting.request.expires_at
        # The run may have been without a worker when its time was over. What was answered before that counts, as far
        # as the sender's clock says so; the limit settles the request before anything else does.
        if expires_at is not None and workflow.now() >= expires_at and answered_at >= expires_at:
            raise RefusedError(
                f"Request {request_id!r} was not answered in time: its limit was at {expires_at:%Y-%m-%d %H:%M:%S} UTC."
            )
        return waiting

    def _why_not_open(self, request_id: str) -> str:
        for settled in reversed(self.settled):
            if settled.request_id == request_id and settled.outcome == "timed_out":
                return f"Request {request_id!r} was not answered in time, at {_time(settled)}: {settled.reason}"
            if settled.request_id == request_id:
                who = f" by {settled.by}" if settled.by else ""
                return f"Request {request_id!r} is already {settled.outcome}{who}, at {_time(settled)}."
        known = ", ".join(request.request_id for request in self.requests) or "none"
        return f"Request {request_id!r} is not open; open: {known}. See `interlock approvals list`."

    def _request_of(self, call_id: str) -> str:
        if call_id in self._waiting:
            return call_id
        matches = list(self._by_call(call_id))
        if len(matches) > 1:
            raise RefusedError(f"Call id {call_id!r} fits requests {', '.join(matches)}; name one of them instead.")
        return matches[0] if matches else call_id

    def _by_call(self, call_id: str) -> Iterator[str]:
        return (request_id for request_id, waiting in self._waiting.items() if waiting.call.call_id == call_id)


async def _reaches(waiting: _Waiting, stage: Stage) -> bool:
    """Wait for a stage. False when the request is settled before, or at the same moment."""
    if not waiting.answer.done():
        left = due_at(stage, waiting.request.requested_at) - workflow.now()
        with suppress(TimeoutError):
            await workflow.wait_condition(
                waiting.answer.done,
                timeout=max(left, _SHORTEST_TIMER),
                timeout_summary=timer_summary(waiting.request.request_id, stage),
            )
    return not waiting.answer.done()


def _edited(call: GatedCall, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return call.check(unmasked(arguments, call.arguments, in_text=call.kind == "output"))
    except ValueError as error:
        what = f"edited arguments do not fit {call.tool!r}"
        if call.kind == "output":
            what = f"edited output does not fit agent {call.agent_path[-1]!r}"
        # Not `from error`: its cause quotes the arguments.
        raise RefusedError(f"The {what}: {error}. The request stays open.") from None


def _time(settled: Settled) -> str:
    return f"{settled.at:%Y-%m-%d %H:%M:%S} UTC"


def _unanswered(request: ApprovalRequest, ruling: Ruling) -> ApplicationError:
    """The failure of a run that its limit ends."""
    return ApplicationError(
        f"Request {request.request_id}, about a call of {request.tool!r}, was open from "
        f"{request.requested_at:%Y-%m-%d %H:%M:%S} to {workflow.now():%Y-%m-%d %H:%M:%S} UTC. {ruling.reason} "
        "To have it asked again, fork the run (`interlock runs fork`) or start it anew.",
        type=names.APPROVAL_TIMED_OUT,
        non_retryable=True,
    )


async def _described(call: GatedCall, request_id: str) -> ToolDescription:
    # An activity, so that the answer is in the history: worker code that has changed since must find the fingerprint
    # that the reviewer's answer was bound to, and the limit that the request was opened with, not its own. Not a local
    # one: without a workflow cache those get lost.
    handle = workflow.start_activity(
        names.DESCRIBE_TOOL,
        ToolQuestion(
            agent=call.agent_path[-1],
            toolset=call.toolset,
            tool=call.tool,
            request_id=request_id,
            kind=call.kind,
            agent_path=call.agent_path,
            call_id=call.call_id,
            arguments=call.arguments,
            time_limit=call.time_limit,
        ),
        result_type=ToolDescription,
        start_to_close_timeout=timedelta(seconds=10),
        summary=f"ask about {call_label(call.tool, call.arguments)}",
    )
    try:
        # The shield gives way to a cancelled scope of a framework's; the handle alone would swallow its cancellations.
        described: ToolDescription = await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.cancel()
        raise
    return described
