"""The page on troubleshooting quotes what the program really says."""

import ast
import builtins
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic_ai import exceptions as framework
from pydantic_core import PydanticSerializationError

import interlock
from interlock.adapters.pydantic_ai.worker import SubRunFailedError
from interlock.contracts import errors, names

PACKAGE = Path(str(interlock.__file__)).parent
PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
QUOTED = re.findall(r"^#### `(.+)`$", PAGE.read_text(), flags=re.MULTILINE)
TYPES = sorted(set(re.findall(r"`(\w+(?:Error|Exceeded|Behavior|Exit|Interrupt))`", PAGE.read_text())))
LOGGED = PAGE.read_text().partition("## A worker complains")[2].partition("## An answer")[0]
EVENTS = sorted(set(re.findall(r"`([a-z_]+\.[a-z_]+)`", LOGGED)))


def texts() -> Iterator[str]:
    """Every text in the code, with `…` where a value is put in."""
    files = [Path(folder, name) for folder, _, found in os.walk(PACKAGE, followlinks=True) for name in found]
    for path in sorted(path for path in files if path.suffix == ".py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


CODE = "\n".join(texts())


@pytest.mark.parametrize("quoted", QUOTED)
def test_every_message_it_quotes_is_one_of_the_programs(quoted: str) -> None:
    parts = [re.escape(part.strip()) for part in quoted.split("…") if part.strip()]

    assert re.search("[^\n]{0,80}".join(parts), CODE), quoted


@pytest.mark.parametrize("error_type", TYPES)
def test_every_error_type_it_names_is_there(error_type: str) -> None:
    ours = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    others = (builtins, errors, framework)
    known = {SubRunFailedError.__name__, PydanticSerializationError.__name__, "CancelledError", *ours}

    assert error_type in known or any(hasattr(module, error_type) for module in others)


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_it_names_is_logged(event: str) -> None:
    assert event in CODE.splitlines()


def test_every_type_that_ends_a_run_is_on_the_page() -> None:
    source = Path(str(names.__file__)).read_text()
    section = source.partition("# Types of the failures that end a run.")[2].partition("#")[0]
    ours = re.findall(r'Final = "(\w+Error)"', section)

    assert len(ours) > 5
    assert [value for value in ours if value not in TYPES and value != names.AGENT_RUN_FAILED] == []
