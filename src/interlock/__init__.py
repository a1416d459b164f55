"""Runs LLM agents durably on Temporal, and holds each dangerous tool call until the right person has said yes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from interlock.contracts.errors import (
    InputDiffersError,
    InterlockError,
    MisconfiguredError,
    RefusedError,
    RunFailedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from interlock.app import Interlock
    from interlock.client import Client
    from interlock.contracts.payloads import Budget
    from interlock.journal import Journal, RunEvent, Step
    from interlock.prices import Price
    from interlock.retries import Retries
    from interlock.run import Run, RunReport
    from interlock.settings import Settings
    from interlock.sync import SyncClient
    from interlock.watchdog import RunTrouble

__all__ = [
    "Budget",
    "Client",
    "InputDiffersError",
    "Interlock",
    "InterlockError",
    "Journal",
    "MisconfiguredError",
    "Price",
    "RefusedError",
    "Retries",
    "Run",
    "RunEvent",
    "RunFailedError",
    "RunReport",
    "RunTrouble",
    "Settings",
    "Step",
    "SyncClient",
    "UnavailableError",
]

_HOMES = {
    "Budget": "interlock.contracts.payloads",
    "Client": "interlock.client",
    "Interlock": "interlock.app",
    "Price": "interlock.prices",
    "Retries": "interlock.retries",
    "Journal": "interlock.journal",
    "Run": "interlock.run",
    "RunEvent": "interlock.journal",
    "RunReport": "interlock.run",
    "RunTrouble": "interlock.watchdog",
    "Settings": "interlock.settings",
    "Step": "interlock.journal",
    "SyncClient": "interlock.sync",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `import interlock` stays quick and loads no agent framework and no Temporal client.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'interlock' has no attribute {name!r}")
