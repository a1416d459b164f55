"""`python -m soak [PHASES...] [--seed N] [--adapter NAME] [--quick] [--json FILE] [--markdown FILE]`: kills, and says
what it found.

Exits 0 when nothing was found wrong, 1 otherwise.
"""

import argparse
import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import randrange

from rich.console import Console
from rich.table import Table
from temporalio.runtime import LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from soak import airflow, phases
from soak.phases import Soak
from soak.report import Report, markdown, table_rows
from soak.script import ADAPTERS, Adapter

PHASES: Mapping[str, Callable[[Soak], Awaitable[Report]]] = {
    "steps": phases.steps,
    "gauntlet": phases.gauntlet,
    "random": phases.random,
    "pair": phases.pair,
    "server": phases.server,
    "races": phases.races,
    "airflow": airflow.airflow,
}
_LIMIT_SECONDS = 1_800


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the table, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    # argparse checks an empty list against `choices`, so the names are checked below.
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"some of: {', '.join(PHASES)}; all without any")
    parser.add_argument("--seed", type=int, default=randrange(1_000_000), help="repeat a soak; made up when not given")
    parser.add_argument("--adapter", choices=ADAPTERS, help="of the agents; they take turns without it")
    parser.add_argument("--quick", action="store_true", help="about a tenth of everything")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table there")
    arguments = parser.parse_args(argv)
    names: list[str] = arguments.phases or list(PHASES)
    if unknown := sorted(set(names) - PHASES.keys()):
        parser.error(f"no phase {', '.join(unknown)}; there are: {', '.join(PHASES)}")
    # Temporal's client warns of each call that a killed server does not answer, its worker of each attempt that failed.
    logging.getLogger("temporalio").setLevel(logging.ERROR)
    quiet = TelemetryConfig(logging=LoggingConfig(filter=TelemetryFilter(core_level="ERROR", other_level="ERROR")))
    Runtime.set_default(Runtime(telemetry=quiet))
    try:
        adapters: Sequence[Adapter] = [arguments.adapter] if arguments.adapter else ADAPTERS
        reports = asyncio.run(_soaked(names, arguments.seed, quick=arguments.quick, adapters=adapters))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    _show(reports)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(reports) + "\n")
    return 1 if any(report.violations for report in reports) else 0


async def _soaked(names: list[str], seed: int, *, quick: bool, adapters: Sequence[Adapter]) -> list[Report]:
    # Without this a SIGTERM would leave the servers of the soak behind.
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return [await _phase(name, seed, quick=quick, adapters=adapters) for name in names]


async def _phase(name: str, seed: int, *, quick: bool, adapters: Sequence[Adapter]) -> Report:
    folder = Path(tempfile.mkdtemp(prefix=f"interlock-soak-{name}-"))
    console = Console(stderr=True, soft_wrap=True)

    def tell(text: str) -> None:
        console.print(f"{name}: {text}", highlight=False, markup=False)

    options = [*(["--adapter", *adapters] if len(adapters) == 1 else []), *(["--quick"] if quick else [])]
    tell(f"seed {seed}; again with `{' '.join(['python -m soak', name, '--seed', str(seed), *options])}`")
    soak = Soak(name, seed, folder, tell, quick, adapters)
    try:
        async with asyncio.timeout(_LIMIT_SECONDS):
            report = await PHASES[name](soak)
    except Exception as error:  # One that breaks must not take the others' figures along.
        broken = soak.report()
        report = Report(name, seed, broken.seconds, broken.figures, [*broken.violations, f"broke: {error!r}"])
    for violation in report.violations:
        tell(violation)
    if report.violations:
        tell(f"its ledgers and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def _show(reports: Sequence[Report]) -> None:
    header, *rows = table_rows(reports)
    table = Table(*header, title="Interlock's soak")
    for row in rows:
        table.add_row(*row)
    # A file or a pipe has no width of its own, and 80 columns would break every cell.
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # A process that used Temporal's client may abort while the interpreter shuts down.
