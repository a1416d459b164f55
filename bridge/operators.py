"""The operators: each starts a run, or finds its own again, and waits for it without holding a worker."""

import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel
from temporalio.service import RPCError

from interlock._rpc import server_errors
from interlock.bridge import lineage, metrics
from interlock.bridge._airflow import ASKS_AGAIN, BaseOperator, reschedule
from interlock.bridge.endings import Ending, ending_of
from interlock.bridge.errors import (
    BadTaskError,
    InputChangedError,
    NotRunningError,
    RunStuckError,
    RunVanishedError,
    TemporalUnavailableError,
    WaitTimedOutError,
)
from interlock.bridge.hook import TemporalHook, run_coroutine
from interlock.bridge.identity import TaskIdentity
from interlock.bridge.killing import OVER, OnKill, stop_run, stop_run_of_task, task_state
from interlock.bridge.links import LINKS, in_form, links_of
from interlock.bridge.mirror import APPROVALS_DAG, OwnTask, show_requests
from interlock.bridge.outcome import RETURN_VALUE, RUN, XCOM_LIMIT_BYTES, Waited, own_event, run_xcom, xcoms_of
from interlock.bridge.progress import Progress, log_time
from interlock.bridge.starting import (
    AgentJob,
    Begun,
    Job,
    OnChangedInput,
    OnClear,
    OnNewDagRun,
    OnRetry,
    OnVanishedRun,
    Policies,
    WorkflowJob,
    begin,
)
from interlock.bridge.triggers import RunTrigger, what_waits
from interlock.client import Client
from interlock.contracts.errors import InterlockError, MisconfiguredError, RefusedError, UnavailableError
from interlock.contracts.payloads import DEFAULT_STUCK_SECONDS, Json, RunInput
from interlock.run import Run

T = TypeVar("T")
WaitMode = Literal["defer", "poll", "reschedule"]
Approvals = Literal["interlock", "required_actions"]
OnStuck = Literal["fail", "wait"]

_START_ATTEMPTS = 4
_KEPT = "interlock_run"
_ALARM_AFTER = timedelta(minutes=1)
_STARTS_OVER = "Airflow starts this task's run over."


