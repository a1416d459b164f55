"""What a benchmark gives back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tell = Callable[[str], None]
"""Tells whoever waits what a benchmark is doing."""


@dataclass(frozen=True)
class Figure:
    """One measured value. value: None when there is none; detail says why. goal: the most it may be, if any."""

    name: str
    unit: str
    value: float | None
    goal: float | None = None
    detail: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal or a value."""
        return None if self.value is None or self.goal is None else self.value <= self.goal


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]
