"""The effects ledger: what bodies did, told by the bodies themselves, in a file that no kill can take back."""

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from temporalio import activity

Event = Literal["begin", "effect", "death"]


@dataclass(frozen=True)
class Line:
    """One line of the ledger.

    event: a body began; its effect has happened; or a worker is about to kill itself, at the moment named by `step`.
    step: what ran, unique within its run, such as `desk:refund/A`. run, activity, attempt: the execution of the
    workflow, the activity in it and the attempt that wrote.
    key: the idempotency key that the body was given. token: names the model answer that asked for the call; a model's
    own `effect` makes one. result: what the body gave back. at: seconds of the machine's monotonic clock.
    """

    event: Event
    step: str
    workflow: str = ""
    run: str = ""
    activity: str = ""
    attempt: int = 0
    key: str = ""
    token: str = ""
    result: str = ""
    pid: int = 0
    at: float = 0

    @property
    def call(self) -> tuple[str, str]:
        """What ran, among all runs."""
        return self.workflow, self.step

    @property
    def of_activity(self) -> tuple[str, str]:
        """The activity that wrote this line."""
        return self.run, self.activity


class Ledger:
    """A file of lines. Any number of processes write to it; a line that was written survives its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def write(self, event: Event, step: str, **told: Any) -> None:
        """Add a line and wait until it is on disk."""
        line = Line(event, step, pid=os.getpid(), at=time.monotonic(), **told)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, f"{json.dumps(asdict(line))}\n".encode())
            os.fsync(file)
        finally:
            os.close(file)

    def tell(self, event: Event, step: str, **told: Any) -> None:
        """Add a line about the activity that runs now."""
        info = activity.info()
        self.write(
            event,
            step,
            workflow=info.workflow_id,
            run=info.workflow_run_id,
            activity=info.activity_id,
            attempt=info.attempt,
            **told,
        )

    def lines(self) -> list[Line]:
        """Every line, in the order of writing."""
        return [Line(**json.loads(text)) for text in self._path.read_text().split("\n")[:-1]]
