"""What a run takes over from the one it was forked from."""

from collections import Counter

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from interlock.contracts.canonical import digest
    from interlock.contracts.payloads import Fork, Json, ReusedRuling, StepResult
    from interlock.contracts.ports import place


class Reuse:
    """Hands out, once each, the results and the rulings that a fork takes over."""

    def __init__(self, fork: Fork | None) -> None:
        self._fork = fork
        self._steps = {step.step: step for step in fork.steps} if fork else {}
        self._rulings = list(fork.rulings) if fork else []
        self._counts: Counter[str] = Counter()

    def step(self, activity: str) -> str:
        """The name of the next step: its place in the run, so that a fork of the run has the same one for it."""
        name = f"{place.get()}/{activity}"
        self._counts[name] += 1
        return f"{name}:{self._counts[name]}"

    def result(self, step: str, call: str) -> StepResult | None:
        """Where the result of a step is to be taken from; None when the step is to run."""
        reused = self._steps.pop(step, None)
        if reused is None or self._fork is None or reused.call != call:
            return None
        return StepResult(workflow_id=self._fork.workflow_id, run_id=self._fork.run_id, event_id=reused.event_id)

    def ruling(self, arguments: dict[str, Json]) -> ReusedRuling | None:
        """What was decided about the call that the current code belongs to; None when it is to be asked about."""
        wanted = (place.get(), digest(arguments))
        for ruling in self._rulings:
            if (ruling.place, ruling.arguments_digest) == wanted:
                self._rulings.remove(ruling)
                return ruling
        return None
