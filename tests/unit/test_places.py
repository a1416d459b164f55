"""Steps have names that say where in a run they belong, and that can be read again."""

import pytest

from interlock.contracts.places import is_call, ranks, step_parts


@pytest.mark.parametrize(
    ("step", "place", "activity"),
    [
        ("/agent__support__model_request:1", "", "agent__support__model_request"),
        (
            "tool:4/agent__support__toolset__refunds__call_tool:12",
            "tool:4",
            "agent__support__toolset__refunds__call_tool",
        ),
        ("tool:4/1/agent__payer__model_request:2", "tool:4/1", "agent__payer__model_request"),
        ("tool:4/1/tool:2/describe_tool:1", "tool:4/1/tool:2", "describe_tool"),
        ("/1/tool:2/3/describe_tool:1", "/1/tool:2/3", "describe_tool"),
        ("/agent__team/4/x__model_request:1", "", "agent__team/4/x__model_request"),
        ("tool:4/agent__a/b\nc__call_tool:1", "tool:4", "agent__a/b\nc__call_tool"),
        ("", "", ""),
        ("nonsense", "", ""),
    ],
)
def test_the_place_and_the_activity_are_read_from_a_steps_name(step: str, place: str, activity: str) -> None:
    assert step_parts(step) == (place, activity)


def test_a_place_says_its_numbers_and_whether_it_is_a_calls() -> None:
    assert ranks("tool:4/1/tool:2") == (4, 1, 2)
    assert [is_call(place) for place in ("tool:4", "tool:4/1/tool:2", "", "tool:4/1")] == [True, True, False, False]
