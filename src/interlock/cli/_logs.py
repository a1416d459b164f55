"""What a worker logs, on stderr: one line each, with the facts that came along."""

import logging
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from interlock.cli._console import line, plain

_STANDARD = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"})
_OWN_NOISE = ("temporal_activity", "temporal_workflow", "temporal_log", "__temporal_error_identifier")
_FAILURE_WORDS = re.compile(r'message: "((?:[^"\\]|\\.)+)"')
_REMEMBERED = 100


def log_to_stderr(*, verbose: bool) -> None:
    """Send what this process logs to stderr: warnings, or with `verbose` everything from the informational up."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines(verbose=verbose))
    handler.addFilter(_QuestionsOnce())
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("temporalio.core").setLevel(level)


def log_to_stderr_again(*, verbose: bool) -> None:
    """Take the log back from Airflow, where the code that was loaded has loaded it: it would go to standard output."""
    if "airflow" in sys.modules:
        log_to_stderr(verbose=verbose)


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


class _QuestionsOnce(logging.Filter):
    """Lets through once what Temporal's core says of a question that a run cannot answer; who watches it asks often."""

    def __init__(self) -> None:
        super().__init__()
        self._said: deque[str] = deque(maxlen=_REMEMBERED)

    def filter(self, record: logging.LogRecord) -> bool:
        text = _message(record)
        if not text.startswith("Failing legacy query request"):
            return True
        if text in self._said:
            return False
        self._said.append(text)
        return True


class _Lines(logging.Formatter):
    def __init__(self, *, verbose: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        """One line; with `verbose` a traceback below it."""
        return _without_secrets(self._text(record))

    def _text(self, record: logging.LogRecord) -> str:
        text = line(f"{self.formatTime(record, self.datefmt)} {record.levelname} {_message(record)}{_facts(record)}")
        if record.exc_info and self._verbose:
            return f"{text}\n{plain(self.formatException(record.exc_info))}"
        if record.exc_info and (error := record.exc_info[1]):
            return f"{text} ({line(f'{type(error).__name__}: {error}')})"
        return text


def _without_secrets(text: str) -> str:
    """The text without what Airflow knows as secrets, where tools of an agent have loaded it: of a call that failed it
    logs what its task log would mask."""
    airflow = sys.modules.get("airflow.sdk.log")
    return str(airflow.redact(text)) if airflow else text


def _message(record: logging.LogRecord) -> str:
    """What is said. Temporal's core appends whole structures of its own; of a failure only the words are kept."""
    log = vars(record).get("temporal_log")
    if log is None or "failure" not in log.fields:
        return record.getMessage()
    words = _FAILURE_WORDS.search(log.fields["failure"])
    failure = words[1].replace("\\'", "'").replace('\\"', '"') if words else log.fields["failure"]
    facts = sorted({**log.fields, "failure": failure}.items())  # They come in any order.
    return f"{log.message}{''.join(f' {name}={value}' for name, value in facts)}"


def _facts(record: logging.LogRecord) -> str:
    facts: dict[str, Any] = {
        name: value for name, value in vars(record).items() if name not in _STANDARD and name not in _OWN_NOISE
    }
    return "".join(f" {name}={value}" for name, value in facts.items())
