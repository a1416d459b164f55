"""`interlock replay`: what a deployment pipeline gets, of files and of a server."""

import json
import os
from pathlib import Path

import pytest

from interlock.server import EmbeddedServer
from interlock.testing import running
from tests.acceptance.test_cli import Program
from tests.replay.agents import make_app
from tests.replay.export import HISTORIES, path_of

APP = """
from interlock import Interlock
from tests.replay.agents import make_app
from tests.replay.test_divergences import Breaks
from tests.workflows.scripts import Script, agent

app, renamed = make_app(), make_app(look_up_name="find")
broken = Interlock([agent(Script("never"), capabilities=[Breaks()])])
"""
WAITING = str(path_of("open-awaiting-approval"))


@pytest.fixture(scope="module")
async def program(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program, and on its task queue a run that waits, one that has ended, and one of an agent nobody has."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "replayed_app.py").write_text(APP)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "INTERLOCK_"))}
    async with running(make_app(), server) as app:
        waiting = await app.client.start("support", "Refund everything.", id=f"waiting-{folder.name}")
        await app.requests(waiting, 3)
        await (await app.client.start("typed", "Hello.", deps={"name": "t"})).result()
    await app.client.start("billing", "Hello.", id=f"billing-{folder.name}")
    environment = {**kept, "TEMPORAL_ADDRESS": server.address, "INTERLOCK_TASK_QUEUE": app.client.task_queue}
    return Program(folder, environment)


def queue(program: Program) -> tuple[str, str]:
    return "--task-queue", program.environment["INTERLOCK_TASK_QUEUE"]


def test_files_and_folders_that_replay_are_status_0(program: Program) -> None:
    said = program("replay", "replayed_app:app", WAITING, str(path_of("completed-plain")))
    assert said.out == "2 of 2 replay.\n"
    assert said.err == ""

    document = program.json("replay", "replayed_app:app", str(HISTORIES))
    assert document["ok"] is True
    assert document["replays"] == len(list(HISTORIES.glob("*.json"))) - 1
    assert [one["agent"] for one in document["histories"] if one["outcome"] != "replays"] == ["supprot"]


def test_a_divergence_is_status_1_and_names_the_step_and_both_sides(program: Program) -> None:
    said = program("replay", "replayed_app:renamed", WAITING, str(path_of("completed-without-a-tool")), status=1)

    head, after, had, wanted, hint, count = said.out.splitlines()
    assert head == f"✗ {WAITING} (open-awaiting-approval), agent support: diverges at step 5"
    assert after.strip() == "after step 4, the question about 'refund: order A-1003, amount 300.00'"
    assert had.strip().startswith("the history has 'look_up: order A-1001' (activity agent__support__toolset__")
    assert wanted.strip() == "this build wants nothing there"
    assert hint.strip().startswith("In this build there is no such tool")
    assert count == "1 of 2 replay, diverging: 1."


def test_code_that_fails_is_named_without_a_traceback(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    said = program("replay", "replayed_app:broken", WAITING, status=1)

    assert "this build's code fails: NondeterminismError: the hook is broken" in said.out
    assert [record.name for record in caplog.records if record.name.startswith("temporalio.")] == []


def test_temporals_own_words_are_shown_when_asked_for(program: Program) -> None:
    replay = ("replay", "replayed_app:renamed", WAITING)

    assert "TMPRL1100" not in program(*replay, status=1).out
    assert "[TMPRL1100] Nondeterminism error: No command scheduled" in program("-v", *replay, status=1).out


def test_a_divergence_as_json(program: Program) -> None:
    document = program.json("replay", "replayed_app:renamed", WAITING, status=1)

    assert (document["ok"], document["replays"], document["diverges"]) == (False, 0, 1)
    (one,) = document["histories"]
    assert (one["workflow_id"], one["agent"], one["outcome"]) == ("open-awaiting-approval", "support", "diverges")
    assert one["source"] == WAITING
    assert {key: one["divergence"][key] for key in ("kind", "step", "wanted")} == {
        "kind": "missing",
        "step": 5,
        "wanted": None,
    }
    assert one["divergence"]["recorded"]["summary"] == "look_up: order A-1001"


def test_what_is_open_on_the_server_is_replayed(program: Program) -> None:
    replay = ("replay", "replayed_app:app", "--running", *queue(program))
    said = program(*replay)

    assert f"Replaying 2 of 2 runs of task queue {queue(program)[1]}." in said.err
    assert "agent billing: not replayed, the app has no such agent" in said.out
    assert said.out.endswith("1 of 2 replay, of agents that this app does not have: 1.\n")
    document = program.json(*replay)
    assert sorted(one["agent"] for one in document["histories"]) == ["billing", "support"]
    assert (document["ok"], document["replays"], document["unknown_agent"]) == (True, 1, 1)


def test_a_run_of_an_agent_that_the_app_does_not_have_fails_a_strict_check(program: Program) -> None:
    replay = ("replay", "replayed_app:app", "--running", "--strict", *queue(program))

    assert program.json(*replay, status=1)["ok"] is False
    assert program.json(*replay, "--limit", "1", status=1)["unknown_agent"] == 1  # The newest.


def test_a_build_that_cannot_go_on_with_an_open_run_is_status_1(program: Program) -> None:
    document = program.json("replay", "replayed_app:renamed", "--running", *queue(program), status=1)

    (diverged,) = (one for one in document["histories"] if one["outcome"] == "diverges")
    assert diverged["workflow_id"].startswith("waiting-")
    assert diverged["source"] is None
    assert diverged["divergence"]["step"] == 5


def test_runs_that_have_ended_are_replayed_when_asked_for(program: Program) -> None:
    closed = program.json("replay", "replayed_app:app", "--closed-since", "1h", *queue(program))
    both = program.json("replay", "replayed_app:app", "--running", "--closed-since", "1h", *queue(program))

    assert [one["agent"] for one in closed["histories"]] == ["typed"]
    assert sorted(one["agent"] for one in both["histories"]) == ["billing", "support", "typed"]


@pytest.mark.parametrize("name", ["nothing-here", "it's \\'"])
def test_a_queue_without_runs_is_no_failure_but_where_the_open_runs_are_is_told(program: Program, name: str) -> None:
    said = program("replay", "replayed_app:app", "--running", "--task-queue", name)

    assert said.out == "0 of 0 replay.\n"
    assert f"No run is there on task queue {name}, but runs are open on others: " in said.err
    assert f"{queue(program)[1]} (2)" in said.err


def test_a_strict_check_fails_when_all_open_runs_are_on_other_queues(program: Program) -> None:
    document = program.json("replay", "replayed_app:app", "--running", "--strict", "--task-queue", "misspelt", status=1)

    assert (document["ok"], document["histories"]) == (False, [])
    assert document["other_queues"][queue(program)[1]] == 2


def test_without_a_server_the_line_says_how_to_start_one(program: Program) -> None:
    nowhere = program.at("127.0.0.1:1")

    assert "No Temporal server answers" in nowhere("replay", "replayed_app:app", "--running", status=1).error
    assert nowhere("replay", "replayed_app:app", WAITING).out == "1 of 1 replay.\n"


def test_what_is_no_history_of_a_run_is_wrong_usage(program: Program, tmp_path: Path) -> None:
    replay = ("replay", "replayed_app:app")
    (tmp_path / "x.json").write_text(json.dumps({"events": []}))

    assert "is no history from its beginning" in program(*replay, WAITING, str(tmp_path), status=2).error
    (tmp_path / "x.json").unlink()
    assert "has no *.json file" in program(*replay, str(tmp_path), status=2).error
