"""The public API, and what each part loads: a client needs no agent framework, a command line none of it all."""

import ast
import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import interlock
from interlock.contracts import errors

FRAMEWORKS = ("airflow", "pydantic_ai", "agents")


def test_all_names_exactly_what_is_public() -> None:
    """Public is what the package takes from its own modules under a name without an underscore."""
    source = ast.parse(Path(str(interlock.__file__)).read_text())
    taken = {
        alias.asname or alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("interlock.")
        for alias in node.names
    }

    assert interlock.__all__ == sorted(taken)
    assert set(interlock._HOMES) < taken


@pytest.mark.parametrize("name", interlock.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    thing = getattr(interlock, name)

    assert inspect.isclass(thing)
    assert thing.__name__ == name
    assert inspect.getdoc(thing)


def test_every_error_is_public() -> None:
    assert {name for name, _ in inspect.getmembers(errors, inspect.isclass)} <= set(interlock.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'interlock' has no attribute 'Interlok'"):
        interlock.Interlok  # noqa: B018


ROOMS = {
    "interlock": (*FRAMEWORKS, "temporalio", "pydantic", "interlock.client", "interlock.app"),
    "interlock.contracts": (*FRAMEWORKS, "temporalio", "interlock.client", "interlock.workflows"),
    "interlock.settings": (*FRAMEWORKS, "temporalio", "interlock.client"),
    "interlock.server": (*FRAMEWORKS, "temporalio", "interlock.workflows"),
    "interlock.journal": (
        *FRAMEWORKS,
        "interlock.workflows",
        "interlock.activities",
        "interlock.adapters",
        "rich",
        "typer",
    ),
    "interlock.sync": (  # Loads the client too.
        *FRAMEWORKS,
        "interlock.workflows",
        "interlock.activities",
        "interlock.adapters",
    ),
    "interlock.workflows": (*FRAMEWORKS, "interlock.client", "interlock.activities", "interlock.adapters"),
    "interlock.activities": (*FRAMEWORKS, "interlock.client", "interlock.workflows", "interlock.adapters"),
    "interlock.adapters.pydantic_ai": ("airflow", "agents", "interlock.client", "interlock.workflows"),
    "interlock.bridge": ("agents", "pydantic_ai", "interlock.workflows", "interlock.adapters", "interlock.worker"),
    "interlock.testing": ("airflow", "agents", "interlock.cli"),
}


def modules(room: str) -> list[str]:
    """A room's modules; the package alone keeps its promise only as long as nothing in it is loaded."""
    package = importlib.util.find_spec(room)
    assert package is not None
    places = package.submodule_search_locations or []
    inside = [f"{room}.{found.name}" for found in pkgutil.iter_modules(places)] if room != "interlock" else []
    return [room, *sorted(inside)]


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_loads_by_itself_and_without_what_it_does_not_need(room: str) -> None:
    asked = f"import sys, {', '.join(modules(room))}; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-W", "error", "-c", asked], capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stderr
    loaded = told.stdout.split()
    assert room in loaded
    assert [name for name in ROOMS[room] if name in loaded] == []
