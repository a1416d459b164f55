"""What people see when something goes wrong: one clear line, and the status the process ends with."""

import traceback
from collections.abc import Iterator, Sequence

from interlock.cli._console import line, say_error, say_text
from interlock.contracts.errors import InterlockError, MisconfiguredError, RunFailedError


class WrongUsageError(MisconfiguredError):
    """What was typed cannot be meant: the process ends with 2."""


def explain(error: Exception, *, verbose: bool) -> int:
    """Say what went wrong, on stderr, and return the exit status. verbose: with the traceback."""
    if hasattr(error, "format_message"):  # What typer raises, whichever click it brings.
        return _explain_usage(error)
    if verbose:
        say_text("".join(traceback.format_exception(error)))
    if isinstance(error, InterlockError):
        say_error(_chain(error))
    elif type(error).__module__.startswith("temporalio"):
        say_error(_of_temporal(error))
    elif isinstance(error, OSError) and error.strerror:
        say_error(f"{error.strerror}: {error.filename or type(error).__name__}")
    else:
        say_error(f"Unexpected {type(error).__name__}: {error} (`interlock --verbose ...` shows where)")
    return 2 if isinstance(error, WrongUsageError) else 1


def _of_temporal(error: Exception) -> str:
    from interlock._rpc import NO_NAMESPACE, has_no_namespace

    if has_no_namespace(error):
        return NO_NAMESPACE.format(str(error).rstrip("."))
    return f"The Temporal server refused the request: {error}"


def not_text(arguments: Sequence[str]) -> str | None:
    """Why these arguments of the process cannot be used, or None."""
    broken = [number for number, argument in enumerate(arguments, 1) if not _is_text(argument)]
    return f"Argument {broken[0]} is not text in the terminal's encoding." if broken else None


def _explain_usage(error: Exception) -> int:
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        say_text(str(error.format_message()))  # type: ignore[attr-defined]
        return 2
    command = context.command_path if context else "interlock"
    message = str(error.format_message()).rstrip()  # type: ignore[attr-defined]
    say_error(f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{command} --help`.")
    return int(getattr(error, "exit_code", 2))


def _chain(error: InterlockError) -> str:
    messages: list[str] = []
    for link in _links(error):
        text = line(_message(link))
        if isinstance(link, InterlockError) and not any(text in message for message in messages):
            messages.append(text)
    return " Because: ".join(messages)


def _message(error: BaseException) -> str:
    if isinstance(error, RunFailedError):
        kind = f"{error.error_type}: " if error.error_type else ""
        return f"Run {error.workflow_id!r} {error.status.replace('_', ' ')}: {kind}{error}"
    return str(error)


def _links(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
