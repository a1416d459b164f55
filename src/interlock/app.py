"""The app: the agents that may run, and how."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.limits import Limit, time_limit
from interlock.contracts.payloads import LONGEST_AGENT_NAME, TimeLimit
from interlock.contracts.ports import SubRuns
from interlock.contracts.reviews import review_rounds
from interlock.prices import OwnPrices, Price
from interlock.settings import Settings

if TYPE_CHECKING:
    from agents import RunConfig, RunHooks

    from interlock.contracts.ports import Adapter
    from interlock.retries import Retries


_FRAMEWORKS = {"pydantic_ai": "pydantic-ai", "agents": "the OpenAI Agents SDK"}


class Interlock:
    """Agents under their names, for a worker to run.

    agents: plain agents of their framework, each with a name of its own. A pydantic-ai agent needs `Durable()`.
    settings: read from `INTERLOCK_*` when not given. retries: how often failing calls are tried again.
    run_config, run_hooks: what `Runner.run` of the OpenAI Agents SDK would be given beside each of its agents.
    review: agents whose outputs a person sees before they are a run's, by name, each with how many outputs of a run may
    be asked about, one after the other: `{"writer": 3}`; True is 5. `Client.start` can name another number for its run.
    prices: what calls of models cost, by the name the provider gives the model; before, and beside, those that the
    agents' framework knows.
    approvals: the time limit of requests whose tools have none of their own, as a tool is given one: one stage, such as
    `{"after_seconds": 86400, "then": "deny"}`, or a list of them.
    Raises MisconfiguredError when an agent cannot be run durably; the message names it and says what to do.
    """

    def __init__(
        self,
        agents: Sequence[Any],
        *,
        settings: Settings | None = None,
        retries: "Retries | None" = None,
        run_config: "RunConfig | None" = None,
        run_hooks: "RunHooks[Any] | None" = None,
        prices: Mapping[str, Price] | None = None,
        approvals: Limit | None = None,
        review: Mapping[str, int | bool] | None = None,
    ) -> None:
        from interlock.retries import Retries

        self._running: dict[str, Any] = {"run_config": run_config, "run_hooks": run_hooks}
        self.settings = settings or Settings.read()
        self.retries = retries or Retries()
        self.prices = OwnPrices(prices or {})
        self.approvals = _time_limit(approvals)
        self.agents = _by_name(agents)
        self.review_rounds = _review_rounds(review or {}, self.agents)
        self.adapter()  # Checks every agent now, where a person sees it.

    def adapter(self, sub_runs: SubRuns | None = None) -> "Adapter":
        """What a worker needs of the agents' framework. sub_runs: starts runs for agents that tools run;
        only a worker needs it."""
        framework = _framework(next(iter(self.agents.values())))
        try:
            make = self._openai_agents() if framework == "agents" else self._pydantic_ai()
        except ModuleNotFoundError as error:
            extra = "openai-agents" if framework == "agents" else "pydantic-ai"
            raise MisconfiguredError(
                f'Running agents of {_FRAMEWORKS[framework]} needs {error.name!r}: pip install "interlock[{extra}]".'
            ) from error
        return make(self.agents, self.retries, sub_runs)

    def _pydantic_ai(self) -> Callable[..., "Adapter"]:
        from interlock.adapters.pydantic_ai.worker import PydanticAIAdapter

        if given := [name for name, value in self._running.items() if value is not None]:
            raise MisconfiguredError(
                f"{' and '.join(given)} belong to the OpenAI Agents SDK; these agents are of pydantic-ai."
            )
        return partial(PydanticAIAdapter, prices=self.prices)

    def _openai_agents(self) -> Callable[..., "Adapter"]:
        from interlock.adapters.openai_agents.worker import OpenAIAgentsAdapter

        return partial(
            OpenAIAgentsAdapter, **self._running, prices=self.prices, send_traces=self.settings.openai_traces
        )


def _time_limit(given: Limit | None) -> TimeLimit | None:
    try:
        return None if given is None else time_limit(given)
    except ValueError as error:
        raise MisconfiguredError(f"Interlock(approvals=...) is no time limit: {error}.") from None


def _by_name(agents: Sequence[Any]) -> Mapping[str, Any]:
    named: dict[str, Any] = {}
    if not isinstance(agents, Sequence) or isinstance(agents, str):
        raise MisconfiguredError("Interlock(agents=...) takes a list of agents: Interlock([support]).")
    if not agents:
        raise MisconfiguredError("Interlock(agents=[]) has no agents. Give it at least one.")
    for agent in agents:
        if not _is_agent(agent):
            raise MisconfiguredError(
                f"{type(agent).__module__}.{type(agent).__name__} is not an agent that Interlock can run. "
                f"Give it agents of {' or '.join(_FRAMEWORKS.values())}."
            )
        if _framework(agent) != _framework(agents[0]):
            raise MisconfiguredError(
                "The agents of one app are of one framework. Make an app for each, with a task queue of its own."
            )
        if not agent.name:
            raise MisconfiguredError('An agent has no name. Give it one where it is made: Agent(..., name="support").')
        if len(agent.name) > LONGEST_AGENT_NAME:
            raise MisconfiguredError(
                f"The name of agent {agent.name[:40]!r}... has {len(agent.name)} characters; at most "
                f"{LONGEST_AGENT_NAME} fit."
            )
        if agent.name in named:
            raise MisconfiguredError(f"Two agents have the name {agent.name!r}. Give each a name of its own.")
        named[agent.name] = agent
    return named


def _review_rounds(review: Mapping[str, int | bool], agents: Mapping[str, Any]) -> Mapping[str, int]:
    if not isinstance(review, Mapping):
        raise MisconfiguredError(f'Interlock(review=...) takes agents by name, {{"writer": 3}}, not {review!r}.')
    if unknown := sorted(map(str, set(review) - set(agents))):
        raise MisconfiguredError(f"review= names {', '.join(unknown)}; the app has: {', '.join(sorted(agents))}.")
    return {name: rounds for name, given in review.items() if (rounds := review_rounds(given)) is not None}


_MARKS = {"pydantic_ai": "deps_type", "agents": "handoffs"}
"""What an agent of each framework has."""


def _framework(agent: object) -> str:
    """The framework that the agent's class is of, or the class that a user has made a class of agents from."""
    roots = [one.__module__.partition(".")[0] for one in type(agent).__mro__]
    return next((root for root in roots if root in _MARKS), roots[0])


def _is_agent(agent: object) -> bool:
    return hasattr(agent, _MARKS.get(_framework(agent), " "))
