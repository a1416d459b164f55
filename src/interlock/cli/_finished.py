"""Replays each run as soon as it has ended, for whoever is writing the agent."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from interlock.cli._console import err, say
from interlock.cli._divergence import replayed_text

if TYPE_CHECKING:
    from interlock.app import Interlock
    from interlock.client import Client
    from interlock.replay import Replayed

_EVERY_SECONDS = 1
_AT_MOST = 100
_SEEN_LATE = timedelta(seconds=10)
"""How late the server may list a run that has ended."""


async def replay_finished(app: "Interlock", client: "Client", began: datetime) -> int:
    """Replay the runs that have ended since, until cancelled, and say on stderr which do not do the same again.

    Of many at once the newest. Each is replayed twice: what a process keeps from one time to the next shows at the
    second.
    """
    from interlock.replay import Wanted, on_server, replaying

    looked = began
    seen: set[str] = set()
    async with replaying(app) as replay:
        while True:
            since, looked = max(began, looked - _SEEN_LATE), datetime.now(UTC)
            async for stored in on_server(client, Wanted(open=False, closed_since=since), limit=_AT_MOST, without=seen):
                seen.add(stored.history.run_id)
                replayed = await replay(stored)
                if replayed.outcome == "replays":
                    replayed = await replay(stored)
                if replayed.outcome == "diverges":
                    _report(replayed)
            await asyncio.sleep(_EVERY_SECONDS)


def _report(replayed: "Replayed") -> None:
    say(f"Run {replayed.workflow_id} does not do the same when it is replayed.", style="bold white on red")
    err().print(replayed_text(replayed), soft_wrap=True)
    say(
        "It would break if its worker were restarted while it waits. An instructions function, a hook, a prepare "
        "function or a validator is not the same each time: the clock, randomness, the order of a set, the "
        "environment, what a module remembers. Do that in a tool. See docs/writing-agents.md."
    )
