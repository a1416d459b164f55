"""Histories, and where they come from: files."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import ParseError
from temporalio.client import WorkflowHistory

from interlock.contracts import names
from interlock.contracts.errors import MisconfiguredError

_HOW = "Get one with: temporal workflow show --workflow-id ID --output json"


@dataclass(frozen=True)
class Stored:
    """A history. source: the file it is from; empty for one from a server."""

    history: WorkflowHistory
    source: str = ""

    @property
    def agent(self) -> str:
        """The name of the agent, as the run's input has it. Empty when it cannot be read."""
        payloads = self.history.events[0].workflow_execution_started_event_attributes.input.payloads
        try:
            return str(json.loads(payloads[0].data)["agent"])
        except (IndexError, KeyError, TypeError, ValueError):
            return ""


def read_files(paths: Iterable[Path]) -> list[Stored]:
    """The histories in files, as `temporal workflow show --output json`, the Temporal UI and the SDK write them.

    A folder stands for every `*.json` in it.
    Raises MisconfiguredError, naming the file, when there is none or one is not the whole history of a run.
    """
    return [_read(file) for path in paths for file in _files(path)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise MisconfiguredError(f"Folder {path} has no *.json file, so there is nothing to replay.")
    return found


def _read(file: Path) -> Stored:
    try:
        history = WorkflowHistory.from_json(file.stem, file.read_text(encoding="utf-8"))
    except OSError as error:
        raise MisconfiguredError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, ParseError, AttributeError, TypeError, RecursionError) as error:
        raise MisconfiguredError(f"{file} is no history in JSON: {error}. {_HOW}") from error
    first = history.events[0] if history.events else None
    # Temporal's replayer would wait for the beginning for ever.
    if first is None or not first.HasField("workflow_execution_started_event_attributes"):
        raise MisconfiguredError(f"{file} is no history from its beginning: the run's start is not there. {_HOW}")
    started = first.workflow_execution_started_event_attributes
    if started.workflow_type.name not in (names.AGENT_WORKFLOW, names.SESSION_WORKFLOW):
        raise MisconfiguredError(
            f"{file} is the history of a workflow of type {started.workflow_type.name!r}, not of a run of an agent "
            f"({names.AGENT_WORKFLOW})."
        )
    if any(not payload.metadata for payload in started.input.payloads):
        raise MisconfiguredError(f"{file} has decoded payloads, so it is not what was stored. {_HOW}")
    return Stored(WorkflowHistory(started.workflow_id or file.stem, history.events), str(file))
