"""What the bodies of models and tools do: write to the ledger, and be the place where their worker dies."""

import asyncio
import random
import uuid

from soak.death import Deaths
from soak.ledger import Ledger


class Bodies:
    """What the bodies of models and tools share. pause: the longest that one works, seconds."""

    def __init__(self, ledger: Ledger, deaths: Deaths, pause: float) -> None:
        self._ledger = ledger
        self._deaths = deaths
        self._pause = pause

    def begin(self, step: str, key: str = "", token: str = "") -> float:
        """Say that a body began. Returns how long it is to work."""
        self._ledger.tell("begin", step, key=key, token=token)
        return random.uniform(0, self._pause)

    def effect(self, step: str, result: str = "", key: str = "", token: str = "") -> str:
        """Have the effect of the body, and return its result."""
        self._deaths.reach(step, "middle")
        self._ledger.tell("effect", step, key=key, token=token, result=result)
        return result

    async def work(self, step: str, key: str, token: str, result: str) -> str:
        """The whole of a tool's body. Each time it runs it gives another result."""
        await asyncio.sleep(self.begin(step, key, token))
        return self.effect(step, signed(result), key, token)


def signed(result: str) -> str:
    """A result that no other body gives."""
    return f"{result} #{uuid.uuid4().hex[:8]}"
