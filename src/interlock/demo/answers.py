"""What the scripted models say to the customer, whatever framework they are of."""

import re
from typing import Any


def orders_in(ticket: str) -> list[str]:
    """The numbers of the orders that a ticket names, each once."""
    return list(dict.fromkeys(re.findall(r"\b[A-Z]-\d+\b", ticket)))


def refunded(asked: dict[str, Any], paid: Any) -> str:
    """The sentence on a refund that was paid. asked: the arguments of the call. paid: what the tool returned."""
    before = [f"{asked['amount']:.2f}"] if paid["amount"] != asked["amount"] else []
    before += [f"order {asked['order']}"] if paid["order_id"] != asked["order"] else []
    changed = f", which a reviewer changed from {' for '.join(before)}" if before else ""
    return f"Order {paid['order_id']} was refunded with {paid['amount']:.2f}{changed}."


def not_refunded(asked: dict[str, Any], why: str, *, rejected: bool) -> str:
    """The sentence on a refund that was not paid."""
    verb = "was rejected" if rejected else "failed"
    return f"The refund of {asked['amount']:.2f} for order {asked['order']} {verb}: {why.rstrip('.')}."
