"""Says what a worker's code makes of a tool, for the history to hold."""

from temporalio import activity

from interlock.activities.errors import typed_errors
from interlock.contracts import names
from interlock.contracts.payloads import ToolDescription, ToolQuestion
from interlock.contracts.ports import ToolCatalog


class DescribeTool:
    """The activity, over what a worker knows of its agents' tools."""

    def __init__(self, catalog: ToolCatalog) -> None:
        self._catalog = catalog

    @activity.defn(name=names.DESCRIBE_TOOL)
    @typed_errors
    async def describe_tool(self, question: ToolQuestion) -> ToolDescription:
        """The fingerprint of one tool as this worker's code has it.

        A budget is no tool: the history holds what was asked about it, and its fingerprint is empty.
        Raises MisconfiguredError (not retried) when the worker has no such agent.
        Source: the agents the worker was started with; nothing is fetched.
        """
        if question.kind == "budget":
            return ToolDescription(fingerprint="")
        return ToolDescription(fingerprint=self._catalog.fingerprint(question.agent, question.toolset, question.tool))
