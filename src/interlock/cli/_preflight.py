"""What `interlock doctor MODULE:APP` finds out of an app before a worker does, at the first call that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from interlock.contracts.failures import told

if TYPE_CHECKING:
    from interlock.app import Interlock
    from interlock.cli.doctor import Check


def model_checks(app: Interlock) -> Iterator[Check]:
    """A check for each agent whose model, given by its name, cannot be made here: a package or a key is missing.

    Nothing is asked of a provider. A model by its name is made only when it is first called.
    """
    from interlock.cli.doctor import Check

    for name, model, error in app.adapter().unmade_models():
        what = told(error)
        why = what.message if isinstance(error, ImportError) else f"{what.type}: {what.message}"
        yield Check(f"model of {name}", ok=False, found=model, todo=why)
