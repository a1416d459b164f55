"""Which step of a run is which: how places are written, and read again."""

import re
from typing import Final

MODEL_SUFFIXES: Final = ("__model_request", "__model_request_stream")
"""How the names of activities end that ask a model."""

_STEP = re.compile(r"(?P<place>(?:tool:\d+)?(?:/\d+(?:/tool:\d+)?)*)/(?P<activity>.*):\d+", re.DOTALL)


def step_parts(step: str) -> tuple[str, str]:
    """The place of a step in its run, and the activity that it is; both empty for what is no step's name.

    A place is the one of a tool call (`tool:4`), of an agent's run inside of it (`tool:4/1`), of a call of that agent's
    (`tool:4/1/tool:2`), and so on; empty for the run's own agent.
    """
    found = _STEP.fullmatch(step)
    return (found["place"], found["activity"]) if found else ("", "")


def ranks(place: str) -> tuple[int, ...]:
    """The numbers in a place, from the outermost."""
    return tuple(int(number) for number in re.findall(r"\d+", place))


def is_call(place: str) -> bool:
    """Whether it is the place of a tool call."""
    return place.rpartition("/")[2].startswith("tool:")
