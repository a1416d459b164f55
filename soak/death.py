"""Moments at which a worker kills itself: exact ones, that no killer from outside could hit."""

import os
import signal
from collections.abc import Iterable
from typing import Any, Literal, get_args

from temporalio import activity, client, workflow
from temporalio.common import RawValue
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from interlock.contracts import names
from soak.ledger import Ledger
from soak.script import RUNS, Adapter, Call, calls_of, model_steps, step_name
from soak.steps import Steps

Moment = Literal["scheduled", "before", "middle", "after"]
"""scheduled: in the workflow task that decides on the step, so that the decision is lost. before: the worker was given
the step, and its body has not begun. middle: its body has begun and had no effect. after: it had its effect, and nobody
was told."""


MOMENTS: tuple[Moment, ...] = get_args(Moment)


def points(adapter: Adapter, moment: Moment) -> list[str]:
    """Every place in a run, and in the run that it starts, where a worker can die at this moment, as STEP@MOMENT."""
    steps: list[str] = []
    for run, agents in RUNS[adapter].items():
        calls = [call for agent in agents for call in calls_of(agent)]
        asked = [call for call in calls if call.verdict]
        steps += [step for agent in agents for step in model_steps(agent)]
        steps += [call.step for call in calls if call.verdict != "reject" and call.delegate not in agents]
        if run == "desk":
            steps.append("desk:ask-charge/A")
        if moment != "middle":
            steps += [step_name(call.agent, f"describe/{call.name}") for call in asked]
        if moment == "scheduled":
            answers = (step_name(run, f"answer/{number}") for number in range(1, len(asked) + 1))
            steps += [step_name(run, "start"), *answers, step_name(run, "end")]
    if moment == "scheduled" and "payer" in RUNS[adapter]:
        steps.append(step_name("desk", f"signal/{names.REPORT_SUB_RUN}"))
    return [f"{step}@{moment}" for step in steps]


def points_of(adapter: Adapter, call: Call) -> list[str]:
    """Every place around one approved call: it is lost four times, and so is the question what became of it."""
    asking = step_name(call.agent, f"describe-outcome/{call.name}")
    (run,) = (run for run, agents in RUNS[adapter].items() if call.agent in agents)
    answers = [step_name(run, f"answer/{verdict}") for verdict in ("not_happened", "happened")]
    return [
        *(f"{call.step}@{moment}" for moment in MOMENTS),
        *(f"{asking}@{moment}" for moment in MOMENTS if moment != "middle"),
        *(f"{answer}@scheduled" for answer in answers),
    ]


class Deaths:
    """The points at which this worker still has to die. A point that the ledger has seen is not died at again."""

    def __init__(self, ledger: Ledger, wanted: Iterable[str]) -> None:
        self._ledger = ledger
        self._left = set(wanted) - {line.step for line in ledger.lines() if line.event == "death"}

    def reach(self, step: str, moment: Moment) -> None:
        """Die here, if this is one of the points."""
        if (point := f"{step}@{moment}") in self._left:
            self._ledger.write("death", point)
            os.kill(os.getpid(), signal.SIGKILL)


class DyingInterceptor(Interceptor, client.Interceptor):
    """Lets a worker die around its activities and in its workflow tasks. It is given to the worker's client."""

    def __init__(self, deaths: Deaths) -> None:
        self._deaths = deaths
        self._workflows = type("BoundInbound", (_Workflow,), {"deaths": deaths})

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See `Interceptor`."""
        return _Activity(next, self._deaths)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """See `Interceptor`."""
        return self._workflows


class _Activity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, deaths: Deaths) -> None:
        super().__init__(next)
        self._deaths = deaths

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        step = await _step(input)
        self._deaths.reach(step, "before")
        result = await super().execute_activity(input)
        self._deaths.reach(step, "after")
        return result


class _Workflow(WorkflowInboundInterceptor):
    deaths: Deaths

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self.deaths))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        self._reach("start")
        result = await super().execute_workflow(input)
        self._reach("end")
        return result

    async def handle_signal(self, input: HandleSignalInput) -> None:
        self._reach(f"signal/{input.signal}")
        await super().handle_signal(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        decision = input.args[0]
        self._reach(f"answer/{decision.request_id}")
        self._reach(f"answer/{decision.verdict}")
        return await super().handle_update_handler(input)

    def _reach(self, place: str) -> None:
        if not workflow.unsafe.is_replaying():
            self.deaths.reach(step_name(str(workflow.memo_value(names.MEMO_AGENT, "")), place), "scheduled")


class _Outbound(WorkflowOutboundInterceptor):
    def __init__(self, next: WorkflowOutboundInterceptor, deaths: Deaths) -> None:
        super().__init__(next)
        self._deaths = deaths
        self._steps = Steps()

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        step = self._steps.name(input.activity, input.args[0], input.headers)
        if not workflow.unsafe.is_replaying():
            self._deaths.reach(step, "scheduled")
        return super().start_activity(input)


async def _step(input: ExecuteActivityInput) -> str:
    """The step that an attempt is of. A model call's is read in the history: its messages are not at hand here."""
    info, steps = activity.info(), Steps()
    if not isinstance(input.args[0], RawValue):
        return steps.name(info.activity_type, input.args[0], input.headers)
    handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    async for event in handle.fetch_history_events():
        if event.HasField("activity_task_scheduled_event_attributes"):
            scheduled = event.activity_task_scheduled_event_attributes
            argument = RawValue(scheduled.input.payloads[0])
            step = steps.name(scheduled.activity_type.name, argument, scheduled.header.fields)
            if scheduled.activity_id == info.activity_id:
                return step
    raise LookupError(f"activity {info.activity_id} is not in the history of its run")
