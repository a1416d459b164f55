"""Masks secrets in text and in arguments that arrive piece by piece."""

import re
from typing import Final

from pydantic_core import from_json

from interlock.contracts.masking import masked, masked_text
from interlock.contracts.payloads import Json

# What may come next in a text. Where one of these would be masked because of what stands before it, nothing is let go.
_AHEAD: Final = ("Zz9Zz9Zz9Zz9Zz9Zz9Zz9", "=Zz9Zz9Zz9Zz9", "bearer Zz9Zz9Zz9Zz9", ": basic Zz9Zz9Zz9Zz9")
_WORDS_END: Final = re.compile(r"\s+")
_KEY_BLOCK: Final = "-----BEGIN"
_CONTEXT: Final = 300  # In characters. A name that a secret stands behind is not farther away.


class MaskedText:
    """Text that goes on. What comes out, joined, is what `masked_text` makes of the whole, as far as it is known.

    The last word is held back, and so is what is, or may be the beginning of, a secret.
    """

    def __init__(self) -> None:
        self._held = ""

    def add(self, delta: str) -> None:
        """Take what is new."""
        self._held += delta

    def take(self) -> str:
        """What can be shown by now and was not taken yet."""
        cut = self._safe_cut()
        shown, self._held = self._held[:cut], self._held[cut:]
        return masked_text(shown)

    def _safe_cut(self) -> int:
        end = len(self._held)
        begun = self._held.upper().find(_KEY_BLOCK)
        if begun >= 0:  # A private key ends lines later, or not at all.
            end = begun
        for space in reversed(list(_WORDS_END.finditer(self._held, max(0, end - 2 * _CONTEXT), end))):
            if not _swallows(self._held[max(0, space.start() - _CONTEXT) : space.start()], space[0]):
                return space.start()
        return 0


class MaskedArguments:
    """The arguments of a call that a model is still writing."""

    def __init__(self) -> None:
        self.size = 0
        self._written = ""
        self._taken: set[str] = set()

    def add(self, delta: str) -> None:
        """Take what is new of their JSON."""
        self.size += len(delta)
        self._written += delta

    def take(self) -> dict[str, Json]:
        """The arguments that are whole by now, masked, and were not taken yet."""
        try:
            known = from_json(self._written, allow_partial="trailing-strings")
        except ValueError:
            return {}
        if not isinstance(known, dict):
            return {}
        whole = list(known) if _is_whole(self._written) else list(known)[:-1]
        new = [name for name in whole if name not in self._taken]
        self._taken.update(new)
        return dict(masked({name: known[name] for name in new}))


def _swallows(before: str, space: str) -> bool:
    """Whether what comes after this text may be a secret because of it."""
    return any(not masked_text(f"{before}{space}{ahead}").endswith(masked_text(f" {ahead}")[1:]) for ahead in _AHEAD)


def _is_whole(written: str) -> bool:
    try:
        from_json(written)
    except ValueError:
        return False
    return True
