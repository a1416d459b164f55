"""What holds for the activities of both frameworks."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json, to_json
from temporalio.exceptions import ApplicationError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from interlock._failures import failure_of
from interlock.contracts import names
from interlock.contracts.canonical import digest
from interlock.contracts.payloads import Ticket
from interlock.contracts.ports import ToolCatalog


class AttemptInterceptor(Interceptor):
    """Ends an attempt whose code raises what is meant to end more than it, such as SystemExit; no other one follows."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            return await super().execute_activity(input)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise failure_of(error) from None


def check_ticket(catalog: ToolCatalog, ticket: Ticket, arguments: Mapping[str, Any]) -> None:
    """Raise when what would run now is not what was approved."""
    if digest(from_json(to_json(arguments))) != ticket.arguments_digest:
        raise _changed(ticket, "the arguments")
    if catalog.fingerprint(ticket.agent, ticket.toolset, ticket.tool) != ticket.fingerprint:
        raise _changed(ticket, "the tool")


def bound_to(toolset: Any) -> list[str]:
    """What a toolset goes to that the schemas of its tools do not show.

    Its id, and what Airflow's toolsets say of their connection and the like: a class may have one id for all of them.
    """
    fields = getattr(toolset, "agent_template_fields", ())
    return [str(toolset.id), *(f"{field}={getattr(toolset, field, None)}" for field in fields)]


def _changed(ticket: Ticket, what: str) -> ApplicationError:
    return ApplicationError(
        f"Since request {ticket.request_id!r} was approved {what} of {ticket.tool!r} changed; it is asked for again.",
        type=names.TOOL_CHANGED,
        non_retryable=True,
    )
