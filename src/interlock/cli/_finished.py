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


async def replay_finished(app: "Interlock", client: "Client") -> int:
    """Replay the runs that end from now on, until cancelled, and say on stderr which do not do the same again.

    Each is replayed twice: what a process keeps from one time to the next shows at the second.
    """
    from interlock.replay import Wanted, on_server, replaying

    began, seen = datetime.now(UTC), dict[str, datetime]()
    async with replaying(app) as replay:
        while True:
            now = datetime.now(UTC)
            wanted = Wanted(open=False, closed_since=max(began, now - _SEEN_LATE))
            seen = {run: when for run, when in seen.items() if when > now - 2 * _SEEN_LATE}
            async for stored in on_server(client, wanted, limit=_AT_MOST, without=seen):
                seen[stored.history.run_id] = now
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
        "environment, what a module remembers. Do that in a tool. See docs/upgrades.md."
    )
