"""See which tool calls and outputs wait, and decide them."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from interlock.cli._connect import connect, find
from interlock.cli._console import emit, emit_json, err, plain, say, show
from interlock.cli._errors import WrongUsageError
from interlock.cli._options import (
    LONGEST_REASON,
    LONGEST_REQUEST_ID,
    AsJson,
    RunId,
    amounts,
    at_most,
    exactly_one,
    json_object,
    json_value,
)
from interlock.cli._requests import request_document, request_text, requests_table

if TYPE_CHECKING:
    from interlock.contracts.payloads import ApprovalRequest, Receipt, Verdict

UNSEEN = "unseen"
"""The digest of no request: an answer with it learns why there is nothing to answer, and settles nothing."""


def list_requests(as_json: AsJson = False) -> int:
    """List what waits for a person, or for a result from outside, over all runs, the oldest first."""

    async def work() -> int:
        unanswered: list[str] = []
        requests = await (await connect()).approvals(unanswered=unanswered.append)
        if as_json:
            emit_json([request_document(request) for request in requests])
        elif requests:
            show(requests_table(requests))
            for command in _commands(requests):
                say(command, style="dim")
        else:
            say("Nothing waits for a person.")
        if unanswered:
            say(f"No worker answers for {len(unanswered)} more open runs, such as {unanswered[0]}.", style="yellow")
        return 0

    return asyncio.run(work())


def decide(
    id: RunId,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its number, from `interlock approvals list`.")],
    approve: Annotated[bool, typer.Option("--approve", help="Let the call run.")] = False,
    reject: Annotated[
        bool, typer.Option("--reject", help="Do not let it run; send an output back to its agent.")
    ] = False,
    happened: Annotated[
        bool, typer.Option("--happened", help="An approved call that failed had its effect; it is not run again.")
    ] = False,
    not_happened: Annotated[
        bool, typer.Option("--not-happened", help="An approved call that failed had no effect; it runs now.")
    ] = False,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Nobody can tell whether it happened, or the output will not do; the run ends."),
    ] = False,
    extend: Annotated[
        str | None,
        typer.Option(metavar="AMOUNTS", help="Extend a used-up budget by this, such as requests=10,cost=0.50."),
    ] = None,
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --happened: what the call gave back, for the model.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the model reads it after a rejection.")] = "",
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Approve the call with these arguments, all of them, instead.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT|JSON", help="Approve this output instead: text for one that is text, JSON for others."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Approve or reject a tool call or an output that waits, say whether an approved call happened, or extend a budget.

    \b
    Examples:
      interlock approvals decide ticket-7 1 --approve
      interlock approvals decide ticket-7 1 --approve --arguments '{"amount": 10}'
      interlock approvals decide ticket-7 1 --reject --reason "It was delivered."
      interlock approvals decide ticket-7 2 --happened --result '"refunded"'
      interlock approvals decide ticket-7 3 --extend requests=10,cost=0.50
      interlock approvals decide ticket-7 4 --reject --reason "Say when the money arrives."
      interlock approvals decide ticket-7 5 --approve --output "The money arrives on Friday."
    """
    verdict = _verdict(
        approve=approve,
        reject=reject,
        happened=happened,
        not_happened=not_happened,
        give_up=give_up,
        extend=extend is not None,
    )
    edited = json_object(arguments, "--arguments") if arguments is not None else None
    if extend is not None:
        if edited is not None:
            raise WrongUsageError("--extend says by how much; --arguments goes with --approve.")
        edited = amounts(extend, "--extend")
    if output is not None and (edited is not None or verdict != "approve"):
        raise WrongUsageError("--output goes with --approve, alone; a rejection takes a --reason.")
    if edited is not None and verdict != "approve":
        raise WrongUsageError("--arguments goes with --approve; a rejection takes a --reason.")
    value = json_value(result, "--result") if result is not None else None
    if result is not None and verdict != "happened":
        raise WrongUsageError("--result goes with --happened.")
    at_most(request, "REQUEST", LONGEST_REQUEST_ID)
    at_most(reason, "--reason", LONGEST_REASON)

    async def work() -> int:
        found = await find(id)
        await found.need_worker()
        asked = [one for one in await found.run.approvals() if one.request_id == request] if found.open else []
        changed = edited if output is None else _output(output, asked)
        for one in asked:
            err().print(request_text(one, changed))
        digest = asked[0].digest if asked else UNSEEN
        receipt = await found.run.decide(
            request, verdict, reason=reason, arguments=changed, result=value, digest=digest
        )
        print_receipt(receipt, asked, as_json=as_json)
        return 0

    return asyncio.run(work())


def _verdict(**given: bool) -> "Verdict":
    exactly_one(**given)
    words: dict[str, Verdict] = {
        "approve": "approve",
        "reject": "reject",
        "happened": "happened",
        "not_happened": "not_happened",
        "give_up": "give_up",
        "extend": "approve",
    }
    return next(word for name, word in words.items() if given[name])


def _output(given: str, asked: "list[ApprovalRequest]") -> dict[str, Any]:
    """The arguments that stand for an output."""
    if asked and asked[0].kind != "output":
        raise WrongUsageError("--output is for a request about an output; a call takes --arguments.")
    is_text = bool(asked) and isinstance(asked[0].arguments.get("output"), str)
    return {"output": given if is_text else json_value(given, "--output")}


def _commands(requests: "list[ApprovalRequest]") -> list[str]:
    kinds = {request.kind for request in requests}
    decide = "Decide one with: interlock approvals decide RUN REQUEST --approve"
    complete = "Report a result with: interlock tools complete RUN REQUEST --result JSON"
    settle = "Say whether one happened with: interlock approvals decide RUN REQUEST --happened --result JSON"
    extend = "Extend a budget with: interlock approvals decide RUN REQUEST --approve (or --extend requests=10)"
    review = "Send an output back with: interlock approvals decide RUN REQUEST --reject --reason TEXT (or --approve it)"
    texts = {"budget": extend, "approval": decide, "output": review, "tool_result": complete, "outcome": settle}
    return [text for kind, text in texts.items() if kind in kinds]


def print_receipt(receipt: "Receipt", asked: "list[ApprovalRequest]", *, as_json: bool) -> None:
    """Say what became of an answer."""
    tool = asked[0].tool if asked else ""
    if as_json:
        document: dict[str, Any] = {**receipt.model_dump(mode="json"), "tool": tool}
        emit_json(document)
    else:
        emit(plain(f"{receipt.outcome}: {tool}, request {receipt.request_id} of run {receipt.workflow_id}"))


COMMANDS = {"list": list_requests, "decide": decide}
