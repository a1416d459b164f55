"""Idempotency keys: the same for one call whatever happens to it, and another for every other call."""

from typing import Any

from pydantic_ai import RunContext, Tool

from interlock import Interlock
from interlock.adapters.pydantic_ai import idempotency_key
from tests.conftest import Running
from tests.workflows.scripts import Script, agent, call


class Keys:
    """A tool that remembers the key of each time it ran."""

    def __init__(self, *, failures: int = 0) -> None:
        self.seen: list[str] = []
        self._failures = failures

    def pay(self, ctx: RunContext[Any], order: str) -> str:
        self.seen.append(idempotency_key(ctx))
        if len(self.seen) <= self._failures:
            raise OSError("try again")
        return "paid"


async def test_an_approved_call_has_one_key_from_asking_to_running(run_app: Running) -> None:
    keys = Keys()
    script = Script([call("pay", "a", order="A-1"), call("pay", "b", order="A-1")], "done")
    async with run_app(Interlock([agent(script, tools=[Tool(keys.pay, requires_approval=True)])])) as app:
        run = await app.client.start("support", "go")
        for request in await app.requests(run, 2):
            await run.decide(request.request_id, "approve")
        await run.result()

    assert len(set(keys.seen)) == 2


async def test_outside_of_a_run_the_key_is_made_of_the_frameworks_ids() -> None:
    keys = Keys()
    await agent(Script([call("pay", "a", order="A-1")], "done"), tools=[keys.pay]).run("go")

    assert keys.seen[0].endswith(":a")
