"""`python -m bench [NAMES...] [--json FILE]`: measures, and says which goals are met.

Exits 0 whatever the figures, 1 when a benchmark broke.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.airflow import airflow
from bench.decision import decision
from bench.figures import Figure, Tell
from bench.heartbeat import heartbeat
from bench.memory import memory
from bench.openai_step import openai
from bench.resume import resume
from bench.startup import startup
from bench.step import step
from bench.stream import stream

Benchmark = Callable[[Tell], Awaitable[list[Figure]]]

BENCHMARKS: dict[str, Benchmark] = {
    "step": step,
    "openai": openai,
    "resume": resume,
    "heartbeat": heartbeat,
    "decision": decision,
    "memory": memory,
    "startup": startup,
    "stream": stream,
    "airflow": airflow,
}
_LIMIT_SECONDS = 480  # Of one that hangs; a busy machine makes it several times as long.
_LIMITS_SECONDS = {"airflow": 3_600}

Results = dict[str, list[Figure]]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    # argparse checks an empty list against `choices`, so the names are checked below.
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {', '.join(BENCHMARKS)}; all without any")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="of airflow: a tenth of it")
    arguments = parser.parse_args(argv)
    names: list[str] = arguments.names or list(BENCHMARKS)
    if unknown := sorted(set(names) - BENCHMARKS.keys()):
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    try:
        results, broken = asyncio.run(_measured(names, quick=arguments.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    # A file or a pipe has no width of its own, and 80 columns would break every cell.
    Console(width=None if sys.stdout.isatty() else 160).print(_table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(results), indent=2) + "\n")
    return 1 if broken else 0


async def _measured(names: list[str], *, quick: bool) -> tuple[Results, list[str]]:
    benchmarks: dict[str, Benchmark] = {**BENCHMARKS, "airflow": partial(airflow, quick=quick)}
    results: Results = {}
    broken: list[str] = []
    # Without this a SIGTERM would leave the server of the benchmark behind.
    if task := asyncio.current_task():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in names:
        with _progress(name) as tell:
            try:
                async with asyncio.timeout(_LIMITS_SECONDS.get(name, _LIMIT_SECONDS)):
                    results[name] = await benchmarks[name](tell)
            except Exception as error:  # One that breaks must not take the others' figures along.
                results[name] = [Figure(name, "", None, None, f"broke: {type(error).__name__}: {error}")]
                broken.append(name)
    return results, broken


@contextmanager
def _progress(name: str) -> Iterator[Tell]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: console.print(f"{name}: {text}", highlight=False)
        return
    with console.status(name) as status:
        yield lambda text: status.update(f"{name}: {text}")


def _table(results: Results) -> Table:
    table = Table("Benchmark", "Figure", title="Interlock's figures")
    table.add_column("Measured", justify="right")
    table.add_column("Goal", justify="right")
    table.add_column("Met")
    table.add_column("Detail", style="dim")
    for name, figures in results.items():
        for figure in figures:
            table.add_row(
                name,
                figure.name,
                "-" if figure.value is None else f"{figure.value:,.2f} {figure.unit}",
                "" if figure.goal is None else f"at most {figure.goal:g} {figure.unit}",
                {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[figure.met],
                figure.detail.replace("[", "\\["),
            )
        table.add_section()
    return table


def _as_json(results: Results) -> list[dict[str, object]]:
    return [
        {"benchmark": name, **asdict(figure), "met": figure.met}
        for name, figures in results.items()
        for figure in figures
    ]


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # A process that used Temporal's client may abort while the interpreter shuts down.
