"""What the Temporal UI shows of a run while it is open: Markdown that is kept true to what the run waits for."""

import re
import shlex
from collections.abc import Iterator

from interlock.contracts.budgets import bar, shares
from interlock.contracts.limits import limit_words
from interlock.contracts.masking import call_label
from interlock.contracts.payloads import ApprovalRequest, BudgetState, RunState, Settled, StuckStep


def details(state: RunState, now: list[str], workflow_id: str = "RUN") -> str:
    """The current details of a run. now: labels of the activities in flight."""
    blocks = [f"**{_plain(state.agent)}** · {state.status.replace('_', ' ')}"]
    if state.session:
        blocks.append(f"Session {_code(state.session.session_id)}: {state.session.state.replace('_', ' ')}")
    if state.stuck:
        blocks.append("\n".join(["### Stuck", *(_stuck(step, workflow_id) for step in state.stuck)]))
    if state.budget:
        blocks.append("\n".join(["### Budget", *_budget(state.budget)]))
    if state.requests:
        blocks.append("\n".join(["### Waits for a person", *(_request(request) for request in state.requests)]))
    if now:
        blocks.append("\n".join(["### Now", *(f"- {_plain(label)}" for label in now)]))
    open_runs = [run for run in state.sub_runs if run.usage is None]
    if open_runs:
        at_work = (f"- {_plain(run.agent)}: {_code(run.workflow_id)}" for run in open_runs)
        blocks.append("\n".join(["### Agents at work", *at_work]))
    if state.settled:
        blocks.append("\n".join(["### Decided", *(_settled(settled) for settled in state.settled[-10:])]))
    return "\n\n".join(blocks)


def _stuck(step: StuckStep, workflow_id: str) -> str:
    why = f"{step.error_type}: {step.message}" if step.error_type else step.message
    return (
        f"- **{_plain(step.label)}** has failed for good: {_plain(why)}. The run ends by this at "
        f"{step.ends_at:%Y-%m-%d %H:%M:%S} UTC unless it is retried  \n"
        f"  {_code(f'interlock runs retry {shlex.quote(workflow_id)}')}"
    )


def _budget(budget: BudgetState) -> Iterator[str]:
    yield from (f"- {bar(share.part)} {_plain(share.text)}" for share in shares(budget.limits, budget.spent))
    if budget.waiting:
        yield f"- {budget.waiting} model calls wait for it"
    if budget.ended_by:
        yield f"- {_plain(budget.ended_by)}"


def _request(request: ApprovalRequest) -> str:
    limit = limit_words(request)
    return f"{_asked(request)}  \n  {_plain(limit)}" if limit else _asked(request)


def _asked(request: ApprovalRequest) -> str:
    label = _plain(call_label(request.tool, request.arguments))
    path = _plain(" / ".join(request.agent_path))
    run = shlex.quote(request.workflow_id)
    if request.kind == "tool_result":
        return (
            f"- the result of **{label}** ({path})  \n"
            f"  {_code(f'interlock tools complete {run} {request.request_id} --result JSON')}"
        )
    if request.kind == "outcome":
        return (
            f"- request {request.request_id}: did **{label}** ({path}) happen? {_plain(request.question)}  \n"
            f"  {_code(f'interlock approvals decide {run} {request.request_id} --happened --result JSON')}  \n"
            f"  {_code(f'interlock approvals decide {run} {request.request_id} --not-happened')}"
        )
    if request.kind == "budget":
        return (
            f"- request {request.request_id} ({path}): {_plain(request.question)} By **{label}**  \n"
            f"  {_code(f'interlock approvals decide {run} {request.request_id} --approve')}"
        )
    if request.kind == "output":
        return (
            f"- request {request.request_id}: **{label}** ({path}). {_plain(request.question)}  \n"
            f"  {_code(f'interlock approvals decide {run} {request.request_id} --approve')}  \n"
            f"  {_code(f'interlock approvals decide {run} {request.request_id} --reject --reason TEXT')}"
        )
    return (
        f"- request {request.request_id}: **{label}** ({path}), since {request.requested_at:%Y-%m-%d %H:%M:%S} UTC  \n"
        f"  {_code(f'interlock approvals decide {run} {request.request_id} --approve')}"
    )


def _settled(settled: Settled) -> str:
    who = f" by {_plain(settled.by)}" if settled.by else ""
    edited = ", arguments edited" if settled.edited else ""
    why = f": {_plain(settled.reason)}" if settled.reason else ""
    outcome = settled.outcome.replace("_", " ")
    return f"- request {settled.request_id}, {_plain(settled.label)}: {outcome}{who}{edited}{why}"


def _plain(text: str) -> str:
    # Text from a model must not become Markdown in a page that people trust.
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|!~&" else char for char in " ".join(text.split()))


def _code(text: str) -> str:
    text = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"
