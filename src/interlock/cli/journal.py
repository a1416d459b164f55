"""Show what a run did, step by step."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from interlock.cli._connect import connect
from interlock.cli._console import emit_json, say
from interlock.cli._errors import WrongUsageError
from interlock.cli._options import LONGEST_RUN_ID, AsJson, RunId, at_most
from interlock.contracts.errors import MisconfiguredError


def journal(
    id: RunId,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with a timeline, to be opened anywhere.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also the steps of the runs that its tools have started.")
    ] = False,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="An earlier execution, of a run that has several.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the journal of a run: each step, what was asked and decided, and what it cost.

    It is read from the run's history alone, while it runs or afterwards. No worker is needed.

    \b
    Examples:
      interlock journal ticket-7
      interlock journal ticket-7 --deep --html ticket-7.html
    """
    if html is not None and html.is_dir():
        raise WrongUsageError(f"--html {html} is a folder. Name the file to write, such as {html / 'journal.html'}.")
    if html is not None and not html.absolute().parent.is_dir():
        raise WrongUsageError(f"--html {html}: there is no folder {html.absolute().parent}. Make it first.")

    if run_id is not None:
        at_most(run_id, "--run-id", LONGEST_RUN_ID)

    async def work() -> int:
        found = await (await connect()).journal(id, run_id=run_id, deep=deep)
        if html is not None:
            from interlock.journal.html import page

            try:
                html.write_text(page(found), encoding="utf-8")
            except OSError as error:
                raise MisconfiguredError(f"--html {html} cannot be written: {error.strerror}.") from error
            say(f"The page is written: {html}")
        if as_json:
            emit_json(found.model_dump(mode="json"))
        elif html is None:
            from interlock.cli._journal import print_journal

            print_journal(found)
        return 0

    return asyncio.run(work())
