"""The time of a step, and the bytes it leaves: Interlock against plain `TemporalDurability` and bare activities."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import Lab, WorkerProcess, laboratory
from bench.payload import RESULT_BYTES

STEPS = 50
REPETITIONS = 6
LEAST_REPETITIONS = 5
ENOUGH_SECONDS = 120  # On a busy machine the last repetition is left out.
WARM_UP_STEPS = 10
KINDS = ("interlock", "plain", "bare", "plain-unsandboxed")


@dataclass(frozen=True)
class Measured:
    """One run. wall, cpu: milliseconds for each step, of the run and of the worker's processor. kb: of history."""

    wall: float
    cpu: float
    kb: float


Runs = dict[str, list[Measured]]


async def step(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        workers: dict[str, WorkerProcess] = {}
        for kind in KINDS:
            tell(f"starting the {kind} worker")
            workers[kind] = await lab.worker(kind)
            await _run(lab, kind, workers[kind], WARM_UP_STEPS)
        runs: Runs = {kind: [] for kind in KINDS}
        others, began = lab.others_share(), time.monotonic()
        for repetition in range(REPETITIONS):
            if repetition >= LEAST_REPETITIONS and time.monotonic() - began > ENOUGH_SECONDS:
                break
            for kind in _in_turn(repetition):
                tell(f"repetition {repetition + 1} of {REPETITIONS}, {kind}")
                runs[kind].append(await _run(lab, kind, workers[kind], STEPS))
        busy = Figure("taken by other work meanwhile", "%", others() * 100, None, "of the machine's processors")
    return [*_times(runs), *_processor(runs), busy, *_bytes(runs)]


def _in_turn(repetition: int) -> tuple[str, ...]:
    first = repetition % len(KINDS)
    return (*KINDS[first:], *KINDS[:first])


async def _run(lab: Lab, kind: str, worker: WorkerProcess, steps: int) -> Measured:
    run_id = f"{kind}-{uuid.uuid4().hex[:8]}"
    used, began = worker.cpu_seconds(), time.perf_counter()
    if kind == "interlock":
        run = await lab.client.start("bench", f"lookup*{steps}", id=run_id, usage_limits={"request_limit": None})
        assert (await run.result()).output == "done"
    else:
        name, argument = ("BareWorkflow", steps) if kind == "bare" else ("PlainWorkflow", f"lookup*{steps}")
        result = await lab.client.temporal.execute_workflow(name, argument, id=run_id, task_queue=kind, result_type=str)
        assert result == "done"
    wall, cpu = time.perf_counter() - began, worker.cpu_seconds() - used
    return Measured(wall / steps * 1_000, cpu / steps * 1_000, await lab.history_bytes(run_id) / 1_000)


def _times(runs: Runs) -> list[Figure]:
    def wall(run: Measured) -> float:
        return run.wall

    goals = {"plain": 1.05, "bare": 1.7, "plain-unsandboxed": None}
    ours = runs["interlock"]
    return [
        Figure("a step", "ms", median(map(wall, ours)), None, _spread(ours)),
        *(
            Figure(
                f"a step, against {kind}",
                "x",
                _ratio(runs, kind, wall),
                goal,
                f"{median(map(wall, runs[kind])):.1f} ms, {_spread(runs[kind])}",
            )
            for kind, goal in goals.items()
        ),
    ]


def _processor(runs: Runs) -> list[Figure]:
    def cpu(run: Measured) -> float:
        return run.cpu

    # Beside the wall time, because other work on the machine hardly changes it.
    ours = f"{median(map(cpu, runs['interlock'])):.1f} ms against"
    return [
        Figure(
            f"worker's processor time, against {kind}",
            "x",
            _ratio(runs, kind, cpu),
            None,
            f"{ours} {median(map(cpu, runs[kind])):.1f} ms",
        )
        for kind in ("plain", "bare", "plain-unsandboxed")
    ]


def _bytes(runs: Runs) -> list[Figure]:
    ours = runs["interlock"][-1].kb
    return [
        Figure("history", "kB", ours, None, f"{STEPS} steps, {RESULT_BYTES:,} bytes each"),
        *(
            Figure(f"history, against {kind}", "x", ours / runs[kind][-1].kb, None, f"{runs[kind][-1].kb:,.0f} kB")
            for kind in ("plain", "bare")
        ),
    ]


def _ratio(runs: Runs, kind: str, measure: Callable[[Measured], float]) -> float:
    # Pairs, because the machine's load changes from one minute to the next.
    pairs = zip(runs["interlock"], runs[kind], strict=True)
    return median(measure(ours) / measure(theirs) for ours, theirs in pairs)


def _spread(runs: list[Measured]) -> str:
    walls = [run.wall for run in runs]
    return f"{min(walls):.1f} to {max(walls):.1f} in {len(runs)} runs of {STEPS} steps"
