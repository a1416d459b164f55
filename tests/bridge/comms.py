"""What stands for Airflow where a test has a trigger or a task, and no Airflow around it."""

import inspect
from typing import Any

from airflow.sdk.execution_time.comms import GetTaskStates, OKResponse, SetXCom, TaskStatesResult, TriggerDagRun


class Airflow:
    """What tasks and triggers ask Airflow. state: of the task that there is; there is none without."""

    def __init__(self, state: str | None) -> None:
        self.state = state
        self.pushed: list[str] = []
        self.depths: list[int] = []  # Of the code that has each request shown.

    async def asend(self, message: Any) -> Any:
        assert isinstance(message, SetXCom)
        self.pushed.append(message.key)

    def send(self, question: Any) -> Any:
        if isinstance(question, SetXCom):  # Before 3.3.
            self.pushed.append(question.key)
            return None
        if isinstance(question, TriggerDagRun):
            self.depths.append(len(inspect.stack(0)))
            return OKResponse(ok=True)
        assert isinstance(question, GetTaskStates)
        (task_id,), (run_id,) = question.task_ids or [""], question.run_ids or [""]
        return TaskStatesResult(task_states={run_id: {task_id: self.state}} if self.state else {})
