"""Options and arguments that several commands share, and the forms that they are checked for."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli._errors import WrongUsageError
from interlock.contracts.errors import MisconfiguredError

if TYPE_CHECKING:
    from interlock.contracts.payloads import Budget

LONGEST_RUN_ID = 1_000  # Temporal takes no longer one.
LONGEST_REQUEST_ID = 500
LONGEST_STEP_ID = 500
LONGEST_REASON = 2_000

Target = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="Where the app is: `support:app` is app in support.py.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
BudgetText = Annotated[
    str | None,
    typer.Option(
        metavar="LIMITS",
        help="What all agents of the run together may use: requests=20,tokens=100000,cost=1.50. "
        "With when_used_up=end the run ends instead of asking.  [env var: INTERLOCK_BUDGET]",
    ),
]
TaskQueue = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Where runs wait for a worker.  [env var: INTERLOCK_TASK_QUEUE]"),
]


def not_empty(text: str, option: str, what: str) -> None:
    """Raise WrongUsageError when the text is blank."""
    if not text.strip():
        raise WrongUsageError(f"{option} is empty. Give {what}.")


def at_most(text: str, option: str, characters: int) -> None:
    """Raise WrongUsageError when the text is longer than what is kept of it."""
    if len(text) > characters:
        raise WrongUsageError(f"{option} has {len(text):,} characters; at most {characters:,} are allowed.")


def _run_id(text: str) -> str:
    not_empty(text, "ID", "the run, as `interlock runs list` shows it")
    at_most(text, "ID", LONGEST_RUN_ID)
    return text


RunId = Annotated[
    str, typer.Argument(metavar="ID", help="The run, as `interlock runs list` shows it.", callback=_run_id)
]


def json_value(text: str, option: str) -> Any:
    """What an option's JSON says. Raises WrongUsageError when it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        raise WrongUsageError(f"{option} is not JSON: {error}. Quote it for the shell: {option} '...'.") from error


def json_object(text: str, option: str, *, such_as: str = '{"amount": 10}') -> dict[str, Any]:
    """What an option's JSON object says. Raises WrongUsageError, with an example, when it is no object."""
    value = json_value(text, option)
    if not isinstance(value, dict):
        raise WrongUsageError(f"{option} takes a JSON object such as '{such_as}', not {text[:60]!r}.")
    return value


def amounts(text: str, option: str) -> dict[str, Any]:
    """What an option's amounts are, by name. Raises WrongUsageError when it has none."""
    from interlock.contracts.budgets import read_amounts

    try:
        return read_amounts(text)
    except MisconfiguredError as error:
        raise WrongUsageError(f"{option}: {error}") from error


def budget(text: str | None) -> "Budget | None":
    """The budget of --budget. Raises WrongUsageError when it is none."""
    from interlock.contracts.budgets import read_budget

    try:
        return None if text is None else read_budget(text)
    except MisconfiguredError as error:
        raise WrongUsageError(f"--budget: {error}") from error


def exactly_one(**flags: bool) -> None:
    """Raise WrongUsageError unless exactly one of the options was given."""
    given = [name for name, was_given in flags.items() if was_given]
    if len(given) != 1:
        *names, last = (f"--{name.replace('_', '-')}" for name in flags)
        raise WrongUsageError(f"Give exactly one of {', '.join(names)} and {last}; {len(given) or 'none'} given.")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a name is there twice in one object")
    return value
