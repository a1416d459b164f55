"""What a task knows of its run while it waits, and what it leaves behind in XComs."""

from datetime import datetime
from typing import Any, Self

from pydantic import AwareDatetime

from interlock.bridge.asked import Asked
from interlock.bridge.endings import Ending, xcom_value
from interlock.bridge.form import Answer
from interlock.bridge.killing import OnKill
from interlock.bridge.starting import Begun
from interlock.contracts.payloads import Json, Payload, Usage

RETURN_VALUE = "return_value"
RUN = "run"
USAGE = "usage"
DECISIONS = "decisions"
XCOM_LIMIT_BYTES = 64_000
"""Up to which size a result is an XCom by itself, in bytes of JSON."""


class Waited(Payload):
    """What a task knows of its run. Stored with the trigger and carried by each event, so it evolves like a message.

    began_at: when this try began to wait. deadline: a wall-clock time, in UTC; null without one.
    told: how many events of the run earlier tries have told in their logs. reused, used: steps and usage by then.
    must_exist: no such run is the end of the waiting. mirrors: requests are shown in Airflow. asked: the keys of
    those that are, see `open_requests`. here, here_key: the one that the task itself shows, and its key among them.
    answer: to that one, which the run has not taken yet.
    ends_task: the trigger may end the task when the run has completed. pushes: what the run gives back becomes an XCom.
    """

    temporal_conn_id: str
    task_queue: str | None = None
    workflow_id: str
    run_id: str
    how: str = "started"
    began_at: AwareDatetime
    deadline: AwareDatetime | None = None
    on_kill: OnKill = "cancel"
    on_stuck: str = "fail"
    told: int = 0
    reused: int = 0
    used: Usage = Usage()
    must_exist: bool = True
    mirrors: bool = False
    asked: tuple[str, ...] = ()
    here: Asked | None = None
    here_key: str = ""
    answer: Answer | None = None
    ends_task: bool = False
    pushes: bool = True
    xcom_limit_bytes: int = XCOM_LIMIT_BYTES

    def without_request(self) -> Self:
        """The same, when the task itself shows nothing any more."""
        return self.model_copy(update={"here": None, "here_key": "", "answer": None})

    @classmethod
    def begun(cls, begun: Begun, *, began_at: datetime, **rest: object) -> "Waited":
        """Of a run that has just begun."""
        return cls(
            workflow_id=begun.workflow_id,
            run_id=begun.run_id,
            how=begun.how,
            reused=begun.reused,
            used=begun.used,
            began_at=began_at,
            **rest,  # type: ignore[arg-type]
        )


def own_event(waited: dict[str, Any] | None, event: dict[str, Any]) -> tuple[Waited, dict[str, Any]]:
    """What a task knows of its run, and the event that has woken it up.

    SQLite gives a new trigger the id of one that is gone, so the event can be that of another task's trigger, or of an
    earlier one of this task. Then it says nothing but that it is time to look.
    """
    if waited is not None and "chosen_options" in event:  # Airflow's own: a person has answered on this task.
        return heard(Waited.model_validate(waited), {"answer": Answer.read(event)}), {"kind": "answered"}
    told = Waited.model_validate(event["waited"])
    own = told if waited is None else Waited.model_validate(waited)
    return (heard(own, event), event) if told == own else (own, {"kind": "begun"})


def heard(waited: Waited, event: dict[str, Any]) -> Waited:
    """What a task knows once its trigger has told it of the request that the task itself shows."""
    if waited.here is None:
        return waited
    if event.get("closed"):
        return waited.without_request()
    answer = event.get("answer")
    return waited.model_copy(update={"answer": Answer.model_validate(answer)}) if answer else waited


def run_xcom(waited: Waited, ending: Ending | None = None) -> dict[str, Json]:
    """The XCom `run`: which run the task has, how this try came by it, and what becomes of it with the task."""
    return {
        "workflow_id": waited.workflow_id,
        "run_id": ending.run_id if ending else waited.run_id,
        "how": waited.how,
        "reused_steps": waited.reused,
        "temporal_conn_id": waited.temporal_conn_id,
        "on_kill": waited.on_kill,
        **({"status": ending.status} if ending else {}),
    }


def usage_xcom(waited: Waited, total: Usage) -> dict[str, Json]:
    """The XCom `usage`: of the run in all, and of what it did since this try began."""
    fields = {name: getattr(total, name) - getattr(waited.used, name) for name in Usage.model_fields}
    this_try = Usage(**{name: max(spent, type(spent)(0)) for name, spent in fields.items()})
    return {"this_try": this_try.model_dump(mode="json"), "total": total.model_dump(mode="json")}


def xcoms_of(ending: Ending, waited: Waited) -> dict[str, Json]:
    """All XComs of a run that has ended, by key; the return value of a completed one among them."""
    found: dict[str, Json] = {RUN: run_xcom(waited, ending)}
    if ending.usage is not None:
        found[USAGE] = usage_xcom(waited, ending.usage)
    if ending.decisions:
        found[DECISIONS] = [one.model_dump(mode="json") for one in ending.decisions]
    if ending.status == "completed" and waited.pushes and ending.output is not None:  # As a task's own code does.
        found[RETURN_VALUE] = xcom_value(ending, waited.xcom_limit_bytes)
    return found
