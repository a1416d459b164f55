"""Which versions of the SDK, and of Temporal's integration of it, agents can run with."""

from importlib.metadata import PackageNotFoundError, version

from interlock.contracts.errors import MisconfiguredError

SUPPORTED = {"openai-agents": ((0, 22), (0, 23)), "temporalio-openai-agents": ((1, 1), (1, 2))}
"""From, and up to but without."""


def check_versions() -> None:
    """Raise MisconfiguredError when a version that was never tried is installed: the agents' loop is the SDK's, and
    Interlock takes part in it."""
    for package, (first, after) in SUPPORTED.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            raise _wrong(package, "none is installed") from None
        if not first <= _numbers(found) < after:
            raise _wrong(package, f"{found} is installed")


def _numbers(found: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in found.split(".")[:2])


def range_of(package: str) -> str:
    """The versions of a package that are supported, as a requirement says it: `>=0.22,<0.23`."""
    first, after = SUPPORTED[package]
    return f">={first[0]}.{first[1]},<{after[0]}.{after[1]}"


def _wrong(package: str, what: str) -> MisconfiguredError:
    fits = range_of(package)
    return MisconfiguredError(
        f"Agents of the OpenAI Agents SDK run with {package} {fits}; {what}. "
        f'pip install "{package}{fits}", or "interlock[openai-agents]", which brings it.'
    )
