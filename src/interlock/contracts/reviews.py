"""How many outputs of a run are reviewed, as people say it."""

from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import DEFAULT_REVIEW_ROUNDS, MOST_REVIEW_ROUNDS


def review_rounds(given: object) -> int | None:
    """`RunInput.review_rounds`: a number as it is, True for the usual one, False and None for none.

    Raises MisconfiguredError for anything else.
    """
    if given is None or given is False:
        return None
    if given is True:
        return DEFAULT_REVIEW_ROUNDS
    if isinstance(given, int) and 1 <= given <= MOST_REVIEW_ROUNDS:
        return given
    raise MisconfiguredError(
        f"review is {given!r}. It is how many outputs a person may be asked about, one after the other: 1 to "
        f"{MOST_REVIEW_ROUNDS}; True is {DEFAULT_REVIEW_ROUNDS}."
    )
