"""Report results of calls that ran elsewhere."""

import asyncio
from typing import Annotated

import typer

from interlock.cli._connect import find
from interlock.cli._errors import WrongUsageError
from interlock.cli._options import LONGEST_REQUEST_ID, AsJson, RunId, at_most, exactly_one, json_value
from interlock.cli.approvals import UNSEEN, print_receipt

_LONGEST_ERROR = 10_000


def complete(
    id: RunId,
    call: Annotated[str, typer.Argument(metavar="CALL", help="The request's number, or the model's id of the call.")],
    result: Annotated[str | None, typer.Option(metavar="JSON", help="What the call gave back.")] = None,
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="What went wrong; the model reads it.")] = None,
    as_json: AsJson = False,
) -> int:
    """Give a waiting tool call its result, or say why there is none.

    \b
    Examples:
      interlock tools complete ticket-7 2 --result '{"delivered": true}'
      interlock tools complete ticket-7 2 --error "The warehouse does not answer."
    """
    at_most(call, "CALL", LONGEST_REQUEST_ID)
    exactly_one(result=result is not None, error=error is not None)
    value = json_value(result, "--result") if result is not None else None
    if error is not None and not 0 < len(error.strip()) <= len(error) <= _LONGEST_ERROR:
        raise WrongUsageError(f"--error takes 1 to {_LONGEST_ERROR:,} characters, not {len(error):,}.")

    async def work() -> int:
        found = await find(id)
        await found.need_worker()
        asked = await found.run.approvals() if found.open else []
        asked = [one for one in asked if one.request_id == call] or [one for one in asked if one.call_id == call]
        digest = asked[0].digest if asked else UNSEEN
        receipt = await found.run.complete_tool_call(call, result=value, error=error, digest=digest)
        print_receipt(receipt, asked, as_json=as_json)
        return 0

    return asyncio.run(work())


COMMANDS = {"complete": complete}
