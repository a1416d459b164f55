"""What the demo's processes have to agree on."""

import os

AGENT = "support"
TICKET = "Order A-1001 arrived broken and A-1002 never came. Please refund both in full."
INSTRUCTIONS = (
    "You work on support tickets of a shop. Look up every order that the ticket names before you act on it, all of "
    "them at once. Ask for a refund only of what an order cost, for all orders at once. A refund may be rejected or "
    "changed by a reviewer; do not ask for the same one again. At the end tell the customer what was refunded and "
    "what was not, and why."
)
MODEL_ATTEMPTS = 3
"""The client tries three times within each; Temporal's own default would go on without end."""

DATABASE_VARIABLE = "INTERLOCK_DEMO_DATABASE"

ADAPTER_VARIABLE = "INTERLOCK_DEMO_ADAPTER"
ADAPTERS = {"pydantic-ai": "interlock.demo.agent", "openai-agents": "interlock.demo.openai_agent"}
"""The modules that have the agent, by the framework that it is written with."""

_DEFAULT_MODEL = "gpt-5.6-luna"


def openai_model() -> str | None:
    """The name of the model to talk to; None without `OPENAI_API_KEY`: then a script plays the model's part."""
    if not os.environ.get("OPENAI_API_KEY"):
        return None
    return os.environ.get("INTERLOCK_DEMO_MODEL") or _DEFAULT_MODEL
