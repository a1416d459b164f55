"""An app that cannot be loaded: the line says which module, what is wrong, and what is there instead."""

import sys
from pathlib import Path

import pytest

from interlock import InterlockError
from interlock.cli._errors import WrongUsageError
from interlock.cli._load import load_app

AGENT = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from interlock import Interlock
from interlock.adapters.pydantic_ai import Durable

agent = Agent(TestModel(), name="support", capabilities=[Durable()])
first = Interlock([agent])
second = Interlock([agent])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def test_an_app_of_the_current_folder_is_loaded(folder: Path) -> None:
    (folder / "the_app.py").write_text(AGENT)

    assert list(load_app("the_app:first").agents) == ["support"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:app", "There is no module 'nowhere', neither in the current folder {folder}"),
        ("nowhere.deep:app", "There is no module 'nowhere.deep'"),
        ("the_app:third", "'third' of module 'the_app' is not there. It has the_app:first, the_app:second."),
        ("the_app:agent", "is of type Agent, not an Interlock. It has the_app:first, the_app:second."),
        ("json:loads", "It has no app. Make one"),
    ],
)
def test_a_name_that_leads_to_no_app_is_wrong_usage(folder: Path, target: str, message: str) -> None:
    (folder / "the_app.py").write_text(AGENT)

    with pytest.raises(WrongUsageError) as error:
        load_app(target)

    assert message.format(folder=folder) in str(error.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
        ("x = 1\nx.y", "(broken.py, line 2): AttributeError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_does_not_import_is_named_with_the_error_and_the_folder(
    folder: Path, code: str, message: str
) -> None:
    (folder / "broken.py").write_text(code)

    with pytest.raises(InterlockError, match="Module 'broken' does not load") as error:
        load_app("broken:app")

    assert message in str(error.value)
    assert f"The current folder is {folder}" in str(error.value)


def test_what_interlock_itself_refuses_stays_the_cause(folder: Path) -> None:
    (folder / "refused.py").write_text(AGENT.replace("capabilities=[Durable()]", ""))

    with pytest.raises(InterlockError, match=r"refused.py, line 8") as error:
        load_app("refused:app")

    assert "has no `Durable()`" in str(error.value.__cause__)
