"""What the agents of the soak do: the calls their models make, turn by turn, and what the operator says to each.

`desk` has 14 steps, and one of its calls runs the agent `payer`, which has 6; questions to a person come on top.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

Adapter = Literal["pydantic-ai", "openai-agents"]
ADAPTERS: Sequence[Adapter] = get_args(Adapter)

RUNS: Mapping[Adapter, Mapping[str, Sequence[str]]] = {
    "pydantic-ai": {"desk": ["desk"], "payer": ["payer"]},
    "openai-agents": {"desk": ["desk", "payer"]},
}
"""The agents whose steps a run has, by the agent that it was started with: `payer` is a run that a tool has started, or
a tool itself, and then runs inside."""

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
"""What the operator says when asked about a call. `charge` asks by itself, the others are marked."""

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
    def delegate(self) -> str | None:
        """The agent that it runs."""
        return "payer" if self.name.startswith("delegate/") else None

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


def answers_in(items: Sequence[Any]) -> int:
    """How many answers of a model a conversation has, as the OpenAI Agents SDK writes it: calls that stand together are
    one."""
    answers = [item.get("type") == "function_call" or item.get("role") == "assistant" for item in items]
    return sum(one and not before for before, one in zip([False, *answers], answers, strict=False))
