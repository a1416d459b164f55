"""Look at sessions: the conversations that runs take turns in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from interlock.cli._connect import connect
from interlock.cli._console import emit_json, line, out, say, show
from interlock.cli._format import ago, table
from interlock.cli._options import AsJson

if TYPE_CHECKING:
    from rich.table import Table

    from interlock.contracts.sessions import SessionState

SessionArgument = Annotated[
    str, typer.Argument(metavar="ID", help="The session, as `interlock sessions list` shows it.")
]


def list_sessions(
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most so many.")] = 50, as_json: AsJson = False
) -> int:
    """List open sessions, the newest first."""

    async def work() -> int:
        found = await (await connect()).sessions(limit=limit)
        if as_json:
            emit_json([one.model_dump(mode="json") for one in found])
        elif found:
            made = table("Session", "Began")
            for one in found:
                made.add_row(line(one.session_id), ago(one.began_at))
            show(made)
        else:
            say("There are no sessions. Begin one with `interlock runs start AGENT --prompt TEXT --session ID`.")
        return 0

    return asyncio.run(work())


def show_session(
    id: SessionArgument,
    messages: Annotated[
        bool, typer.Option("--messages", help="Print the conversation, as the framework's JSON, and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Show a session: its turns, the one under way, and those that wait. Needs a worker."""

    async def work() -> int:
        client = await connect()
        if messages:
            emit_json(await client.conversation(id))
            return 0
        state = await client.session(id)
        if as_json:
            emit_json(state.model_dump(mode="json"))
        else:
            _print(state)
        return 0

    return asyncio.run(work())


def _print(state: SessionState) -> None:
    from rich.text import Text

    from interlock.journal._words import counted

    console = out()
    of = f" of {line(state.framework)}" if state.framework else ""
    facts = f"{counted(state.turns, 'turn')}, {counted(state.messages, 'message')}{of}, {state.bytes:,} bytes"
    console.print(Text.assemble((line(state.session_id), "bold"), f"  {facts}"), soft_wrap=True)
    if state.closed or state.open:
        console.print(_turns(state))
    if state.full:
        say("The session is full: it takes no more turns. Start a new one.", style="yellow")


def _turns(state: SessionState) -> Table:
    made = table("Turn", "Run", "Agent", "Status", "Messages", "When")
    for closed in state.closed:
        number = str(closed.number or "")
        added = f"{closed.messages:,}" if closed.number else ""
        made.add_row(
            number, line(closed.workflow_id), line(closed.agent), _status(closed.outcome), added, ago(closed.ended_at)
        )
    for turn in state.open:
        status = "under way" if turn.began_at else "waits"
        made.add_row("", line(turn.workflow_id), line(turn.agent), status, "", ago(turn.began_at or turn.started_at))
    return made


def _status(outcome: str) -> str:
    return {"too_large": "did not fit", "released": "released"}.get(outcome, outcome)


COMMANDS = {"list": list_sessions, "show": show_session}
