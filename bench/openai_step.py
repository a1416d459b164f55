"""The time of a step and of a replay with agents of the OpenAI Agents SDK: Interlock against Temporal's integration."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import ROOT, Lab, laboratory
from bench.step import STEPS, Comparison, Other, compared, in_turn

REPLAYS = 9

OPENAI_AGENTS = Comparison(
    "interlock-openai",
    {"max_turns": None},
    {
        "openai": Other("PlainOpenAIWorkflow", 1.05),
        "openai-unsandboxed": Other("PlainOpenAIWorkflow", keeps=False),
    },
)
_GOALS = {"openai": 1.0}


@dataclass(frozen=True)
class _Replay:
    """One replay. wall, cpu: milliseconds, by the clock and of processor time."""

    wall: float
    cpu: float


async def openai(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        figures, runs = await compared(lab, OPENAI_AGENTS, tell)
        ids = {kind: measured[-1].run_id for kind, measured in runs.items()}
        histories, events = await _histories(lab, ids)
        for worker in lab.workers:
            await worker.kill()
        return [*figures, *events, *await _replays(histories, tell)]


async def _histories(lab: Lab, ids: Mapping[str, str]) -> tuple[dict[str, Path], list[Figure]]:
    paths, counts = {}, {}
    for kind, run_id in ids.items():
        history = await lab.client.temporal.get_workflow_handle(run_id).fetch_history()
        paths[kind], counts[kind] = lab.folder / f"{kind}.json", len(history.events) / STEPS
        paths[kind].write_text(history.to_json())
    ours, theirs = counts[OPENAI_AGENTS.ours], counts["openai"]
    return paths, [Figure("events of a step", "", ours, None, f"against {theirs:.2f} of openai")]


async def _replays(histories: Mapping[str, Path], tell: Tell) -> list[Figure]:
    times: dict[str, list[_Replay]] = {kind: [] for kind in histories}
    async with AsyncExitStack() as stack:
        replayers = {kind: await stack.enter_async_context(_replayer(kind, path)) for kind, path in histories.items()}
        for repetition in range(REPLAYS):
            tell(f"replay {repetition + 1} of {REPLAYS}")
            for kind in in_turn(tuple(replayers), repetition):
                times[kind].append(await _replayed(replayers[kind]))
    ours = times[OPENAI_AGENTS.ours]
    figures = [Figure("a replay", "ms", median(one.wall for one in ours), None, _spread(ours))]
    for kind in OPENAI_AGENTS.others:
        theirs = times[kind]
        pairs = list(zip(ours, theirs, strict=True))
        wall, cpu = (median(getattr(a, name) / getattr(b, name) for a, b in pairs) for name in ("wall", "cpu"))
        detail = f"{median(one.wall for one in theirs):.0f} ms, {_spread(theirs)}"
        figures.append(Figure(f"a replay, against {kind}", "x", wall, _GOALS.get(kind), detail))
        figures.append(Figure(f"a replay's processor time, against {kind}", "x", cpu))
    return figures


@asynccontextmanager
async def _replayer(kind: str, path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "bench.openai_replay", kind, str(path)),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        for _ in range(2):
            await _replayed(process)  # The first ones load and compile what the others find.
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _replayed(process: asyncio.subprocess.Process) -> _Replay:
    assert process.stdin
    assert process.stdout
    process.stdin.write(b"\n")
    wall, cpu = map(float, (await process.stdout.readline()).split())
    return _Replay(wall, cpu)


def _spread(replays: list[_Replay]) -> str:
    walls = [one.wall for one in replays]
    return f"{min(walls):.0f} to {max(walls):.0f} in {len(walls)} replays of {STEPS} steps"
