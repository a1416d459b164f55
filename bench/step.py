"""The time of a step, and the bytes it leaves: Interlock against a framework's own Temporal integration, and others."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

from bench.figures import Figure, Tell
from bench.lab import Lab, WorkerProcess, laboratory
from bench.payload import RESULT_BYTES
from interlock.contracts.payloads import Json

STEPS = 50
REPETITIONS = 6
LEAST_REPETITIONS = 5
ENOUGH_SECONDS = 120  # On a busy machine the last repetition is left out.
WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Other:
    """What Interlock is compared with. workflow: of its worker, by name; it takes the prompt. goal: the most that
    Interlock's time may be of its. keeps: whether it leaves a history of its own kind."""

    workflow: str
    goal: float | None = None
    keeps: bool = True


@dataclass(frozen=True)
class Comparison:
    """ours: the kind of Interlock's worker. limits: of its runs. others: by the kinds of their workers."""

    ours: str
    limits: dict[str, Json]
    others: Mapping[str, Other]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of all workers."""
        return (self.ours, *self.others)


PYDANTIC_AI = Comparison(
    "interlock",
    {"request_limit": None},
    {
        "plain": Other("PlainWorkflow", 1.05),
        "bare": Other("BareWorkflow", 1.7),
        "plain-unsandboxed": Other("PlainWorkflow", keeps=False),
    },
)


@dataclass(frozen=True)
class Measured:
    """One run. wall, cpu: milliseconds for each step, of the run and of the worker's processor. kb: of history.

    run_id: of the workflow.
    """

    run_id: str
    wall: float
    cpu: float
    kb: float


Runs = dict[str, list[Measured]]


async def step(tell: Tell) -> list[Figure]:
    async with laboratory() as lab:
        return (await compared(lab, PYDANTIC_AI, tell))[0]


async def compared(lab: Lab, comparison: Comparison, tell: Tell) -> tuple[list[Figure], Runs]:
    """The figures, and the runs they come from."""
    workers: dict[str, WorkerProcess] = {}
    for kind in comparison.kinds:
        tell(f"starting the {kind} worker")
        workers[kind] = await lab.worker(kind)
        await _run(lab, comparison, kind, workers[kind], WARM_UP_STEPS)
    runs: Runs = {kind: [] for kind in comparison.kinds}
    others, began = lab.others_share(), time.monotonic()
    for repetition in range(REPETITIONS):
        if repetition >= LEAST_REPETITIONS and time.monotonic() - began > ENOUGH_SECONDS:
            break
        for kind in in_turn(comparison.kinds, repetition):
            tell(f"repetition {repetition + 1} of {REPETITIONS}, {kind}")
            runs[kind].append(await _run(lab, comparison, kind, workers[kind], STEPS))
    busy = Figure("taken by other work meanwhile", "%", others() * 100, None, "of the machine's processors")
    return [*_times(comparison, runs), *_processor(comparison, runs), busy, *_bytes(comparison, runs)], runs


def in_turn(kinds: tuple[str, ...], repetition: int) -> tuple[str, ...]:
    """The kinds, with another one first in each repetition."""
    first = repetition % len(kinds)
    return (*kinds[first:], *kinds[:first])


async def _run(lab: Lab, comparison: Comparison, kind: str, worker: WorkerProcess, steps: int) -> Measured:
    run_id, prompt = f"{kind}-{uuid.uuid4().hex[:8]}", f"lookup*{steps}"
    used, began = worker.cpu_seconds(), time.perf_counter()
    if kind == comparison.ours:
        run = await lab.client.start("bench", prompt, id=run_id, usage_limits=comparison.limits)
        result = (await run.result()).output
    else:
        workflow = comparison.others[kind].workflow
        result = await lab.client.temporal.execute_workflow(
            workflow, prompt, id=run_id, task_queue=kind, result_type=str
        )
    wall, cpu = time.perf_counter() - began, worker.cpu_seconds() - used
    assert result == "done"
    return Measured(run_id, wall / steps * 1_000, cpu / steps * 1_000, await lab.history_bytes(run_id) / 1_000)


def _times(comparison: Comparison, runs: Runs) -> list[Figure]:
    def wall(run: Measured) -> float:
        return run.wall

    ours = runs[comparison.ours]
    return [
        Figure("a step", "ms", median(map(wall, ours)), None, _spread(ours)),
        *(
            Figure(
                f"a step, against {kind}",
                "x",
                _ratio(ours, runs[kind], wall),
                other.goal,
                f"{median(map(wall, runs[kind])):.1f} ms, {_spread(runs[kind])}",
            )
            for kind, other in comparison.others.items()
        ),
    ]


def _processor(comparison: Comparison, runs: Runs) -> list[Figure]:
    def cpu(run: Measured) -> float:
        return run.cpu

    # Beside the wall time, because other work on the machine hardly changes it.
    ours = runs[comparison.ours]
    return [
        Figure(
            f"worker's processor time, against {kind}",
            "x",
            _ratio(ours, runs[kind], cpu),
            None,
            f"{median(map(cpu, ours)):.1f} ms against {median(map(cpu, runs[kind])):.1f} ms",
        )
        for kind in comparison.others
    ]


def _bytes(comparison: Comparison, runs: Runs) -> list[Figure]:
    ours = runs[comparison.ours][-1].kb
    return [
        Figure("history", "kB", ours, None, f"{STEPS} steps, {RESULT_BYTES:,} bytes each"),
        *(
            Figure(f"history, against {kind}", "x", ours / runs[kind][-1].kb, None, f"{runs[kind][-1].kb:,.0f} kB")
            for kind, other in comparison.others.items()
            if other.keeps
        ),
    ]


def _ratio(ours: list[Measured], theirs: list[Measured], measure: Callable[[Measured], float]) -> float:
    # Pairs, because the machine's load changes from one minute to the next.
    return median(measure(mine) / measure(other) for mine, other in zip(ours, theirs, strict=True))


def _spread(runs: list[Measured]) -> str:
    walls = [run.wall for run in runs]
    return f"{min(walls):.1f} to {max(walls):.1f} in {len(runs)} runs of {STEPS} steps"
