"""How often failing calls are tried again: the policies of all agents of an app, in one place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.common import RetryPolicy


def _of_models() -> RetryPolicy:
    return RetryPolicy(maximum_interval=timedelta(minutes=5), maximum_attempts=10)


def _of_tools() -> RetryPolicy:
    return RetryPolicy(maximum_interval=timedelta(minutes=1), maximum_attempts=5)


@dataclass(frozen=True)
class Retries:
    """Temporal's retry policies for the calls of an app's agents. A call that has used its attempts up has failed for
    good: its run is stuck until somebody retries it.

    model: of calls to models; by default ten attempts over about eight minutes. What a provider says by `Retry-After`
    takes the place of the policy's interval, up to its `maximum_interval`. A refused request (a wrong key, an
    unknown model, a used-up quota) is not tried again, whatever the policy says.
    tool: of calls of tools; by default five attempts over 15 seconds. An approved call has one attempt unless its tool
    declares itself idempotent.
    tools: of single tools, by name.

    What an agent, a toolset or a tool says for itself (Temporal's `ActivityConfig`) comes first.
    """

    model: RetryPolicy = field(default_factory=_of_models)
    tool: RetryPolicy = field(default_factory=_of_tools)
    tools: Mapping[str, RetryPolicy] = field(default_factory=dict)

    def of_tool(self, name: str) -> RetryPolicy:
        """The policy for a tool."""
        return self.tools.get(name, self.tool)
