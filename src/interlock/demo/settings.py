"""What the demo's processes have to agree on."""

import os

AGENT = "support"
TICKET = "Order A-1001 arrived broken and A-1002 never came. Please refund both in full."
DATABASE_VARIABLE = "INTERLOCK_DEMO_DATABASE"

_DEFAULT_MODEL = "gpt-5.6-luna"


def openai_model() -> str | None:
    """The name of the model to talk to; None without `OPENAI_API_KEY`: then a script plays the model's part."""
    if not os.environ.get("OPENAI_API_KEY"):
        return None
    return os.environ.get("INTERLOCK_DEMO_MODEL") or _DEFAULT_MODEL
