"""The approvals Dag: each of its runs shows one request of an agent's run as a Required Action of Airflow.

The request stays the run's own. Here it is shown, answers are passed on, and what is settled elsewhere is closed.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from temporalio.service import RPCError

from interlock.bridge._airflow import DAG, AirflowSkipException, BaseOperator, started_by_a_task
from interlock.bridge.asked import Asked
from interlock.bridge.awaiting import RequestTrigger, Until
from interlock.bridge.errors import BadTaskError, TemporalUnavailableError
from interlock.bridge.form import Answer
from interlock.bridge.hook import TemporalHook
from interlock.bridge.identity import TaskIdentity
from interlock.bridge.links import LINKS, in_form, links_of
from interlock.bridge.mirror import APPROVALS_DAG, start
from interlock.bridge.settling import Settled, Standing, standing_of
from interlock.bridge.showing import show, tell
from interlock.client import Client
from interlock.contracts.errors import MisconfiguredError, RefusedError, UnavailableError
from interlock.contracts.payloads import Json

T = TypeVar("T")
_NOTHING = "Nothing was decided here."

_DOC = """
Each run of this Dag shows one request of an agent's run under Required Actions. Tasks of agents start them.

A task that ends as a **success** has passed on the answer that was given here. A **skipped** one has not: the request
was settled elsewhere, or is asked again, as its log says. Marking a task leaves its request open in Temporal; clearing
the task shows the request again.
"""


def approvals_dag(dag_id: str = APPROVALS_DAG, **options: Any) -> DAG:
    """The Dag that shows the requests of agents as Required Actions. Call it in a file of the Dags folder, once.

    dag_id: as in `approvals_dag_id` of the agents' tasks. options: of the Dag, such as `access_control`: who may answer
    is who may change Required Actions of this Dag.
    """
    settings: dict[str, Any] = {
        "schedule": None,
        "catchup": False,
        "is_paused_upon_creation": False,
        # All that is open is shown, whatever its number: Airflow's own limit would leave the 17th waiting.
        "max_active_runs": 100_000,
        "tags": ["interlock"],
        "doc_md": _DOC,
        **options,
    }
    with DAG(dag_id, **settings) as dag:
        RequestOperator(
            task_id="decide",
            retries=10,
            retry_delay=timedelta(seconds=5),
            retry_exponential_backoff=True,
            max_retry_delay=timedelta(minutes=5),
        )
    return dag


class RequestOperator(BaseOperator):
    """Shows the request that its Dag run is configured with, waits without a worker, and passes the answer on.

    Its value says what became of the answer. It is skipped when the request was settled elsewhere or is asked again.
    """

    operator_extra_links = LINKS
    ui_color = "#e7e4fb"
    run_links: dict[str, str]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run_links = {}

    def execute(self, context: Any) -> None:
        """Show the request."""
        asked = _asked(context)
        task = TaskIdentity.of(context)
        if task.try_number > 1 and task.try_number != task.clears + 1:
            # What a person has answered in an earlier try counts. Whoever clears a task wants it asked anew.
            self._wait(context, asked, "recalled")
        self._show(context, asked)

    def resume(self, context: Any, event: dict[str, Any]) -> Any:
        """Go on with an answer, or look whether the request was settled elsewhere."""
        asked = _asked(context)
        if "chosen_options" in event:  # Airflow's own event, since 3.3.
            answer = Answer.read(event)
        elif event["ti_id"] != str(context["ti"].id) or Asked.model_validate(event["asked"]) != asked:
            self._wait(context, asked)
        elif event.get("error"):
            raise BadTaskError(event["error"])
        else:
            answer = Answer.model_validate(event["answer"]) if event["answer"] else None
            if answer is None and event["until"] != "settled":
                self._show(context, asked)
        if answer is not None:
            return self._pass_on(context, asked, answer)
        try:
            standing = self._do(asked, lambda client: standing_of(client, asked))
        except TemporalUnavailableError as error:
            self.log.warning("%s", error)
            self._wait(context, asked)
        if standing.settled is not None:
            self._skip(asked, standing.settled)
        self._wait(context, asked)

    def _show(self, context: Any, asked: Asked) -> NoReturn:
        try:
            standing = self._do(asked, lambda client: standing_of(client, asked))
        except TemporalUnavailableError as error:
            self.log.warning("%s", error)
            self._wait(context, asked, "reached")
        if standing.request is None:
            assert standing.settled is not None
            self._skip(asked, standing.settled)
        request = standing.request
        links = self._links(context, asked)
        show(context["ti"].id, asked, request, requested_by=standing.requested_by, links=links)
        self.log.info(
            "Request %s of run %s waits for %s since %s.",
            asked.request_id,
            asked.workflow_id,
            ", ".join(asked.assignees) or "a person",
            f"{request.requested_at:%Y-%m-%d %H:%M:%S} UTC",
        )
        self._wait(context, asked)

    def _pass_on(self, context: Any, asked: Asked, answer: Answer) -> dict[str, Json]:
        try:
            became = self._do(asked, lambda client: tell(client, asked, answer))
        except TemporalUnavailableError as error:
            self.log.warning("%s The answer of %s is passed on once a worker is there.", error, answer.by)
            self._wait(context, asked, "reached", answer)
        if isinstance(became, str):
            start(asked.again(f"{answer.by} answered: {', '.join(answer.options)}. {became}"), context["ti"].dag_id)
            self.log.info("The answer of %s was not taken, so it is asked again. %s", answer.by, became)
            raise AirflowSkipException(_NOTHING)
        if isinstance(became, Standing):
            settled = became.settled
            assert settled is not None
            if settled.by != answer.by:
                self._skip(asked, settled, f"The answer of {answer.by} came too late.")
            outcome = settled.outcome  # An earlier try had passed it on.
        else:
            outcome = became.outcome
        self.log.info("Request %s of run %s: %s by %s.", asked.request_id, asked.workflow_id, outcome, answer.by)
        return {
            "workflow_id": asked.workflow_id,
            "request_id": asked.request_id,
            "outcome": outcome,
            "by": answer.by,
        }

    def _skip(self, asked: Asked, settled: Settled, why: str = "") -> NoReturn:
        if why:
            self.log.info(why)
        self.log.info("Request %s of run %s: %s.", asked.request_id, asked.workflow_id, settled)
        raise AirflowSkipException(_NOTHING)

    def _wait(self, context: Any, asked: Asked, until: Until = "settled", answer: Answer | None = None) -> NoReturn:
        self.defer(
            trigger=RequestTrigger(
                asked.model_dump(mode="json"),
                str(context["ti"].id),
                until,
                answer.model_dump(mode="json") if answer else None,
            ),
            method_name="resume",
        )

    def _do(self, asked: Asked, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        try:
            return TemporalHook(asked.temporal_conn_id).run(work)
        except (UnavailableError, RPCError) as error:
            raise TemporalUnavailableError(str(error)) from error
        except (RefusedError, MisconfiguredError) as error:
            raise BadTaskError(str(error)) from error

    def _links(self, context: Any, asked: Asked) -> dict[str, str]:
        settings = TemporalHook(asked.temporal_conn_id).settings()
        self.run_links = links_of(
            ui_url=settings.ui_url,
            namespace=settings.namespace or "default",
            workflow_id=asked.workflow_id,
            run_id=asked.run_id,
            conn_id=asked.temporal_conn_id,
        )
        for link in LINKS:
            context["ti"].xcom_push(key=link.xcom_key, value=self.run_links.get(link.xcom_key, ""))
        return in_form(self.run_links)


def _asked(context: Any) -> Asked:
    try:
        # A person could ask with other assignees than the agent's task has.
        if started_by_a_task(context["dag_run"]):
            return Asked.model_validate(context["dag_run"].conf or {})
    except ValidationError:
        pass
    raise BadTaskError(
        f"This Dag run asks nothing: tasks of agents start the runs of {context['ti'].dag_id!r}, with "
        "approvals='required_actions'."
    )
