"""Histories, and where they come from: files."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import ParseError
from temporalio.client import WorkflowHistory

from interlock.contracts.errors import MisconfiguredError

_LONGEST_NAMES = 5


@dataclass(frozen=True)
class Stored:
    """A history. source: the file it is from; empty for one from a server."""

    history: WorkflowHistory
    source: str = ""

    @property
    def workflow_type(self) -> str:
        """The name of the workflow's type."""
        return self.history.events[0].workflow_execution_started_event_attributes.workflow_type.name

    @property
    def agent(self) -> str:
        """The name of the agent, as the run's input has it. Empty when it cannot be read."""
        payloads = self.history.events[0].workflow_execution_started_event_attributes.input.payloads
        try:
            return str(json.loads(payloads[0].data)["agent"])
        except (IndexError, KeyError, TypeError, ValueError):
            return ""


def is_whole(history: WorkflowHistory) -> bool:
    """Whether a history begins at its beginning. Temporal's replayer never ends with one that does not."""
    first = history.events[0] if history.events else None
    return first is not None and first.HasField("workflow_execution_started_event_attributes")


def read_files(paths: Iterable[Path], types: Collection[str]) -> list[Stored]:
    """The histories in files, as `temporal workflow show --output json`, the Temporal UI and the SDK write them.

    A folder stands for every `*.json` in it. types: of the workflows that can be replayed.
    Raises MisconfiguredError, naming the files, when there is none or one of them is no such history.
    """
    files = [file for path in paths for file in _files(path)]
    return [_read(file, types) for file in files]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise MisconfiguredError(f"Folder {path} has no *.json file, so there is nothing to replay.")
    return found


def _read(file: Path, types: Collection[str]) -> Stored:
    what = "`temporal workflow show --workflow-id ID --output json` writes one"
    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text(encoding="utf-8"))
    except OSError as error:
        raise MisconfiguredError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, ParseError, AttributeError, TypeError, RecursionError) as error:
        raise MisconfiguredError(f"{file} is no history in JSON: {error}. {what}.") from error
    if not is_whole(history):
        raise MisconfiguredError(f"{file} is no whole history: it does not begin with the run's start. {what}.")
    started = history.events[0].workflow_execution_started_event_attributes
    stored = Stored(WorkflowHistory(started.workflow_id or file.stem, history.events), str(file))
    if stored.workflow_type not in types:
        raise MisconfiguredError(
            f"{file} is the history of a workflow of type {stored.workflow_type!r}; "
            f"this app replays: {', '.join(sorted(types))}."
        )
    return stored
