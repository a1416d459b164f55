"""Start runs, look at them, wait for them, stop them."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli._connect import Found, connect, find
from interlock.cli._console import emit, emit_json, err, plain, say, show, to_json
from interlock.cli._errors import WrongUsageError
from interlock.cli._options import (
    LONGEST_REASON,
    LONGEST_RUN_ID,
    LONGEST_STEP_ID,
    AsJson,
    BudgetText,
    RunId,
    TaskQueue,
    at_most,
    json_object,
    json_value,
    not_empty,
)
from interlock.cli._options import budget as read_budget
from interlock.cli._runs import print_end, run_document, run_page, runs_table, started_document
from interlock.contracts.errors import RefusedError, RunFailedError, UnavailableError

if TYPE_CHECKING:
    from interlock.run import Run

_CANCEL_WITHIN_SECONDS = 10


def start(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What the agent is asked to do.")],
    id: Annotated[
        str | None, typer.Option(metavar="ID", help="A name of your own: what is started twice under it is one run.")
    ] = None,
    deps: Annotated[str | None, typer.Option(metavar="JSON", help="What the agent's dependencies are made of.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="A model in place of the agent's own.")] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The conversation that the run is the next turn of; a new ID begins one."),
    ] = None,
    previous_response_id: Annotated[
        str | None, typer.Option(metavar="ID", help="The answer, kept by the provider, that the run goes on from.")
    ] = None,
    auto_previous_response_id: Annotated[
        bool, typer.Option("--auto-previous-response-id", help="Send the provider only what it does not have.")
    ] = False,
    budget: BudgetText = None,
    restart: Annotated[bool, typer.Option("--restart", help="If the run with this id has ended, start over.")] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Record what its models and tools say while they work, for watchers.")
    ] = False,
    review: Annotated[
        bool, typer.Option("--review", help="Ask a person about the output before the run ends with it.")
    ] = False,
    review_rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, max=100, help="The same, about N outputs at most; --review is 5.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its steps and print its output.")] = False,
    task_queue: TaskQueue = None,
    as_json: AsJson = False,
) -> int:
    """Start a run and print its id.

    \b
    Examples:
      interlock runs start support --prompt "Order A-1001 arrived broken." --wait
      interlock runs start support --prompt "Hi" --id ticket-7 --deps '{"customer": 7}'
      interlock runs start support --prompt "And A-1002?" --session customer-7
      interlock runs start support --prompt "Hi" --budget requests=20,cost=1.50
    """
    not_empty(agent, "AGENT", "an agent's name")
    not_empty(prompt, "--prompt", "what the agent is to do")
    if id is not None:
        not_empty(id, "--id", "the run a name, or leave it out")
        at_most(id, "--id", LONGEST_RUN_ID)
    if session is not None:
        not_empty(session, "--session", "the session's id, or leave it out")
    given = json_value(deps, "--deps") if deps is not None else None
    limits = read_budget(budget)

    async def work() -> int:
        client = await connect(task_queue)
        run = await client.start(
            agent,
            prompt,
            id=id,
            deps=given,
            model=model,
            session=session,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            stream=stream,
            budget=limits,
            review=review_rounds or review,
            restart=restart,
        )
        try:
            await run.accepted()
        except UnavailableError:  # The run is stored all the same, so its id must not be lost.
            _print_started(run, agent, as_json=as_json)
            raise
        except RunFailedError:
            if as_json:
                emit_json(run_document(await run.report()))
            raise
        if not wait:
            _print_started(run, agent, as_json=as_json)
            return 0
        say(f"Run {run.id}", style="bold")
        return await _to_its_end(Found(client, run, open=True), follow=True, as_json=as_json)

    return asyncio.run(work())


def list_runs(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 50, as_json: AsJson = False
) -> int:
    """List runs: the open ones first, then those that ended last."""

    async def work() -> int:
        reports = await (await connect()).runs(limit=limit)
        if as_json:
            emit_json([run_document(report) for report in reports])
        elif reports:
            show(runs_table(reports))
        else:
            say("There are no runs. Start one with `interlock runs start AGENT --prompt TEXT`.")
        return 0

    return asyncio.run(work())


def show_run(id: RunId, as_json: AsJson = False) -> int:
    """Show a run: how it stands, its steps, what it waits for and what it gave back."""

    async def work() -> int:
        await run_page(await find(id), as_json=as_json)
        return 0

    return asyncio.run(work())


def wait(id: RunId, as_json: AsJson = False) -> int:
    """Wait for a run's end and print its output. What it is at is shown on a terminal only."""

    async def work() -> int:
        return await _to_its_end(await find(id), follow=err().is_terminal, as_json=as_json)

    return asyncio.run(work())


