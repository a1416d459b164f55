"""The command that finds tasks and runs that have lost each other."""

import io
from datetime import timedelta

import pytest

from interlock.bridge.check import Found, print_found, wrong_with

LATELY, LONG_AGO = timedelta(seconds=5), timedelta(minutes=5)


@pytest.mark.parametrize(
    ("state", "status", "on_kill", "words"),
    [
        ("deferred", "running", "", ""),
        ("deferred", "awaiting_approval", "", ""),
        ("deferred", "completed", "", "has ended"),
        ("deferred", "cancelled", "", "has ended"),
        ("running", "completed", "", ""),
        ("up_for_reschedule", "", "", "no such run"),
        ("success", "", "", ""),
        ("failed", "running", "cancel", "goes on without it"),
        ("", "running", "", "goes on without it"),
        ("failed", "running", "leave", ""),
        ("failed", "stuck", "cancel", ""),
        ("success", "stuck", "cancel", "goes on without it"),
    ],
)
def test_what_is_wrong_with_a_task_and_its_run(state: str, status: str, on_kill: str, words: str) -> None:
    said = wrong_with(state, status, on_kill=on_kill, changed=LONG_AGO)

    assert words in said
    assert bool(said) == bool(words)
    assert wrong_with(state, status, on_kill=on_kill, changed=LATELY) == ""


def test_a_run_that_no_worker_has_begun_is_told_of() -> None:
    assert "No worker" in wrong_with("deferred", "running", on_kill="", changed=LONG_AGO, has_begun=False)


def test_outside_a_terminal_each_is_on_one_line() -> None:
    place, run = f"{'d' * 100}.{'t' * 60} {'r' * 80}", "airflow/" + "i" * 250
    shown = io.StringIO()

    print_found([Found(place, "deferred", run, "completed", "w" * 100), Found("a", "b", "c", "d", "")], shown)

    (line,) = [line for line in shown.getvalue().splitlines() if place in line]
    assert run in line
    assert "w" * 100 in line
    assert shown.getvalue().endswith("2 looked at, 1 need a person.\n")
