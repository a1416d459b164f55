"""What the agents of the soak do: the calls their models make, turn by turn, and what the operator says to each.

A run of `desk` has 14 steps and starts one run of `payer`, which has 6; questions to a person come on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["approve", "edit", "reject"]

SCRIPTS: Mapping[str, Sequence[Sequence[str]]] = {
    "desk": [
        ["look/A", "look/B", "refund/A"],
        ["delegate/A", "refund/B", "erase/B"],
        ["stamp/A", "charge/A"],
        ["note/A"],
    ],
    "payer": [["check/A", "pay/A"], ["record/A"]],
}
"""The calls of each turn of an agent, as TOOL/ORDER. After the last turn the model gives its output."""

VERDICTS: Mapping[str, Verdict] = {
    "refund/A": "approve",
    "refund/B": "edit",
    "erase/B": "reject",
    "charge/A": "approve",
    "pay/A": "approve",
}
"""What the operator says when asked about a call. `charge` asks from its body, the others are marked."""

ASKED_AMOUNT, EDITED_AMOUNT = 50, 20
REJECTED = "not this one"


@dataclass(frozen=True)
class Call:
    """One call of an agent: what it is named in the script, and the turn that makes it."""

    agent: str
    name: str
    turn: int

    @property
    def step(self) -> str:
        """Its name among all steps of a run and the runs that run starts."""
        return step_name(self.agent, self.name)

    @property
    def verdict(self) -> Verdict | None:
        """What the operator says to it; None when nobody is asked."""
        return VERDICTS.get(self.name)

    @property
    def runs_once(self) -> bool:
        """Whether it has an effect that must never happen twice."""
        return self.verdict in ("approve", "edit")


def step_name(agent: str, name: str) -> str:
    """What a step of an agent is called: `desk:refund/A`, `desk:model/0`."""
    return f"{agent}:{name}"


def calls_of(agent: str) -> list[Call]:
    """The calls of an agent, in the order of its script."""
    return [Call(agent, name, turn) for turn, names in enumerate(SCRIPTS[agent]) for name in names]


def model_steps(agent: str) -> list[str]:
    """The model calls of an agent: one per turn, and one for the output."""
    return [step_name(agent, f"model/{turn}") for turn in range(len(SCRIPTS[agent]) + 1)]