def watch(
    id: RunId,
    from_offset: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", min=0, help="With --json: leave out the events before it.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document for each event, a line each.")
    ] = False,
) -> int:
    """Follow a run to its end, a line for each step, and print its output.

    What models and tools say while they work is shown when the run was started with --stream.

    With --json every event is a line, with its offset. A reader that stopped after an event goes on with
    --from and its offset + 1, during the run or later; the last event is of the kind run_ended.

    \b
    Examples:
      interlock runs watch ticket-7
      interlock runs watch ticket-7 --json --from 120
    """
    if from_offset is not None and not as_json:
        raise WrongUsageError("--from goes with --json.")

    async def work() -> int:
        found = await find(id)
        if as_json:
            return await _print_events(found, from_offset or 0)
        return await _to_its_end(found, follow=True, as_json=False)

    return asyncio.run(work())


def cancel(id: RunId, as_json: AsJson = False) -> int:
    """Ask a run to end. What it waits for is withdrawn."""

    async def work() -> int:
        found = await find(id)
        if not found.open:
            report = await found.run.report()
            raise RefusedError(f"Run {id!r} is {report.status.replace('_', ' ')} already: there is nothing to cancel.")
        await found.run.cancel()
        if await found.works():
            await _ended(found.run)
        else:
            say(f"No worker is there for run {id}: it ends when one starts.")
        report = await found.run.report()
        if as_json:
            emit_json(run_document(report))
        else:
            emit(plain(f"{id}: {report.status.replace('_', ' ')}"))
        return 0

    return asyncio.run(work())


def retry(
    id: RunId,
    step: Annotated[
        str, typer.Option(metavar="N", help="Of several stuck steps only this one, by the number in `runs show`.")
    ] = "",
    new_limits: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Usage limits in place of the run's, such as '{\"request_limit\": 80}'."),
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; it is kept with the run.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Show its steps and print its output.")] = False,
    as_json: AsJson = False,
) -> int:
    """Have a stuck run go on: what failed runs again, and nothing that completed.

    \b
    Examples:
      interlock runs retry ticket-7
      interlock runs retry ticket-7 --new-limits '{"request_limit": 80}' --wait
    """
    limits = (
        json_object(new_limits, "--new-limits", such_as='{"request_limit": 80}') if new_limits is not None else None
    )
    at_most(step, "--step", LONGEST_STEP_ID)
    at_most(reason, "--reason", LONGEST_REASON)

    async def work() -> int:
        found = await find(id)
        await found.need_worker()
        receipt = await found.run.retry(step=step, usage_limits=limits, reason=reason)
        if wait:
            return await _to_its_end(found, follow=True, as_json=as_json)
        if as_json:
            emit_json(receipt.model_dump(mode="json"))
        else:
            emit(plain(f"{id}: stuck step {', '.join(receipt.steps)} runs again"))
        return 0

    return asyncio.run(work())


