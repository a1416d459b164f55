"""What `interlock.testing` says when a test waits in vain."""

from functools import partial

import pytest

from interlock.testing import eventually


async def has(name: str) -> bool:
    return not name


async def test_what_did_not_come_true_is_named_also_when_it_is_a_partial() -> None:
    with pytest.raises(AssertionError, match=r"partial.*has.* did not come true in time"):
        await eventually(partial(has, "x"), within_seconds=0)
