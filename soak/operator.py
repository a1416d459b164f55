"""The person of the soak: answers whatever is asked, and looks into the ledger when it is not known what happened."""

import asyncio
import time
from random import Random
from typing import Any

from temporalio.service import RPCError

from interlock import Client, RefusedError, UnavailableError
from interlock.contracts import names
from interlock.contracts.payloads import ApprovalRequest
from soak.evidence import Question
from soak.ledger import Ledger
from soak.script import EDITED_AMOUNT, REJECTED, VERDICTS, step_name


class Operator:
    """Answers every open request on the client's task queue. questions: those it has seen, each once."""

    def __init__(self, client: Client, ledger: Ledger, chance: Random) -> None:
        self._client = client
        self._ledger = ledger
        self._chance = chance
        self._seen: dict[tuple[str, str], Question] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}

    @property
    def questions(self) -> list[Question]:
        """What was asked so far."""
        return list(self._seen.values())

    async def work(self) -> None:
        """Answer until cancelled."""
        try:
            while True:
                for workflow in await self._waiting():
                    if workflow not in self._busy or self._busy[workflow].done():
                        self._busy[workflow] = asyncio.create_task(self._look(workflow))
                await asyncio.sleep(0.1)
        finally:
            for task in self._busy.values():
                task.cancel()
            await asyncio.gather(*self._busy.values(), return_exceptions=True)

    async def _waiting(self) -> list[str]:
        query = (
            f"TaskQueue = '{self._client.task_queue}' AND ExecutionStatus = 'Running' "
            f"AND {names.ATTRIBUTE_PENDING_APPROVALS} > 0"
        )
        try:
            return [execution.id async for execution in self._client.temporal.list_workflows(query)]
        except RPCError:
            return []  # The server is away.

    async def _look(self, workflow: str) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.5))
        try:
            requests = await self._client.attach(workflow).approvals()
            for request in requests:
                await self._answer(request)
        except (UnavailableError, RefusedError):
            return  # Nobody is there to ask, or the run has ended, or the answer had arrived before: look again.

    async def _answer(self, request: ApprovalRequest) -> None:
        name = f"{request.tool}/{request.arguments['order']}"
        step = step_name(request.agent_path[-1], name)
        answer = self._outcome(request, step) if request.kind == "outcome" else self._verdict(request, name)
        question = Question(
            workflow=request.workflow_id,
            request_id=request.request_id,
            kind=request.kind,
            step=step,
            said=answer["verdict"],
            at=time.monotonic(),
        )
        self._seen.setdefault((request.workflow_id, request.request_id), question)
        run = self._client.attach(request.workflow_id)
        await run.decide(request.request_id, digest=request.digest, by="soak", **answer)

    def _verdict(self, request: ApprovalRequest, name: str) -> dict[str, Any]:
        if VERDICTS[name] == "reject":
            return {"verdict": "reject", "reason": REJECTED}
        if VERDICTS[name] == "edit":
            return {"verdict": "approve", "arguments": {**request.arguments, "amount": EDITED_AMOUNT}}
        return {"verdict": "approve"}

    def _outcome(self, request: ApprovalRequest, step: str) -> dict[str, Any]:
        """What the ledger has of an approved call of which the run does not know whether it happened."""
        for line in self._ledger.lines():
            if line.event == "effect" and line.call == (request.workflow_id, step):
                return {"verdict": "happened", "result": line.result}
        return {"verdict": "not_happened"}
