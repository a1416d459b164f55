"""The approval gate: where a tool call waits inside the run until somebody has decided."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import names
    from interlock.contracts.canonical import digest
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.failures import bounded
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
        Ticket,
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
_VERDICTS: dict[RequestKind, tuple[Verdict, ...]] = {
    "approval": ("approve", "reject"),
    "tool_result": ("reject",),
    "outcome": ("happened", "not_happened", "give_up"),
    "budget": ("approve", "reject"),
}
_WAITS_FOR: dict[RequestKind, str] = {
    "approval": "waits for an approval, not for a result: approve or reject it with `interlock approvals decide`.",
    "tool_result": "waits for the result of a tool call, not for an approval. "
    "Report the result with `interlock tools complete`, or reject it.",
    "outcome": "asks whether an approved call happened. Answer with `interlock approvals decide` and one of "
    "--happened, --not-happened and --give-up.",
    "budget": "asks whether to extend the budget: approve or reject it with `interlock approvals decide`.",
}


@dataclass
class _Waiting:
    call: GatedCall
    request: ApprovalRequest
    fingerprint: str
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
        """Wait for the ruling on a call: judges first, then a person. Cancelling the run withdraws the request."""
        # Numbered before anything is awaited, so that numbers follow the order of the calls.
        self.asked += 1
        request_id = str(self.asked)
        fingerprint = await _fingerprint(call, request_id)
        judge = None if self._reuse.is_decided(call.arguments) else call.judge
        if judge is not None:
            async with self._ledger.model_call(call.agent_path):
                verdict = await judge()
                self._ledger.judged(verdict.usage)
            if ruling := self._judged(call, fingerprint, request_id, verdict):
                return ruling
        waiting = self._open(call, fingerprint, request_id)
        try:
            self._settle_as_before(waiting)
            return await waiting.answer
        finally:
            if self._waiting.pop(waiting.request.request_id, None):
                meters.settled(waiting.request, "withdrawn")
                self._record(waiting.request.request_id, call, None)
                self._changed()

    def check_decision(self, decision: Decision) -> None:
        """Raise RefusedError, saying why, when the decision would change nothing."""
        waiting = self._find(decision.request_id, decision.digest)
        if decision.verdict not in _VERDICTS[waiting.request.kind]:
            raise RefusedError(f"Request {decision.request_id!r} {_WAITS_FOR[waiting.request.kind]}")
        if decision.result is not None and decision.verdict != "happened":
            raise RefusedError("Only a call that happened has a result.")
        if decision.arguments is not None:
            if decision.verdict != "approve":
                raise RefusedError("Only an approval takes arguments. Reject with a reason.")
            _edited(waiting.call, decision.arguments)

    def check_completion(self, completion: ToolCompletion) -> None:
        """Raise RefusedError, saying why, when the result would change nothing."""
        waiting = self._find(self._request_of(completion.call_id), completion.digest)
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
        except RefusedError as error:  # Then a person is asked.
            workflow.logger.info("ruling.not_reused", extra={"request_id": request_id, "why": str(error)})

    def _open(self, call: GatedCall, fingerprint: str, request_id: str) -> _Waiting:
        info = workflow.info()
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
            requested_at=workflow.now(),
        )
        waiting = _Waiting(call, request, fingerprint, asyncio.get_running_loop().create_future())
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

    def _find(self, request_id: str, shown_digest: str) -> _Waiting:
        waiting = self._waiting.get(request_id)
        if waiting is None:
            raise RefusedError(self._why_not_open(request_id))
        if shown_digest and shown_digest != waiting.request.digest:
            raise RefusedError(
                f"Request {request_id!r} is not the one this answer was given for: the run, the call or the tool has "
                "changed since. Look at it again with `interlock approvals list`."
            )
        return waiting

    def _why_not_open(self, request_id: str) -> str:
        for settled in reversed(self.settled):
            if settled.request_id == request_id:
                who = f" by {settled.by}" if settled.by else ""
                return (
                    f"Request {request_id!r} is already {settled.outcome}{who}, at {settled.at:%Y-%m-%d %H:%M:%S} UTC."
                )
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


def _edited(call: GatedCall, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return call.check(unmasked(arguments, call.arguments))
    except ValueError as error:
        raise RefusedError(
            f"The edited arguments do not fit {call.tool!r}: {error}. The request stays open."
        ) from None  # Its cause quotes the arguments.


async def _fingerprint(call: GatedCall, request_id: str) -> str:
    # An activity, so that the answer is in the history: worker code that has changed since must find the fingerprint
    # that the reviewer's answer was bound to, not its own. Not a local one: without a workflow cache those get lost.
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
        ),
        result_type=ToolDescription,
        start_to_close_timeout=timedelta(seconds=10),
        summary=f"ask about {call_label(call.tool, call.arguments)}",
    )
    try:
        # The shield gives way to a cancelled scope of a framework's; the handle alone would swallow its cancellations.
        description: ToolDescription = await asyncio.shield(handle)
    except asyncio.CancelledError:
        handle.cancel()
        raise
    return description.fingerprint
