"""Says what a worker's code makes of a tool, for the history to hold."""

from temporalio import activity

from interlock.activities.errors import typed_errors
from interlock.contracts import names
from interlock.contracts.limits import LIMITED_KINDS
from interlock.contracts.payloads import TimeLimit, ToolDescription, ToolQuestion
from interlock.contracts.ports import ToolCatalog


class DescribeTool:
    """The activity, over what a worker knows of its agents' tools.

    time_limit: of requests for whose tools the code that asks has none.
    """

    def __init__(self, catalog: ToolCatalog, time_limit: TimeLimit | None = None) -> None:
        self._catalog = catalog
        self._time_limit = time_limit

    @activity.defn(name=names.DESCRIBE_TOOL)
    @typed_errors
    async def describe_tool(self, question: ToolQuestion) -> ToolDescription:
        """The fingerprint of one tool as this worker's code has it.

        A budget and an output are no tools: the history holds what was asked about, and the fingerprint is empty.
        The time limit is in what is returned because a replay reads that again: code that has changed since the
        request was opened does not change its limit.
        Raises MisconfiguredError (not retried) when the worker has no such agent.
        Source: the agents the worker was started with; nothing is fetched.
        """
        if question.kind in ("budget", "output"):
            return ToolDescription(fingerprint="")
        fingerprint = self._catalog.fingerprint(question.agent, question.toolset, question.tool)
        limit = question.time_limit or self._time_limit
        return ToolDescription(fingerprint=fingerprint, time_limit=limit if question.kind in LIMITED_KINDS else None)