def fork(
    id: RunId,
    at: Annotated[int, typer.Option("--at", metavar="STEP", min=1, help="The first step that is not taken over.")],
    message: Annotated[str, typer.Option(metavar="TEXT", help="Say this to the model at that step.")] = "",
    decision: Annotated[
        str | None, typer.Option(metavar="approve|reject", help="Decide the request at that step so.")
    ] = None,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="With --decision approve: run with these.")
    ] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="With --decision: why.")] = "",
    result: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the call at that step gives back; it is not run.")
    ] = None,
    budget: BudgetText = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Fork an earlier execution of the run.")
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="A name of your own for the new run.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before the new run is started.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Show its steps and print its output.")] = False,
    as_json: AsJson = False,
) -> int:
    """Start a new run that takes over what another one did before a step, and goes on from there by itself.

    Nothing of what is taken over runs again. The other run stays as it is.

    \b
    Examples:
      interlock journal ticket-7
      interlock runs fork ticket-7 --at 5
      interlock runs fork ticket-7 --at 5 --message "The order was delivered; look again."
      interlock runs fork ticket-7 --at 4 --result '{"status": "delivered"}' --wait
    """
    given = [name for name, value in (("--message", message), ("--decision", decision), ("--result", result)) if value]
    if len(given) > 1:
        raise WrongUsageError(f"A fork changes one thing at its step; {' and '.join(given)} are given.")
    if decision not in (None, "approve", "reject"):
        raise WrongUsageError(f"--decision is approve or reject, not {decision!r}.")
    if (arguments is not None or reason) and decision is None:
        raise WrongUsageError("--arguments and --reason go with --decision.")
    at_most(reason, "--reason", LONGEST_REASON)
    if new_id is not None:
        not_empty(new_id, "--id", "the run a name, or leave it out")
        at_most(new_id, "--id", LONGEST_RUN_ID)
    edited = json_object(arguments, "--arguments") if arguments is not None else None
    value = json_value(result, "--result") if result is not None else None
    limits = read_budget(budget)

    async def work() -> int:
        from interlock._rpc import current_user
        from interlock.cli._forks import confirmed
        from interlock.fork import NO_RESULT, decision_for

        found = await find(id)
        decided = decision_for(decision, reason=reason, arguments=edited, by=current_user()) if decision else None
        plan = await found.client.plan_fork(
            id, at=at, run_id=run_id, message=message, decision=decided, result=NO_RESULT if result is None else value
        )
        if not confirmed(plan, yes=yes):
            say("Nothing was started.")
            return 1
        run = await found.client.fork(plan, id=new_id, budget=limits)
        if wait:
            say(f"Run {run.id}", style="bold")
            return await _to_its_end(Found(found.client, run, open=True), follow=True, as_json=as_json)
        _print_started(run, plan.run.agent, as_json=as_json)
        return 0

    return asyncio.run(work())


async def _print_events(found: Found, from_offset: int) -> int:
    status = ""
    async for event in found.run.events(from_offset=from_offset):
        emit(to_json(event.model_dump(mode="json", exclude_defaults=True), indent=None))
        status = event.status if event.kind == "run_ended" else status
    return 0 if status in ("", "completed") else 1


async def _to_its_end(found: Found, *, follow: bool, as_json: bool) -> int:
    from interlock.cli._follow import follow as follow_run

    if found.open and not await found.works():
        say(f"No worker takes runs from task queue {found.client.task_queue!r}; the run goes on when one starts.")
    try:
        if follow:
            await follow_run(found.client, found.run)
        await print_end(found.run, as_json=as_json)
    except asyncio.CancelledError:
        say(f"The run goes on. Wait for it with: interlock runs wait {found.run.id}")
        raise
    return 0


async def _ended(run: "Run") -> None:
    try:
        async with asyncio.timeout(_CANCEL_WITHIN_SECONDS):
            await run.result()
    except (RunFailedError, TimeoutError):
        return


def _print_started(run: "Run", agent: str, *, as_json: bool) -> None:
    if as_json:
        emit_json(started_document(run, agent))
    else:
        emit(plain(run.id))


COMMANDS = {
    "start": start,
    "list": list_runs,
    "show": show_run,
    "wait": wait,
    "watch": watch,
    "retry": retry,
    "fork": fork,
    "cancel": cancel,
}
