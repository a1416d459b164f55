"""Prices of one's own, for models that nobody else knows the price of, or that cost something else."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import Usage

_MILLION = Decimal(1_000_000)


@dataclass(frozen=True)
class Price:
    """What a model costs, in US dollars for a million tokens; `call_usd` for each call beside them.

    cache_read_usd, cache_write_usd: of the input tokens that a cache gave or took; as any input when not given.
    Numbers or text, such as "0.15". Raises MisconfiguredError for one that is none, or below zero.
    """

    input_usd: Decimal | float | str = 0
    output_usd: Decimal | float | str = 0
    cache_read_usd: Decimal | float | str | None = None
    cache_write_usd: Decimal | float | str | None = None
    call_usd: Decimal | float | str = 0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            self._decimal(name)

    def of(self, usage: Usage) -> Decimal:
        """What one call costs."""
        read, write = max(usage.cache_read_tokens, 0), max(usage.cache_write_tokens, 0)
        fresh = max(usage.input_tokens - read - write, 0)
        tokens = (
            fresh * self._decimal("input_usd")
            + read * self._decimal("cache_read_usd")
            + write * self._decimal("cache_write_usd")
            + usage.output_tokens * self._decimal("output_usd")
        )
        return tokens / _MILLION + self._decimal("call_usd")

    def _decimal(self, name: str) -> Decimal:
        value = getattr(self, name)
        if value is None:
            return self._decimal("input_usd")
        try:
            made = Decimal(str(value))
        except ArithmeticError:
            made = Decimal("NaN")
        if not made.is_finite() or made < 0:
            raise MisconfiguredError(f"Price({name}=...) takes US dollars for a million tokens, not {value!r}.")
        return made


class OwnPrices:
    """Prices by the name of the model. See `Prices`."""

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)

    def cost_usd(self, model: str, usage: Usage) -> Decimal | None:
        """See `Prices`."""
        price = self._prices.get(model)
        return None if price is None else price.of(usage)
