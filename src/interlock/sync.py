"""The client for code that is not async."""

import asyncio
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from interlock.client import Client
from interlock.contracts.payloads import ApprovalRequest, Receipt, RetryReceipt, RunOutput
from interlock.contracts.sessions import SessionState
from interlock.journal import Journal, RunEvent, Step
from interlock.run import RunReport
from interlock.watchdog import RunTrouble


class SyncClient:
    """`Client` for scripts and notebooks without a running event loop: every method waits for its answer.

    Takes what `Client.connect` takes. Use it from one thread; close it, or use it with `with`.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        self._loop = asyncio.Runner()
        self._client = self._loop.run(Client.connect(address, **options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._loop.close()

    def start(self, agent: str, prompt: Any, **options: Any) -> str:
        """Start a run, or find the one that is there, and return its id. See `Client.start`."""
        return self._loop.run(self._client.start(agent, prompt, **options)).id

    def result(self, workflow_id: str) -> RunOutput:
        """Wait for what a run gives back. See `Run.result`."""
        return self._loop.run(self._client.attach(workflow_id).result())

    def report(self, workflow_id: str) -> RunReport:
        """How a run stands. See `Run.report`."""
        return self._loop.run(self._client.attach(workflow_id).report())

    def approvals(self) -> list[ApprovalRequest]:
        """The open requests of all runs. See `Client.approvals`."""
        return self._loop.run(self._client.approvals())

    def decide(self, workflow_id: str, request_id: str, **decision: Any) -> Receipt:
        """Answer a request. See `Run.decide`."""
        return self._loop.run(self._client.attach(workflow_id).decide(request_id, **decision))

    def complete_tool_call(self, workflow_id: str, call_id: str, **completion: Any) -> Receipt:
        """Report the result of a call that ran outside. See `Run.complete_tool_call`."""
        return self._loop.run(self._client.attach(workflow_id).complete_tool_call(call_id, **completion))

    def retry(self, workflow_id: str, **retry: Any) -> RetryReceipt:
        """Have what is stuck run again. See `Run.retry`."""
        return self._loop.run(self._client.attach(workflow_id).retry(**retry))

    def session(self, session_id: str) -> SessionState:
        """How a session stands. See `Client.session`."""
        return self._loop.run(self._client.session(session_id))

    def conversation(self, session_id: str) -> list[Any]:
        """The messages of a session. See `Client.conversation`."""
        return self._loop.run(self._client.conversation(session_id))

    def cancel(self, workflow_id: str) -> None:
        """Ask a run to end. See `Run.cancel`."""
        self._loop.run(self._client.attach(workflow_id).cancel())

    def steps(self, workflow_id: str) -> list[Step]:
        """The steps of a run. See `Run.steps`."""
        return self._loop.run(self._client.attach(workflow_id).steps())

    def events(self, workflow_id: str, *, from_offset: int = 0) -> Iterator[RunEvent]:
        """Follow a run's events to its end. See `Run.events`."""
        stream = self._client.attach(workflow_id).events(from_offset=from_offset)

        async def following() -> RunEvent | None:
            return await anext(stream, None)

        try:
            while (event := self._loop.run(following())) is not None:
                yield event
        finally:
            self._loop.run(stream.aclose())

    def troubled_runs(self, **options: Any) -> list[RunTrouble]:
        """The open runs that do not get on, and why. See `Client.troubled_runs`."""
        return self._loop.run(self._client.troubled_runs(**options))

    def journal(self, workflow_id: str, *, run_id: str | None = None, deep: bool = False) -> Journal:
        """All that a run did. See `Client.journal`."""
        return self._loop.run(self._client.journal(workflow_id, run_id=run_id, deep=deep))
