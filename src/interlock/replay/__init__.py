"""Replays stored histories with the code at hand, and says in plain words where it would go another way."""

from interlock.replay._commands import Command
from interlock.replay._divergence import Divergence
from interlock.replay._replay import Outcome, Replayed, replaying
from interlock.replay._server import Wanted, count_on_server, on_server, other_queues
from interlock.replay._stored import Stored, read_files

__all__ = [
    "Command",
    "Divergence",
    "Outcome",
    "Replayed",
    "Stored",
    "Wanted",
    "count_on_server",
    "on_server",
    "other_queues",
    "read_files",
    "replaying",
]
