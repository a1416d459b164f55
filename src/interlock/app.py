"""The app: the agents that may run, and how."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.ports import SubRuns
from interlock.prices import OwnPrices, Price
from interlock.settings import Settings

if TYPE_CHECKING:
    from interlock.adapters.pydantic_ai.worker import PydanticAIAdapter
    from interlock.retries import Retries


class Interlock:
    """Agents under their names, for a worker to run.

    agents: plain agents of their framework, each with a name of its own. A pydantic-ai agent needs `Durable()`.
    settings: read from `INTERLOCK_*` when not given. retries: how often failing calls are tried again.
    prices: what calls of models cost, by the name the provider gives the model; before, and beside, those that the
    agents' framework knows.
    Raises MisconfiguredError when an agent cannot be run durably; the message names it and says what to do.
    """

    def __init__(
        self,
        agents: Sequence[Any],
        *,
        settings: Settings | None = None,
        retries: "Retries | None" = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        from interlock.retries import Retries

        self.settings = settings or Settings.read()
        self.retries = retries or Retries()
        self.prices = OwnPrices(prices or {})
        self.agents = _by_name(agents)
        self.adapter()  # Checks every agent now, where a person sees it.

    def adapter(self, sub_runs: SubRuns | None = None) -> "PydanticAIAdapter":
        """What a worker needs of the agents' framework. sub_runs: starts runs for agents that tools run;
        only a worker needs it."""
        try:
            from interlock.adapters.pydantic_ai.worker import PydanticAIAdapter
        except ModuleNotFoundError as error:
            raise MisconfiguredError(
                f'Running agents of pydantic-ai needs {error.name!r}: pip install "interlock[pydantic-ai]".'
            ) from error

        return PydanticAIAdapter(self.agents, self.retries, sub_runs, self.prices)


def _by_name(agents: Sequence[Any]) -> Mapping[str, Any]:
    named: dict[str, Any] = {}
    if not isinstance(agents, Sequence) or isinstance(agents, str):
        raise MisconfiguredError("Interlock(agents=...) takes a list of agents: Interlock([support]).")
    if not agents:
        raise MisconfiguredError("Interlock(agents=[]) has no agents. Give it at least one.")
    for agent in agents:
        root = type(agent).__module__.partition(".")[0]
        if root != "pydantic_ai" or not hasattr(agent, "deps_type"):
            raise MisconfiguredError(
                f"{type(agent).__module__}.{type(agent).__name__} is not an agent that Interlock can run. "
                "Give it agents of pydantic-ai."
            )
        if not agent.name:
            raise MisconfiguredError('An agent has no name. Give it one where it is made: Agent(..., name="support").')
        if agent.name in named:
            raise MisconfiguredError(f"Two agents have the name {agent.name!r}. Give each a name of its own.")
        named[agent.name] = agent
    return named