class _RunOperator(BaseOperator):
    """Starts a run and waits for it. What both operators have in common.

    workflow_id: in place of `airflow/DAG/RUN/TASK[/MAP_INDEX]`; a business key.
    wait_mode: `defer`: the triggerer waits; `poll`: this task waits and keeps its worker; `reschedule`: it looks every
    poll_seconds. All else means the same in each.
    wait_timeout: how long one try of the task waits, the time in the triggerer included; `execution_timeout` when it is
    not given. A run that is still open then is ended by `on_kill`.
    on_kill: `cancel`, `terminate` or `leave` the run when somebody marks the task failed or successful, fails the Dag
    run, or the time is over. A run is never ended since its task was cleared, retried, or woken up.
    on_retry, on_clear, on_changed_input, on_vanished_run, on_new_dag_run: see `Policies`.
    xcom_limit_bytes: a larger result stays in Temporal; the XCom refers to it, see `read_result`.
    """

    template_fields: Sequence[str] = ("workflow_id", "task_queue", "temporal_conn_id")
    operator_extra_links = LINKS
    ui_color = "#e7e4fb"
    run_links: dict[str, str]

    def __init__(
        self,
        *,
        temporal_conn_id: str = TemporalHook.default_conn_name,
        task_queue: str | None = None,
        workflow_id: str | None = None,
        wait_mode: WaitMode = "defer",
        poll_seconds: float = 30,
        wait_timeout: timedelta | None = None,
        on_kill: OnKill = "cancel",
        on_retry: OnRetry = "attach",
        on_clear: OnClear = "continue",
        on_changed_input: OnChangedInput = "fail",
        on_vanished_run: OnVanishedRun = "fail",
        on_new_dag_run: OnNewDagRun = "new",
        xcom_limit_bytes: int = XCOM_LIMIT_BYTES,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.temporal_conn_id = temporal_conn_id
        self.task_queue = task_queue
        self.workflow_id = workflow_id
        self.wait_mode = _one_of(WaitMode, "wait_mode", wait_mode)
        self.poll_seconds = _above_zero("poll_seconds", poll_seconds)
        self.wait_timeout = _duration("wait_timeout", wait_timeout)
        if self.wait_mode == "poll" and self.execution_timeout is not None:
            # Airflow's own alarm fails a task that has its process, and leaves the run: it must not come first.
            self.wait_timeout = wait_timeout or self.execution_timeout
            self.execution_timeout = self.wait_timeout + _ALARM_AFTER
        self.kill_mode = _one_of(OnKill, "on_kill", on_kill)
        self.policies = Policies(
            on_retry=_one_of(OnRetry, "on_retry", on_retry),
            on_clear=_one_of(OnClear, "on_clear", on_clear),
            on_changed_input=_one_of(OnChangedInput, "on_changed_input", on_changed_input),
            on_vanished_run=_one_of(OnVanishedRun, "on_vanished_run", on_vanished_run),
            on_new_dag_run=_one_of(OnNewDagRun, "on_new_dag_run", on_new_dag_run),
        )
        self.xcom_limit_bytes = xcom_limit_bytes
        self.run_links = {}

    # What the two operators differ in.

    def _job(self, client: Client, context: Any) -> Job:
        raise NotImplementedError

    @property
    def _on_stuck(self) -> OnStuck:
        return "wait"

    @property
    def _mirrors(self) -> bool:
        return False

    def _show_requests(self, context: Any, client: Client, waited: Waited) -> Coroutine[Any, Any, Waited]:
        raise NotImplementedError

    # Airflow's own calls.

    def execute(self, context: Any) -> Any:
        """Start the run, or find it, and wait."""
        # It may have ended already, or asked: a wait for what has happened is never begun.
        return self._look(context, self._begin(context), {"kind": "begun"})

    def resume(self, context: Any, event: dict[str, Any], waited: dict[str, Any] | None = None) -> Any:
        """Look at the run again, as the trigger has hinted. waited: what this task knew of its run when it deferred;
        None for one that did so before there was this argument."""
        own, event = own_event(waited, event)
        self.run_links = self._links(own)  # Airflow writes the links once more when this process ends.
        return self._look(context, own, event)

    def get_openlineage_facets_on_complete(self, ti: Any) -> Any:
        """What OpenLineage's events of this task say of its run."""
        waited: Waited | None = getattr(self, "_waited", None)
        return lineage.facets_of(waited.run_id, self._hook().settings().address) if waited else None

    def get_openlineage_facets_on_failure(self, ti: Any) -> Any:
        """The same, for a task that failed."""
        return self.get_openlineage_facets_on_complete(ti)

    def on_kill(self) -> None:
        """This task is killed while it runs: the run ends with it when the task is over, and not when it is tried
        again."""
        ti = getattr(self, "_ti", None)
        if ti is None or self.kill_mode == "leave":
            return
        # In a thread of its own: this is called in the middle of whatever the task does.
        thread = threading.Thread(target=self._kill, args=(ti,), daemon=True)
        thread.start()
        thread.join(timeout=4)  # Airflow gives a task five seconds.

    # Phases.

    def _begin(self, context: Any) -> Waited:
        try:
            return self._begun(context)
        finally:
            # Of a task that was marked before it had pushed the XCom `run` nobody else knows that it has a run.
            if self.kill_mode != "leave":
                self._kill(context["ti"])

    def _begun(self, context: Any) -> Waited:
        task = TaskIdentity.of(context)
        began_at = datetime.now(UTC)
        store = context.get("task_state_store")  # Airflow 3.3 and later.
        kept, known = _recalled(store), is_known(context, task)
        self._check_place(context, task, kept, known)
        # From here on the run ends with a task that is killed.
        self._ti, self._place = context["ti"], self.workflow_id or task.workflow_id

        async def start(client: Client) -> Begun:
            job = self._job(client, context)
            place, run_id = self._place, kept.get("run_id", "") if known else ""
            return await begin(client, job, task, self.policies, workflow_id=place, known=known, run_id=run_id)

        begun = self._do(None, start)
        waited = Waited.begun(
            begun,
            began_at=began_at,
            temporal_conn_id=self.temporal_conn_id,
            task_queue=self.task_queue or None,
            deadline=self._deadline(context, began_at),
            on_kill=self.kill_mode,
            on_stuck=self._on_stuck,
            mirrors=self._mirrors,
            told=0 if begun.how == "started" else self._told(begun, task),
            ends_task=self._can_be_ended_by_the_trigger(),
            pushes=bool(self.do_xcom_push),
            xcom_limit_bytes=self.xcom_limit_bytes,
        )
        is_kept = kept.get("run_id") == waited.run_id and kept.get("try") == task.try_number
        goes_on = task.rescheduled and (is_kept or store is None)
        if goes_on and is_kept:
            waited = Waited.model_validate(kept["waited"])  # What this try found when it began still holds.
        self._waited = waited
        if not goes_on and store is not None:
            about = {"run_id": waited.run_id, "try": task.try_number, "max_tries": task.max_tries}
            # For as long as there is the Dag run (Airflow's NEVER_EXPIRE): a run may wait longer than its 30 days.
            store.set(_KEPT, {**about, "waited": waited.model_dump(mode="json")}, retention=timedelta.max)
        self.run_links = self._links(waited)
        # Now, not with the result: people want to look at a run that is under way.
        for link in LINKS:
            context["ti"].xcom_push(key=link.xcom_key, value=self.run_links.get(link.xcom_key, ""))
        context["ti"].xcom_push(key=RUN, value=run_xcom(waited))
        if not goes_on:
            metrics.begun(context["ti"], waited)
            self._say(begun, began_at)
        return waited

    def _check_place(self, context: Any, task: TaskIdentity, kept: dict[str, Any], known: bool | None) -> None:
        """Whether the run of an earlier try is where this one looks for it. Another one would be started beside it."""
        if not kept:
            return
        before = Waited.model_validate(kept["waited"])
        now = {"workflow_id": self.workflow_id or task.workflow_id, "temporal_conn_id": self.temporal_conn_id}
        changed = [name for name, value in now.items() if getattr(before, name) != value]
        if not changed or (
            changed == ["temporal_conn_id"] and self._is_open(self.temporal_conn_id, before) is not None
        ):
            return  # A connection of another name may lead to the same run.
        is_open = self._is_open(before.temporal_conn_id, before)
        if not known and not is_open:
            return
        policies = self.policies
        if (policies.on_retry if known else policies.on_clear) == "new" or policies.on_changed_input == "new":
            if is_open:
                stop = stop_run_of_task(
                    before.workflow_id, "cancel", _STARTS_OVER, of=context["ti"], run_id=before.run_id
                )
                TemporalHook(before.temporal_conn_id).run(stop)
        elif policies.on_changed_input == "attach":
            self.workflow_id, self.temporal_conn_id = before.workflow_id, before.temporal_conn_id
        else:
            raise InputChangedError(
                f"An earlier try of this task has run {before.workflow_id!r} (connection {before.temporal_conn_id!r}); "
                f"{' and '.join(changed)} changed since. Make the task's templates render the same on each try, end "
                "that run and clear the task, or set on_changed_input to 'attach' (keep it) or 'new' (start over)."
            ).about(before.workflow_id, before.run_id)

    def _is_open(self, conn_id: str, waited: Waited) -> bool | None:
        """Whether the run of an earlier try is open; None when it is not found by this connection."""
        try:
            ending = TemporalHook(conn_id).run(
                lambda client: ending_of(client, waited.workflow_id, run_id=waited.run_id)
            )
        except Exception as error:  # Of whatever kind: the connection may be what had to be changed.
            self.log.info(
                "Run %s of an earlier try is not found by connection %s. %r", waited.workflow_id, conn_id, error
            )
            return None
        return ending is None

    def _look(self, context: Any, waited: Waited, event: Mapping[str, Any]) -> Any:
        found = self._look_once(context, waited, event)
        while isinstance(found, _Hinted):  # One after another, and not inside each other: there may be any number.
            found = self._look_once(context, Waited.model_validate(found.event["waited"]), found.event)
        return found

    def _look_once(self, context: Any, waited: Waited, event: Mapping[str, Any]) -> Any:
        self._waited, self._ti, self._place = waited, context["ti"], waited.workflow_id
        try:
            return self._looked(context, waited, event)
        except TemporalUnavailableError as error:
            # The run is safe. The triggerer waits until Temporal is there again.
            self.log.warning("%s", error)
            return self._wait_on(context, waited)

    def _looked(self, context: Any, waited: Waited, event: Mapping[str, Any]) -> Any:
        if event.get("error"):
            raise BadTaskError(event["error"])

        async def look(client: Client) -> tuple[Ending | None, str, Waited]:
            run = client.attach(waited.workflow_id)
            ending = await ending_of(client, waited.workflow_id, run_id=waited.run_id)
            await Progress(run, skip=waited.told).catch_up()  # After it, so that the log has the end of what has ended.
            if ending is not None:
                return ending, "", waited
            if event["kind"] == "timeout" or _is_past(waited.deadline):
                await stop_run(client, waited.workflow_id, waited.on_kill, "The task's time is over.")
                return None, "timeout", waited
            status, _ = await what_waits(client, waited.workflow_id)
            if status == "stuck" and self._on_stuck == "fail":
                return None, await _stuck(run), waited
            if self._mirrors:
                return None, "", await self._show_requests(context, client, waited)
            return None, "", waited

        try:
            ending, why, waited = self._do(waited, look)
        except RunVanishedError:
            if self.policies.on_vanished_run == "fail":
                raise
            return self._wait_on(context, self._begin(context))
        if ending is not None:
            # What was open when the time was over may be at its end by now, since the trigger has asked it to.
            if event["kind"] == "timeout" and ending.status in ("cancelled", "terminated"):
                self._leave(context, waited, ending)
            else:
                return self._finish(context, waited, ending)
        if why == "timeout" or ending is not None:
            became = {"cancel": "It was cancelled.", "terminate": "It was terminated.", "leave": "It goes on."}
            limit = self.wait_timeout or self.execution_timeout
            raise WaitTimedOutError(
                f"Run {waited.workflow_id!r} was still open after {limit}, this task's time. "
                f"{became[waited.on_kill]} A retry finds it again and repeats nothing that is complete."
            ).about(waited.workflow_id, waited.run_id)
        if why:
            raise RunStuckError(
                f"Run {waited.workflow_id!r} is stuck: {why} Nothing of it is lost. The next try of this task, and a "
                f"clear, runs that step again in place; so does `interlock runs retry {waited.workflow_id}`."
            ).about(waited.workflow_id, waited.run_id)
        return self._wait_on(context, waited)

    def _wait_on(self, context: Any, waited: Waited) -> Any:
        if self.wait_mode == "defer":
            return self._defer(waited)
        if self.wait_mode == "reschedule":
            raise reschedule(datetime.now(UTC) + timedelta(seconds=self.poll_seconds))
        return self._poll(waited)

    def _defer(self, waited: Waited) -> None:
        # Without a timeout of Airflow's: that would fail the task and leave the run. The trigger keeps the deadline.
        known = waited.model_dump(mode="json")
        self.defer(trigger=RunTrigger(known), method_name="resume", kwargs={"waited": known})

    def _poll(self, waited: Waited) -> "_Hinted":
        trigger = RunTrigger(waited.model_copy(update={"ends_task": False}).model_dump(mode="json"))

        async def first() -> dict[str, Any]:
            async for event in trigger.run():
                payload: dict[str, Any] = event.payload
                return payload
            raise AssertionError("unreachable")

        return _Hinted(run_coroutine(first()))

    def _leave(self, context: Any, waited: Waited, ending: Ending) -> Any:
        """Leave behind what is known of a run that has ended, but for its output, which is returned."""
        xcoms = xcoms_of(ending, waited)
        value = xcoms.pop(RETURN_VALUE, None)
        for key, content in xcoms.items():
            context["ti"].xcom_push(key=key, value=content)
        metrics.ended(context["ti"], ending, waited)
        return value

    def _finish(self, context: Any, waited: Waited, ending: Ending) -> Any:
        value = self._leave(context, waited, ending)
        if ending.status != "completed":
            raise ending.error()
        facts = {
            "workflow_id": ending.workflow_id,
            "run_id": ending.run_id,
            "decisions": [one.decision_id for one in ending.decisions],
        }
        for outlet in self.outlets or ():
            context["outlet_events"][outlet].extra.update(facts)
        return value

    # Small things.

    def _hook(self) -> TemporalHook:
        return TemporalHook(self.temporal_conn_id, task_queue=self.task_queue or None)

    def _do(self, waited: Waited | None, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with a client. Interlock's errors become Airflow's."""
        for attempt in range(_START_ATTEMPTS):
            try:
                return self._hook().run(work)
            except (UnavailableError, TemporalUnavailableError, RPCError) as error:
                if attempt == _START_ATTEMPTS - 1:
                    if isinstance(error, TemporalUnavailableError):
                        raise
                    raise TemporalUnavailableError(str(error)) from error
                self.log.warning("%s Trying again in %s s.", error, 2**attempt)
                time.sleep(2**attempt)
            except RefusedError as error:
                if waited is not None and str(error).startswith("There is no run"):
                    raise RunVanishedError(
                        f"Temporal no longer knows the run {waited.workflow_id!r} that this task has started: its "
                        "retention time is over, or somebody deleted it. Set on_vanished_run='new' to start a new one."
                    ).about(waited.workflow_id, waited.run_id) from error
                raise BadTaskError(str(error)) from error
            except MisconfiguredError as error:
                raise BadTaskError(str(error)) from error
        raise AssertionError("unreachable")

    def _deadline(self, context: Any, began_at: datetime) -> datetime | None:
        limit = self.wait_timeout or self.execution_timeout
        if limit is None:
            return None
        first = context["ti"].get_first_reschedule_date(context) if self.wait_mode == "reschedule" else None
        return (first or began_at) + limit

    def _can_be_ended_by_the_trigger(self) -> bool:
        """Whether no code of a worker's is needed once the run has completed."""
        return (
            not self.outlets
            and not self.multiple_outputs
            and next(self.iter_mapped_dependants(), None) is None  # Else Airflow needs the length of what is pushed.
            and type(self).post_execute is BaseOperator.post_execute
            and (getattr(self, "_post_execute_hook", None) is None)
        )

    def _told(self, begun: Begun, task: TaskIdentity) -> int:
        if task.rescheduled or begun.how == "continued":
            return 0

        async def count(client: Client) -> int:
            number = 0
            async for event in client.attach(begun.workflow_id).events(follow=False):
                number = event.offset + 1
            return number

        return self._do(None, count)

    def _links(self, waited: Waited) -> dict[str, str]:
        settings = self._hook().settings()
        return links_of(
            ui_url=settings.ui_url,
            namespace=settings.namespace or "default",
            workflow_id=waited.workflow_id,
            run_id=waited.run_id,
            conn_id=self.temporal_conn_id,
        )

    def _say(self, begun: Begun, began_at: datetime) -> None:
        words = {
            "started": "Started run %s (execution %s).",
            "attached": "Found run %s (execution %s) of this task; it goes on.",
            "continued": "Run %s had ended without a result; it begins again where it stopped (execution %s).",
        }
        # With the time before the start: a log is read in the order of times, and steps are told with those of theirs.
        self.log.info(words[begun.how], begun.workflow_id, begun.run_id, timestamp=log_time(began_at))
        if begun.reused:
            self.log.info("%s steps are complete already and do not run again.", begun.reused)
        if begun.retried:
            self.log.info("Stuck steps that run again now: %s.", ", ".join(begun.retried))

    def _kill(self, ti: Any) -> None:
        """End the run if the task is over."""
        place, waited = getattr(self, "_place", ""), getattr(self, "_waited", None)
        try:
            if not place or task_state(ti) not in OVER:
                return
        except Exception as error:  # Nobody answers any more: the next try finds the run, or people do, in Temporal.
            self.log.warning("Run %s goes on: Airflow does not say whether this task is over. %r", place, error)
            return
        run_id = waited.run_id if waited else ""
        stop = stop_run_of_task(place, self.kill_mode, "The task was killed.", of=ti, run_id=run_id)
        if self._do(None, stop):
            self.log.warning("Somebody has ended this task, and run %s with it.", place)


@dataclass(frozen=True)
class _Hinted:
    """That a task which waits in its process has to look at its run again. event: as the trigger's."""

    event: dict[str, Any]


class TemporalWorkflowOperator(_RunOperator):
    """Runs any workflow by its name and waits for it. Its result is the task's value.

    workflow: the name of its type. arguments: one JSON value or pydantic model each, in order.
    memo: for whoever finds the run. run_timeout: after which Temporal ends the run itself.
    The other arguments: see `_RunOperator`.
    """

    template_fields: Sequence[str] = (*_RunOperator.template_fields, "workflow", "arguments", "memo")
    template_fields_renderers: ClassVar[dict[str, str]] = {"arguments": "json", "memo": "json"}

    def __init__(
        self,
        *,
        workflow: str,
        arguments: Sequence[Any] = (),
        memo: Mapping[str, Json] | None = None,
        run_timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.workflow = workflow
        self.arguments = arguments
        self.memo = memo or {}
        self.run_timeout = _duration("run_timeout", run_timeout)

    def _job(self, client: Client, context: Any) -> Job:
        if not isinstance(self.memo, Mapping):
            raise BadTaskError(f"memo of task {self.task_id!r} is a {type(self.memo).__name__}; it is a dict.")
        return WorkflowJob(
            self.workflow,
            _arguments(self.task_id, self.arguments),
            task_queue=self.task_queue or "",
            execution_timeout=self.run_timeout,
            memo={**_as_json("memo", dict(self.memo)), **lineage.parent_memo(context["ti"])},
            summary=f"{context['ti'].dag_id}.{context['ti'].task_id}",
        )


class AgentWorkflowOperator(_RunOperator):
    """Runs an agent and waits for it; while a person is asked, nothing is held. The agent's output is the task's value.

    agent: the name of an agent of the workers' app. prompt: text, or a list of the framework's content parts.
    agent_deps: the run's `deps`, which in Airflow's operators are something else.
    message_history, session, previous_response_id, auto_previous_response_id, model, model_settings, usage_limits,
    budget, review, stream: as in `Client.start`.
    requested_by: who wants the run; the user who has triggered the Dag run, or the Dag, when not given.
    approvals: where people are asked. `interlock`: on Interlock's own surfaces, and a link leads there;
    `required_actions`: each request is a Required Action in Airflow, too. That needs the approvals Dag, see the docs.
    approvals_dag_id: its id.
    approvals_in_place: of `required_actions`: on Airflow 3.4 and later one request at a time is shown on this task
    itself, to whoever may answer Required Actions of this Dag; the approvals Dag shows what is asked beside it.
    assignees: of `required_actions`: ids of the Airflow users who may answer; everybody who may when empty.
    on_stuck: when a step has failed for good, `fail` the try: the next one runs that step again in place. `wait`: until
    somebody else has it retried. stuck_seconds: how long such a run waits.
    The other arguments: see `_RunOperator`.
    """

    template_fields: Sequence[str] = (
        *_RunOperator.template_fields,
        "agent",
        "prompt",
        "agent_deps",
        "message_history",
        "session",
        "previous_response_id",
        "model",
        "model_settings",
        "usage_limits",
        "budget",
        "requested_by",
        "assignees",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"agent_deps": "json", "message_history": "json"}

    def __init__(
        self,
        *,
        agent: str,
        prompt: Any = None,
        agent_deps: Any = None,
        message_history: list[Json] | None = None,
        session: str | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        model: str | None = None,
        model_settings: dict[str, Json] | None = None,
        usage_limits: dict[str, Json] | None = None,
        budget: Mapping[str, Json] | None = None,
        review: int | bool | None = None,
        requested_by: str | None = None,
        stream: bool = False,
        approvals: Approvals = "interlock",
        approvals_dag_id: str = APPROVALS_DAG,
        approvals_in_place: bool = False,
        assignees: Sequence[str] = (),
        on_stuck: OnStuck = "fail",
        stuck_seconds: float = DEFAULT_STUCK_SECONDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.agent = agent
        self.prompt = prompt
        self.agent_deps = agent_deps
        self.message_history = message_history
        self.session = session
        self.previous_response_id = previous_response_id
        self.auto_previous_response_id = auto_previous_response_id
        self.model = model
        self.model_settings = model_settings
        self.usage_limits = usage_limits
        self.budget = budget
        self.review = review
        self.requested_by = requested_by
        self.stream = stream
        self.approvals = _one_of(Approvals, "approvals", approvals)
        self.approvals_dag_id = approvals_dag_id
        self.approvals_in_place = approvals_in_place
        if isinstance(assignees, str):
            raise TypeError(f"assignees={assignees!r} is a text; it is a list of the ids of Airflow users.")
        self.assignees = assignees
        self.on_stuck = _one_of(OnStuck, "on_stuck", on_stuck)
        self.stuck_seconds = stuck_seconds
        self._needs_input = True

    def _job(self, client: Client, context: Any) -> Job:
        return AgentJob(
            lambda: self._input(client, context, self.prompt),
            eager=self._needs_input,
            memo=lineage.parent_memo(context["ti"]),
        )

    def _input(self, client: Client, context: Any, prompt: Any) -> RunInput:
        return client.input(
            self.agent,
            _prompt(self.task_id, prompt),
            deps=_as_json("agent_deps", self.agent_deps),
            message_history=_as_json("message_history", self.message_history),
            session=self.session or None,
            previous_response_id=self.previous_response_id or None,
            auto_previous_response_id=self.auto_previous_response_id,
            model=self.model or None,
            model_settings=_as_json("model_settings", self.model_settings),
            usage_limits=_as_json("usage_limits", self.usage_limits),
            budget=_as_json("budget", self.budget),
            review=self.review,
            requested_by=self.requested_by or _requester(context),
            stuck_seconds=self.stuck_seconds,
            stream=self.stream,
        )

    @property
    def _on_stuck(self) -> OnStuck:
        return self.on_stuck

    @property
    def _mirrors(self) -> bool:
        return self.approvals == "required_actions"

    async def _show_requests(self, context: Any, client: Client, waited: Waited) -> Waited:
        if isinstance(self.assignees, str) or not isinstance(self.assignees, Sequence):  # By a template, or an XCom.
            raise BadTaskError(
                f"assignees of task {self.task_id!r} is a {type(self.assignees).__name__}; it is a list of the ids of "
                "Airflow users."
            )
        return await show_requests(
            client,
            waited,
            dag_id=self.approvals_dag_id,
            assignees=self.assignees,
            task=OwnTask(context["ti"].id, in_form(self._links(waited))),
            # Only a task that is deferred can be answered.
            in_place=self.approvals_in_place and ASKS_AGAIN and self.wait_mode == "defer",
        )


class TemporalSignalOperator(BaseOperator):
    """Sends a signal to a workflow. Sending it again, as a retry may, is for the workflow to bear.

    workflow_id, run_id: of the workflow; its latest execution without a run_id. signal: its name. arguments: JSON.
    """

    template_fields: Sequence[str] = ("workflow_id", "run_id", "signal", "arguments", "temporal_conn_id")

    def __init__(
        self,
        *,
        workflow_id: str,
        signal: str,
        arguments: Sequence[Any] = (),
        run_id: str | None = None,
        temporal_conn_id: str = TemporalHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.workflow_id = workflow_id
        self.run_id = run_id
        self.signal = signal
        self.arguments = arguments
        self.temporal_conn_id = temporal_conn_id

    def execute(self, context: Any) -> None:
        """Send it. Raises NotRunningError when there is no such open workflow."""
        arguments = _arguments(self.task_id, self.arguments)

        async def send(client: Client) -> None:
            handle = client.temporal.get_workflow_handle(self.workflow_id, run_id=self.run_id or None)
            with server_errors(self.workflow_id):
                await handle.signal(self.signal, args=arguments)

        try:
            TemporalHook(self.temporal_conn_id).run(send)
        except RefusedError as error:
            raise NotRunningError(
                f"Workflow {self.workflow_id!r} cannot be signalled: it has ended, or was not started yet. For one "
                "that starts later, give this task `retries`."
            ).about(self.workflow_id, self.run_id or "") from error
        except MisconfiguredError as error:
            raise BadTaskError(str(error)) from error
        except UnavailableError as error:
            raise TemporalUnavailableError(str(error)) from error


async def _stuck(run: Run) -> str:
    """What is stuck, in words."""
    try:
        state = await run.state()
    except InterlockError:  # No worker answers.
        return "a step has failed for good."
    # Without the arguments of its call, which the label goes on with: this becomes a line of a log.
    steps = [f"{one.label.partition(':')[0]} failed: {one.error_type}: {one.message}." for one in state.stuck]
    return " ".join(steps) or "a step had failed for good, and somebody has just had it retried."


def _is_past(deadline: datetime | None) -> bool:
    return deadline is not None and datetime.now(UTC) >= deadline


def _recalled(store: Any) -> dict[str, Any]:
    kept = store.get(_KEPT) if store is not None else None
    return kept if isinstance(kept, dict) else {}


def is_known(context: Any, task: TaskIdentity) -> bool | None:
    """Whether the task has begun before, since it was cleared last. None before Airflow 3.3, which keeps nothing."""
    store = context.get("task_state_store")
    return None if store is None else _recalled(store).get("max_tries") == task.max_tries


def _requester(context: Any) -> str:
    user = getattr(context.get("dag_run"), "triggering_user_name", None)
    return user or f"airflow:{context['ti'].dag_id}"


def _prompt(task_id: str, prompt: Any) -> Any:
    if isinstance(prompt, str) and prompt.strip():
        return prompt
    parts = _as_json("prompt", prompt)
    if isinstance(parts, list) and parts:
        return parts
    given = (
        "empty" if isinstance(prompt, str | list) else "None" if prompt is None else f"of type {type(prompt).__name__}"
    )
    raise BadTaskError(
        f"The prompt of task {task_id!r} is {given}; it is a text, or a list of content parts, that is not empty."
    )


def _arguments(task_id: str, arguments: Any) -> tuple[Json, ...]:
    if isinstance(arguments, str | bytes) or not isinstance(arguments, Sequence):
        raise BadTaskError(
            f"arguments of task {task_id!r} is a {type(arguments).__name__}; it is a list, with one for each argument."
        )
    return tuple(_as_json(f"arguments[{number}]", value) for number, value in enumerate(arguments))


def _as_json(what: str, value: Any) -> Any:
    """A value as plain JSON. Pydantic models are dumped; anything else that is no JSON is refused by its name."""
    try:
        return json.loads(json.dumps(value, default=_dumped, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadTaskError(f"{what} is not JSON: {error}. Allowed are JSON values and pydantic models.") from error


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"it has a {type(value).__name__}")


def _one_of(words: Any, name: str, value: T) -> T:
    allowed = words.__args__
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is not known; it is one of {', '.join(map(repr, allowed))}.")
    return value


def _above_zero(name: str, value: float) -> float:
    if isinstance(value, str) or not value > 0:
        raise ValueError(f"{name}={value!r} is not known; it is a number above zero.")
    return value


def _duration(name: str, value: timedelta | None) -> timedelta | None:
    if value is not None and not isinstance(value, timedelta):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}; it is a timedelta.")
    return value
