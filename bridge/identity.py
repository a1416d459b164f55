"""Whose run it is: the workflow id of a task, and the note that is kept with each run that a task starts."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from interlock.contracts.payloads import Json

MEMO_TASK = "interlock_airflow"
PLACE = ("dag_id", "run_id", "task_id", "map_index")
"""What tells a task instance from all others, as Airflow's tables have it."""
_LONGEST_ID = 1_000  # Bytes that Temporal takes.


@dataclass(frozen=True)
class TaskIdentity:
    """One task instance of Airflow.

    map_index: -1 for a task that is not mapped. try_number: from 1. clears: the number of the try after which the task
    was cleared last; 0 when it never was. max_tries: Airflow's own number, which only a clear changes. rescheduled:
    whether this try has run before, and waits.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    clears: int
    rescheduled: bool = False
    max_tries: int = -1

    @classmethod
    def of(cls, context: Mapping[str, Any]) -> "TaskIdentity":
        """The task that a context is of."""
        ti = context["ti"]
        # A cleared task may be tried as often again as before: that is how a clear is told from a retry.
        max_tries = getattr(ti, "max_tries", 0) or 0
        return cls(
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
            try_number=ti.try_number,
            clears=max(0, max_tries - (ti.task.retries or 0)),
            rescheduled=bool(context.get("task_reschedule_count")),
            max_tries=max_tries,
        )

    @property
    def workflow_id(self) -> str:
        """The workflow id of the task's run, the same over all its tries."""
        mapped = () if self.map_index < 0 else (str(self.map_index),)
        found = "/".join(("airflow", self.dag_id, self.run_id, self.task_id, *mapped))
        if len(found.encode()) <= _LONGEST_ID:
            return found
        tail = hashlib.sha256(found.encode()).hexdigest()[:16]
        return f"{found.encode()[: _LONGEST_ID - 20].decode(errors='ignore')}-{tail}"

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What tells this task from all others."""
        return self.dag_id, self.run_id, self.task_id, self.map_index


@dataclass(frozen=True)
class Note:
    """What a task writes into the memo of a run that it starts, to know it again.

    digests: of the fields of the input. max_tries: as in `TaskIdentity`; -1 in notes from before there was one.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    try_number: int
    clears: int
    digests: dict[str, str]
    max_tries: int = -1

    @classmethod
    def by(cls, task: TaskIdentity, digests: Mapping[str, str]) -> "Note":
        """The note of a task."""
        return cls(*task.place, task.try_number, task.clears, dict(digests), task.max_tries)

    @classmethod
    def read(cls, memo: Mapping[str, Any]) -> "Note | None":
        """The note in a memo; None when there is none, or it is not one of ours."""
        value = memo.get(MEMO_TASK)
        try:
            known = {name: value[name] for name in cls.__dataclass_fields__ if name in value}  # type: ignore[index,operator]
            return cls(**known)
        except (TypeError, KeyError):
            return None

    @property
    def place(self) -> tuple[str, str, str, int]:
        """See `TaskIdentity`."""
        return self.dag_id, self.run_id, self.task_id, self.map_index

    def memo(self) -> dict[str, Json]:
        """As it is kept."""
        return {MEMO_TASK: asdict(self)}
