"""The seeds of random tests: printed, so that a failure can be had again, and fixed where CI is set."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from typing import Any

import hypothesis
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


def chosen_seed() -> int:
    """SEED from the environment; one of its own for each test when there is none."""
    seed = int(os.environ.get("SEED") or (1 if os.environ.get("CI") else random.getrandbits(32)))
    print(f"again with SEED={seed}")
    return seed


async def for_examples(
    example: Callable[..., Coroutine[Any, Any, None]], *strategies: st.SearchStrategy[Any], count: int
) -> None:
    """Await the example for each of what the strategies give; all run on this loop, and so can share one worker.

    count: of examples, times EXAMPLES from the environment. They are not made smaller: each costs a run, and a run
    that was harmed says by which message.
    """
    loop = asyncio.get_running_loop()

    @settings(
        max_examples=count * int(os.environ.get("EXAMPLES") or 1), deadline=None, database=None, phases=[Phase.generate]
    )
    @hypothesis.seed(chosen_seed())
    @given(st.tuples(*strategies))
    def one(drawn: tuple[Any, ...]) -> None:
        asyncio.run_coroutine_threadsafe(example(*drawn), loop).result()

    await asyncio.to_thread(one)
