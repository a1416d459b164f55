"""What a worker logs, on stderr: one line each, with the facts that came along."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interlock.cli._console import line, plain

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_OWN_NOISE = ("temporal_activity", "temporal_workflow", "temporal_log", "__temporal_error_identifier")


def log_to_stderr(*, verbose: bool) -> None:
    """Send what this process logs to stderr: warnings, or with `verbose` everything from the informational up."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(verbose=verbose))
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("temporalio.core").setLevel(level)


@contextmanager
def without_tracebacks() -> Iterator[None]:
    """For commands that say by themselves what Temporal's SDK would log with a traceback."""
    logger = logging.getLogger("temporalio")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


class _Lines(logging.Formatter):
    def __init__(self, *, verbose: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        """One line; with `verbose` a traceback below it."""
        text = line(f"{self.formatTime(record, self.datefmt)} {record.levelname} {record.getMessage()}{_facts(record)}")
        if record.exc_info and self._verbose:
            return f"{text}\n{plain(self.formatException(record.exc_info))}"
        if record.exc_info and (error := record.exc_info[1]):
            return f"{text} ({line(f'{type(error).__name__}: {error}')})"
        return text


def _facts(record: logging.LogRecord) -> str:
    facts: dict[str, Any] = {
        name: value for name, value in vars(record).items() if name not in _STANDARD and name not in _OWN_NOISE
    }
    return "".join(f" {name}={value}" for name, value in facts.items())
