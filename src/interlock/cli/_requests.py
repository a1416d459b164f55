"""Requests as people and programs see them: documents, a table, lines, and the commands that settle them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from interlock.cli._console import line, plain, to_json
from interlock.cli._format import ago, table
from interlock.contracts.limits import limit_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table
    from rich.text import Text

    from interlock.contracts.payloads import ApprovalRequest, StuckStep

_WAITS = {
    "approval": "waits for a person",
    "tool_result": "waits for its result",
    "outcome": "was approved; did it happen?",
    "budget": "is asked for",
    "output": "is proposed; is it the output?",
}
_KEYS = ("workflow_id", "request_id", "agent_path", "tool", "arguments", "requested_at")
_LONGEST_ARGUMENT = 300


def request_document(request: ApprovalRequest) -> dict[str, Any]:
    """A request as JSON: what names it, what would run, and what an answer is bound to."""
    document = request.model_dump(mode="json")
    return {name: document[name] for name in _KEYS} | document


def requests_table(requests: Sequence[ApprovalRequest]) -> Table:
    """Requests for people: each with all it would run."""
    made = table("Run", "Request", "Call", "Agent", "Waits")
    for request in requests:
        made.add_row(
            line(request.workflow_id),
            line(request.request_id),
            _call(request),
            line(" / ".join(request.agent_path)),
            "\n".join(filter(None, (ago(request.requested_at).removesuffix(" ago"), line(limit_words(request))))),
        )
        made.add_section()
    return made


def waiting_text(request: ApprovalRequest) -> Text:
    """What a request waits for, in one line: `refund: order A-1001, amount 42.00 waits for a person`."""
    from rich.text import Text

    from interlock.contracts.masking import call_label

    label = line(call_label(request.tool, request.arguments))
    by = line(" / ".join(request.agent_path))
    waits = ", ".join(filter(None, (_WAITS[request.kind], line(limit_words(request)))))
    return Text.assemble((label, "bold"), f"  {waits}", (f" ({by}, request {line(request.request_id)})", "dim"))


def commands_for(request: ApprovalRequest) -> list[str]:
    """The commands that settle a request, ready to be copied."""
    names = f"{_word(request.workflow_id)} {_word(request.request_id)}"
    if request.kind == "tool_result":
        return [f"interlock tools complete {names} --result JSON"]
    if request.kind == "outcome":
        return [
            f"interlock approvals decide {names} --happened --result JSON",
            f"interlock approvals decide {names} --not-happened",
            f"interlock approvals decide {names} --give-up",
        ]
    if request.kind == "budget":
        return [
            f"interlock approvals decide {names} --approve",
            f"interlock approvals decide {names} --extend {_amounts(request)}",
            f"interlock approvals decide {names} --reject",
        ]
    if request.kind == "output":
        return [
            f"interlock approvals decide {names} --approve",
            f"interlock approvals decide {names} --reject --reason TEXT",
            f"interlock approvals decide {names} --give-up --reason TEXT",
        ]
    return [
        f"interlock approvals decide {names} --approve",
        f"interlock approvals decide {names} --reject --reason TEXT",
    ]


def request_text(request: ApprovalRequest, edited: Mapping[str, Any] | None = None) -> Text:
    """A request in full, as a person decides on it. edited: what is to run instead."""
    from rich.text import Text

    text = Text.assemble((line(request.tool), "bold"), f"  {line(' / '.join(request.agent_path))}")
    text.append(f", asked {ago(request.requested_at)}", style="dim")
    if limit := limit_words(request):
        text.append(f"\n{line(limit)}", style="yellow")
    if request.question:
        text.append(f"\n{line(request.question)}", style="yellow")
    if request.description:
        text.append(f"\n{line(request.description)}", style="dim")
    after = request.arguments if edited is None else edited
    for name in [*request.arguments, *(name for name in after if name not in request.arguments)]:
        old, new = (to_json(side[name], indent=None) if name in side else "-" for side in (request.arguments, after))
        text.append(f"\n  {line(name)} ", style="cyan")
        text.append(old if old == new else f"{old} -> {new}", style="" if old == new else "bold")
    if request.metadata is not None:
        text.append(f"\n  {to_json(request.metadata, indent=None)}", style="dim")
    return text


def stuck_text(workflow_id: str, step: StuckStep, *, alone: bool = True) -> list[Text]:
    """A stuck step: what failed, until when the run waits, and the command that has it run again.

    alone: whether it is the run's only one; otherwise the command names it.
    """
    from rich.text import Text

    until = f"{step.ends_at.astimezone():%Y-%m-%d %H:%M}"
    which = "" if alone else f" --step {_word(step.step_id)}"
    why = line(f"{step.error_type}: {step.message}" if step.error_type else step.message)
    return [
        Text.assemble(("! ", "bold red"), (line(step.label), "bold"), "  is stuck ", (f"(until {until})", "dim")),
        Text(f"    {why}", style="red"),
        Text(f"    interlock runs retry {_word(workflow_id)}{which}", style="cyan"),
    ]


def _call(request: ApprovalRequest) -> Text:
    from rich.text import Text

    text = Text(line(request.tool), style="bold")
    if request.kind != "approval":
        asked = {
            "tool_result": " (its result)",
            "budget": " (is used up; extend it?)",
            "output": " (is it the output?)",
        }
        text.append(asked.get(request.kind, " (did it happen?)"), style="dim not bold")
    for name, value in request.arguments.items():
        text.append(f"\n{line(name)} ", style="cyan not bold")
        text.append(_cut(to_json(value, indent=None)), style="not bold")
    return text


def _amounts(request: ApprovalRequest) -> str:
    return _word(",".join(f"{name}={str(value).lower()}" for name, value in request.arguments.items()))


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_ARGUMENT:
        return text
    return f"{text[:_LONGEST_ARGUMENT]}… ({len(text) - _LONGEST_ARGUMENT:,} characters more; --json shows all)"


def _word(text: str) -> str:
    # An id that could act on the terminal is shown, not typed: such a command finds no run.
    return shlex.quote(plain(text))
