"""What a tool gives back."""

import random
import string

RESULT_BYTES = 2_000


def text(key: str) -> str:
    """Random-letter words, so that nothing compresses or repeats by accident."""
    return "".join(random.Random(key).choices(string.ascii_lowercase + "  ", k=RESULT_BYTES))
