"""What is wrong with how a command was typed is said in one line, with exit status 2, before anything is asked."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from interlock.cli import main

DECIDE = ["approvals", "decide", "run-1", "1"]
COMPLETE = ["tools", "complete", "run-1", "1"]
RETRY = ["runs", "retry", "run-1"]
FORK = ["runs", "fork", "run-1", "--at", "1"]
START = ["runs", "start", "support", "--prompt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "strt"], "No such command 'strt'"),
        (["runs", "start"], "Missing argument 'AGENT'"),
        (["runs", "start", "support"], "Missing option '--prompt'"),
        ([*START, " \n"], "--prompt is empty"),
        ([*START, "x", "--id", ""], "--id is empty"),
        (["runs", "start", "", "--prompt", "x"], "AGENT is empty"),
        (["runs", "start", "support", "--promp", "x"], "No such option: --promp"),
        ([*START, "\udcff"], "Argument 5 is not text"),
        ([*START, "x", "--deps", "{"], "--deps is not JSON"),
        ([*START, "x", "--deps", '{"a": NaN}'], "NaN is no JSON number"),
        ([*START, "x", "--deps", '{"a": 1, "a": 2}'], "twice in one object"),
        ([*START, "x", "--deps", "[" * 100_000], "--deps is not JSON"),
        (["runs", "list", "--limit", "0"], "'--limit'"),
        (["runs", "show", ""], "ID is empty"),
        (["journal", " "], "ID is empty"),
        (DECIDE, "--not-happened, --give-up and --extend; none given"),
        ([*DECIDE, "--approve", "--reject"], "--not-happened, --give-up and --extend; 2 given"),
        ([*DECIDE, "--approve", "--arguments", "amount=1"], "--arguments is not JSON"),
        ([*DECIDE, "--approve", "--arguments", "[1]"], "--arguments takes a JSON object"),
        ([*DECIDE, "--reject", "--arguments", "{}"], "--arguments goes with --approve"),
        ([*DECIDE, "--reject", "--reason", "x" * 2_001], "--reason has 2,001 characters; at most 2,000 are allowed"),
        (["approvals", "decide", "run-1", "1" * 501, "--approve"], "REQUEST has 501 characters; at most 500"),
        (["tools", "complete", "run-1", "1" * 501, "--result", "1"], "CALL has 501 characters; at most 500"),
        (["runs", "show", "x" * 1_001], "ID has 1,001 characters; at most 1,000"),
        ([*START, "x", "--id", "x" * 1_001], "--id has 1,001 characters; at most 1,000"),
        (["journal", "run-1", "--run-id", "x" * 1_001], "--run-id has 1,001 characters; at most 1,000"),
        ([*RETRY, "--reason", "x" * 2_001], "--reason has 2,001 characters; at most 2,000"),
        ([*RETRY, "--step", "x" * 501], "--step has 501 characters; at most 500"),
        ([*RETRY, "--new-limits", "[]"], "--new-limits takes a JSON object such as '{\"request_limit\": 80}'"),
        ([*FORK, "--decision", "reject", "--reason", "x" * 2_001], "--reason has 2,001 characters; at most 2,000"),
        ([*FORK, "--id", " "], "--id is empty"),
        (COMPLETE, "exactly one of --result and --error; none given"),
        ([*COMPLETE, "--result", "1", "--error", "x"], "exactly one of --result and --error; 2 given"),
        ([*COMPLETE, "--result", "done"], "--result is not JSON"),
        ([*COMPLETE, "--error", " "], "--error takes 1 to 10,000 characters"),
        (["worker", "run", "support"], "'support' names no app"),
        (["worker", "run", ":app"], "':app' names no app"),
        (["worker", "run", "agents/support.py:app"], "Give the module's name: agents.support:app"),
        (["worker", "run", ".support:app"], "'.support' is no module's name"),
        (["replay", "support"], "'support' names no app"),
        (["replay", "support:app"], "Give files or folders of histories, or --running or --closed-since."),
        (["replay", "support:app", ".", "--running"], "Give files or folders of histories, or --running"),
        (["replay", "support:app", "nowhere.json"], "'nowhere.json' does not exist"),
        (["replay", "support:app", "--closed-since", "3 weeks"], "--closed-since takes a number and s, m, h or d"),
        (["dev", "support"], "'support' names no app"),
        (["doctor", "support"], "'support' names no app"),
        (["server", "start", "--port", "70000"], "'--port'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments)

    said = capsys.readouterr()
    assert status == 2
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert message in said.err
    assert said.err.count("\n") == 1


def test_help_shows_the_variables_that_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["runs", "start", "--help"]) == 0

    said = capsys.readouterr().out
    assert "TEMPORAL_ADDRESS" in said
    assert "INTERLOCK_TASK_QUEUE]" in said


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0

    assert capsys.readouterr().out == f"interlock {version('interlock')}\n"


@pytest.mark.parametrize("arguments", [[], ["runs"], ["worker"]], ids=str)
def test_a_noun_alone_shows_its_help_and_is_wrong_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert "Commands:" in said.err


def test_the_command_line_loads_neither_temporal_nor_a_framework_until_a_command_needs_it() -> None:
    asked = "import sys, interlock.cli as cli; cli.main(['--help']); sys.exit(str([*sys.modules]))"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False).stderr

    assert "'interlock.cli'" in loaded
    for heavy in (
        "temporalio",
        "opentelemetry",
        "pydantic_ai",
        "pydantic_settings",
        "interlock.client",
        "rich.console",
    ):
        assert f"'{heavy}'" not in loaded


def test_an_unexpected_error_is_one_line_and_a_traceback_only_when_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_support.py").write_text("raise ValueError('no\\n\\x1b[31mway')")

    assert main(["worker", "run", "broken_support:app"]) == 1
    short = capsys.readouterr().err
    assert main(["--verbose", "worker", "run", "broken_support:app"]) == 1
    long = capsys.readouterr().err

    assert short.count("\n") == 1
    assert "broken_support.py, line 1" in short
    assert "Traceback" in long
    assert "\x1b" not in short + long
