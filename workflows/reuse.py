"""What a run takes over from the one it was forked from."""

from collections import Counter

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from interlock.contracts.canonical import digest
    from interlock.contracts.payloads import Fork, Json, ReusedRuling, StepResult, Usage
    from interlock.contracts.places import MODEL_SUFFIXES
    from interlock.contracts.ports import place


class Reuse:
    """Hands out, once each, the results and the rulings that a fork takes over."""

    def __init__(self, fork: Fork | None) -> None:
        self._fork = fork
        self._steps = {step.step: step for step in fork.steps} if fork else {}
        self._rulings = list(fork.rulings) if fork else []
        self._counts: Counter[str] = Counter()
        self._requests = 0  # Of the run's own agent to its model.
        self._retried = list(fork.retried) if fork else []
        self.spent = Usage()
        """By the runs that were started by what is taken over."""

    @property
    def is_used_up(self) -> bool:
        """Whether nothing is left to take over: the run's own agent has made a request to its model for itself, and it
        makes one only after all calls of the answer before have ended."""
        return self._fork is None or self._requests > self._fork.requests

    def was_retried(self) -> bool:
        """Whether somebody had the model asked again, in the other run, where this one stands. Once for each time."""
        if self._requests not in self._retried:
            return False
        self._retried.remove(self._requests)
        return True

    def step(self, activity: str) -> str:
        """The name of the next step: its place in the run, so that a fork of the run has the same one for it."""
        name = f"{place.get()}/{activity}"
        self._counts[name] += 1
        if not place.get() and activity.endswith(MODEL_SUFFIXES):
            self._requests += 1
        return f"{name}:{self._counts[name]}"

    def result(self, step: str, call: str) -> StepResult | None:
        """Where the result of a step is to be taken from; None when the step is to run."""
        reused = self._steps.pop(step, None)
        if reused is None or self._fork is None or reused.call != call:
            return None
        self.spent += reused.spent
        return StepResult(workflow_id=self._fork.workflow_id, run_id=self._fork.run_id, event_id=reused.event_id)

    def ruling(self, arguments: dict[str, Json]) -> ReusedRuling | None:
        """What was decided about the call that the current code belongs to; None when it is to be asked about."""
        if (ruling := self._found(arguments)) is not None:
            self._rulings.remove(ruling)
        return ruling

    def is_decided(self, arguments: dict[str, Json]) -> bool:
        """Whether a person has decided about that call for this fork."""
        ruling = self._found(arguments)
        return ruling is not None and ruling.before_judges

    def _found(self, arguments: dict[str, Json]) -> ReusedRuling | None:
        if not self._rulings:
            return None
        wanted = (place.get(), digest(arguments))
        return next((one for one in self._rulings if (one.place, one.arguments_digest) == wanted), None)
