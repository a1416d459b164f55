"""Which version's workers a run waits for, and what to do when there are none."""

import pytest
from temporalio.common import WorkerDeploymentVersion

from interlock._versions import Version, Workers, promotion

ONE, TWO = (WorkerDeploymentVersion("support", build) for build in ("1", "2"))
START = "Start one: interlock worker run MODULE:APP"
START_ONE = "Start one of that build: interlock worker run MODULE:APP --deployment support --build-id 1"


@pytest.mark.parametrize(
    ("current", "polling", "pinned_to", "served", "todo"),
    [
        (None, [None], None, True, START),
        (None, [], None, False, START),
        (None, [], ONE, False, START_ONE),
        (None, [ONE], None, False, f"Version support:1 has workers but is not current. Make it so: {promotion(ONE)}"),
        (ONE, [ONE], None, True, START_ONE),
        (ONE, [TWO], None, False, START_ONE),
        (ONE, [None], None, False, START_ONE),
        (TWO, [TWO], ONE, False, START_ONE),
        (TWO, [ONE, TWO], ONE, True, START_ONE),
    ],
)
def test_a_run_waits_for_the_version_it_is_pinned_to_or_else_for_the_current_one(
    current: Version, polling: list[Version], pinned_to: Version, served: bool, todo: str
) -> None:
    workers = Workers(current, frozenset(polling))

    assert workers.serve(pinned_to) is served
    assert workers.todo(pinned_to) == todo


def test_of_several_versions_that_are_not_current_all_are_named() -> None:
    todo = Workers(None, frozenset([ONE, TWO])).todo()

    assert todo.startswith("Versions support:1, support:2 have workers, but none is current. Make one so: temporal")


def test_a_command_can_be_copied_into_a_shell() -> None:
    assert "--build-id '2 (blue)' --yes" in promotion(WorkerDeploymentVersion("support", "2 (blue)"))
