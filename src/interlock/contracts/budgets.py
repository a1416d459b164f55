"""How a budget stands, in words and as a bar; and budgets as people write them: `requests=20,cost=1.50`."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from pydantic import ValidationError

from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.failures import problems
from interlock.contracts.payloads import Budget, Json, Limits, Usage

UNITS = {
    "requests": "model calls",
    "tokens": "tokens",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    "cost_usd": "USD",
}
"""What each limit counts."""


@dataclass(frozen=True)
class Share:
    """How much of a limit is spent. name: what it counts. part: from 0 to 1. text: `6 of 8 model calls`."""

    name: str
    part: float
    text: str


def shares(budget: Budget, spent: Usage) -> list[Share]:
    """How much of each limit is spent."""
    return [share(name, amount(spent, name), limit) for name, limit in budget.given().items()]


def share(limit: str, used: int | Decimal, of: int | Decimal) -> Share:
    """How much of one limit is spent."""
    return Share(UNITS[limit], min(float(used / of), 1.0), f"{_number(used)} of {_number(of)} {UNITS[limit]}")


def _number(value: int | Decimal) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,f}"


def amount(of: Usage, limit: str) -> int | Decimal:
    """As much of a usage as a limit counts."""
    if limit == "tokens":
        return of.input_tokens + of.output_tokens
    value: int | Decimal = getattr(of, limit)
    return value


def bar(part: float, width: int = 10) -> str:
    """A part, from 0 to 1, as a bar. It is full only when the whole is spent."""
    full = width if part >= 1 else min(round(part * width), width - 1)
    return "█" * full + "░" * (width - full)


SHORT = {"cost": "cost_usd"}
"""What people may call a field beside its own name."""

_FIELDS = tuple(Budget.model_fields)


def budget_of(given: Budget | Mapping[str, Json]) -> Budget:
    """A budget from its fields by name. Raises MisconfiguredError that says what is wrong and what is allowed."""
    if isinstance(given, Budget):
        return given
    if not isinstance(given, Mapping):
        raise MisconfiguredError(f"A budget is its limits by name, such as {{'requests': 20}}, not {given!r}.")
    fields = {SHORT.get(name, name): value for name, value in given.items()}
    if unknown := sorted(str(name) for name in fields if name not in _FIELDS):
        raise MisconfiguredError(f"A budget has no {', '.join(unknown)}; it has {', '.join(_FIELDS)}.")
    try:
        return Budget.model_validate(fields)
    except ValidationError as error:
        raise MisconfiguredError(f"The budget cannot be used: {problems(error)}.") from error


def read_budget(text: str) -> Budget:
    """A budget from a line such as `requests=20,cost=1.50,when_used_up=end`. Raises MisconfiguredError."""
    return budget_of(read_amounts(text))


def read_amounts(text: str) -> dict[str, Json]:
    """The fields in such a line, by their own names; numbers as numbers, of dollars as text. Raises
    MisconfiguredError."""
    found: dict[str, Json] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        name = SHORT.get(name, name)
        if not name or not equals or not value:
            raise MisconfiguredError(
                f"{part.strip()!r} is no amount: a budget is written as requests=20,tokens=100000,cost=1.50."
            )
        if name in found:
            raise MisconfiguredError(f"{name} is there twice in {text!r}.")
        found[name] = _value(name, value)
    return found


def _value(name: str, text: str) -> Json:
    if name == "unpriced" and text in ("true", "yes"):
        return True
    if (name in Limits.model_fields and name != "cost_usd") or name == "ask_seconds":
        try:
            number = float(text) if name == "ask_seconds" else int(text.replace("_", ""))
        except ValueError:
            raise MisconfiguredError(f"{name}={text} is no number; it takes one above zero.") from None
        return number
    return text
