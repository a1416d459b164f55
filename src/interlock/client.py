"""The client: starts runs, finds them again, and shows what all of them wait for."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Any, Self

from pydantic import ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import (
    PinnedVersioningOverride,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import WorkflowAlreadyStartedError

from interlock._rpc import (
    CLOSED,
    check_travels,
    compression_to,
    current_user,
    ignoring_unanswered,
    server_errors,
)
from interlock._versions import Version, pin_of, workers_of
from interlock.contracts import names
from interlock.contracts.budgets import budget_of
from interlock.contracts.canonical import digest
from interlock.contracts.errors import (
    KEPT_ELSEWHERE,
    InputDiffersError,
    MisconfiguredError,
    RefusedError,
    RunFailedError,
    UnavailableError,
)
from interlock.contracts.failures import problems
from interlock.contracts.masking import masked_text
from interlock.contracts.payloads import (
    DEFAULT_STUCK_SECONDS,
    ApprovalRequest,
    Budget,
    Decision,
    Json,
    RunInput,
    RunOptions,
    RunOutput,
)
from interlock.contracts.reviews import review_rounds
from interlock.contracts.sessions import SessionState
from interlock.fork import NO_RESULT, Change, ForkPlan, plan_fork
from interlock.journal import HistoryReader, Journal, SubRunLink
from interlock.run import Run, RunReport
from interlock.sessions import SessionReport, StoredSessions
from interlock.tracing import interceptors
from interlock.watchdog import RunTrouble, Watchdog

_DEFAULT_ADDRESS = "localhost:7233"
_TLS = "TEMPORAL_TLS"
_UNFIT = (
    names.UNKNOWN_AGENT,
    names.INVALID_INPUT,
    names.SESSION_FULL,
    names.SESSION_BUSY,
    names.OTHER_FRAMEWORK,
)


class Client:
    """A connection to Temporal, for runs on one task queue.

    stuck_seconds: how long runs that it starts wait to be retried once a step has failed for good; 0 ends them at once.
    budget: of runs that are started without one.
    """

    def __init__(
        self,
        temporal: TemporalClient,
        *,
        task_queue: str = names.DEFAULT_TASK_QUEUE,
        stuck_seconds: float = DEFAULT_STUCK_SECONDS,
        budget: Budget | None = None,
    ) -> None:
        self.temporal = temporal
        self.task_queue = task_queue
        self.stuck_seconds = stuck_seconds
        self.budget = budget
        self._attributes: tuple[str, ...] | None = None

    @classmethod
    async def connect(
        cls,
        address: str | None = None,
        *,
        namespace: str | None = None,
        task_queue: str = names.DEFAULT_TASK_QUEUE,
        stuck_seconds: float = DEFAULT_STUCK_SECONDS,
        budget: Budget | None = None,
    ) -> Self:
        """Connect to a server.

        task_queue, stuck_seconds, budget: of the runs it starts. The rest, when not given, comes from Temporal's own
        environment variables and profiles (`TEMPORAL_ADDRESS`, `TEMPORAL_NAMESPACE`, `TEMPORAL_PROFILE`, ...), then
        from Temporal's defaults. The client, and a worker with it, makes OpenTelemetry spans when this process has set
        a tracer provider.
        Raises UnavailableError when no server answers, MisconfiguredError when the configuration is not readable.
        """
        # Temporal takes any other word for true, "no" and "off" too.
        if (tls := os.environ.get(_TLS)) is not None and tls.lower() not in ("true", "false", "1", "0"):
            raise MisconfiguredError(f"{_TLS} is {tls!r}. It is true or false; leave it out for the default.")
        try:
            config = dict(ClientConfig.load_client_connect_config())
        except Exception as error:
            raise MisconfiguredError(f"Temporal's client configuration cannot be read: {error}") from error
        target = address or str(config.pop("target_host", None) or _DEFAULT_ADDRESS)
        config.pop("target_host", None)
        if "://" in target:
            raise MisconfiguredError(
                f"{target!r} is not the address of a server: it is HOST:PORT without a scheme, such as localhost:7233. "
                f"{_TLS}=true turns TLS on."
            )
        if namespace:
            config["namespace"] = namespace
        try:
            temporal = await TemporalClient.connect(
                target,
                data_converter=pydantic_data_converter,
                interceptors=interceptors(),
                grpc_compression=compression_to(target),
                **config,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise MisconfiguredError(
                f"A connection to {target!r} cannot be made: {error}. The address of a server is HOST:PORT."
            ) from error
        except RuntimeError as error:
            over, plain = (" over TLS", f" For one without TLS, set {_TLS}=false.") if config.get("tls") else ("", "")
            raise UnavailableError(
                f"No Temporal server answers at {target}{over}. Start one with `interlock server start`, "
                f"or set TEMPORAL_ADDRESS to where one is.{plain}"
            ) from error
        return cls(temporal, task_queue=task_queue, stuck_seconds=stuck_seconds, budget=budget)

    async def start(
        self,
        agent: str,
        prompt: str | Sequence[Json],
        *,
        id: str | None = None,
        deps: Json = None,
        message_history: list[Json] | None = None,
        session: str | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        model: str | None = None,
        model_settings: dict[str, Json] | None = None,
        usage_limits: dict[str, Json] | None = None,
        requested_by: str | None = None,
        stuck_seconds: float | None = None,
        stream: bool = False,
        budget: Budget | Mapping[str, Json] | None = None,
        review: int | bool | None = None,
        restart: bool = False,
    ) -> Run:
        """Start a run, or find the one that is there.

        id: a business key makes asking twice one run; made up when not given. The other fields are those of
        `RunInput`. session: the conversation that the run is a turn of: it begins with the messages of the turns before
        it, waits for one that is under way, and adds its own when it completes. stuck_seconds, budget: in place of the
        client's; a budget also as its fields by name, such as `{"requests": 20, "cost_usd": "1.50"}`. stream: record
        what its models and tools say while they work, for `Run.events`. review: have a person asked about the output
        before the run ends with it, and how many outputs at most, one after the other; True is 5, False and None leave
        it to the app. restart: when the run with this id has ended, start it over (its history stays).
        conversation_id: refused, whatever it is.
        Raises RefusedError when the id is taken by a run with another input, naming what differs;
        MisconfiguredError when a field has the wrong form.
        """
        run = self.input(
            agent,
            prompt,
            deps=deps,
            message_history=message_history,
            session=session,
            previous_response_id=previous_response_id,
            auto_previous_response_id=auto_previous_response_id,
            conversation_id=conversation_id,
            model=model,
            model_settings=model_settings,
            usage_limits=usage_limits,
            requested_by=requested_by,
            stuck_seconds=stuck_seconds,
            stream=stream,
            budget=budget,
            review=review,
        )
        return await self.start_run(id or f"{agent}-{uuid.uuid4().hex[:12]}", run, restart=restart)

    def input(
        self,
        agent: str,
        prompt: str | Sequence[Json],
        *,
        deps: Json = None,
        message_history: list[Json] | None = None,
        session: str | None = None,
        previous_response_id: str | None = None,
        auto_previous_response_id: bool = False,
        conversation_id: str | None = None,
        model: str | None = None,
        model_settings: dict[str, Json] | None = None,
        usage_limits: dict[str, Json] | None = None,
        requested_by: str | None = None,
        stuck_seconds: float | None = None,
        stream: bool = False,
        budget: Budget | Mapping[str, Json] | None = None,
        review: int | bool | None = None,
    ) -> RunInput:
        """The input of a run, for `start_run`; nothing is asked of the server. The fields are those of `start`.

        Raises MisconfiguredError when a field has the wrong form, or the whole is too large to travel.
        """
        if conversation_id is not None:
            raise MisconfiguredError(f"The run cannot be started with a conversation_id: {KEPT_ELSEWHERE}")
        try:
            run = RunInput(
                agent=agent,
                prompt=list(prompt) if isinstance(prompt, tuple) else prompt,  # type: ignore[arg-type]
                deps=deps,
                message_history=message_history,
                session=session,
                previous_response_id=previous_response_id,
                auto_previous_response_id=auto_previous_response_id,
                model=model,
                model_settings=model_settings,
                usage_limits=usage_limits,
                requested_by=current_user() if requested_by is None else requested_by,
                budget=self.budget if budget is None else budget_of(budget),
                review_rounds=review_rounds(review),
                options=RunOptions(
                    stuck_seconds=self.stuck_seconds if stuck_seconds is None else stuck_seconds,
                    stream=stream,
                    places_by_answer=True,
                ),
            )
        except ValidationError as error:
            raise MisconfiguredError(f"The run cannot be started: {problems(error, depth=1)}") from error
        check_travels(run, "The run's input")
        return run

    async def start_run(
        self,
        id: str,
        run: RunInput,
        *,
        restart: bool = False,
        pinned_to: Version = None,
        memo: Mapping[str, Json] | None = None,
    ) -> Run:
        """`start` for an input that is made already. pinned_to: the worker deployment version that the run stays on.

        memo: what else is kept with the run for whoever finds it; it is no part of the input.
        """
        with server_errors(id):
            options = run.options.model_copy(update={"search_attributes": await self._known_attributes()})
            run = run.model_copy(update={"options": options})
            try:
                return await self._start(id, run, restart=restart, pinned_to=pinned_to, memo=memo or {})
            except WorkflowAlreadyStartedError:
                existing = self.attach(id)
                description = await existing._handle.describe()
                different = _differences(await description.memo(), run)
                if not different:
                    return existing
                if await _was_unfit(existing, description):
                    return await self._start(id, run, restart=True, pinned_to=pinned_to, memo=memo or {})
                raise InputDiffersError(
                    f"Run {id!r} exists with another input: {', '.join(different)} differ"
                    f"{'s' if len(different) == 1 else ''}. Take another id, or start it with the same input.",
                    fields=tuple(different),
                ) from None

    async def plan_fork(
        self,
        id: str,
        *,
        at: int,
        run_id: str | None = None,
        message: str = "",
        decision: Decision | None = None,
        result: Json = NO_RESULT,
    ) -> ForkPlan:
        """What a new run would take over of this one, open or closed, and what lies after. Nothing is started.

        at: the position, in the run's journal, of the first step that is not taken over; one more than the last takes
        all over. run_id: of the execution; the latest when not given. One thing can be changed at that step:
        message: in a user's voice, to the model. decision: of a request. result: of a tool call, which is then not run.
        Raises RefusedError when there is no such run or step, or the change does not fit the step.
        """
        change = Change(message, decision, None if result is NO_RESULT else result, result is not NO_RESULT)
        if sum((bool(message), decision is not None, change.has_result)) > 1:
            raise RefusedError("A fork changes one thing: a message, a decision or a result.")

        def events(run_id: str) -> AsyncIterable[HistoryEvent]:
            return self.temporal.get_workflow_handle(id, run_id=run_id).fetch_history_events()

        with server_errors(id):
            described = await self.temporal.get_workflow_handle(id, run_id=run_id).describe()
            return await plan_fork(
                events,
                self.temporal.data_converter,
                run_id=described.run_id,
                at=at,
                change=change,
            )

    async def fork(
        self,
        plan: ForkPlan,
        *,
        id: str | None = None,
        requested_by: str | None = None,
        budget: Budget | Mapping[str, Json] | None = None,
        stuck_seconds: float | None = None,
        restart: bool = False,
        memo: Mapping[str, Json] | None = None,
    ) -> Run:
        """Start the run of a plan. id: of the new run; made up when not given. budget: in place of the other run's;
        what is taken over counts as spent. stuck_seconds: in place of the client's. restart, memo: as in `start_run`;
        with restart the id can be the other run's, once that has ended."""
        seconds = self.stuck_seconds if stuck_seconds is None else stuck_seconds
        run = plan.run.model_copy(
            update={
                "requested_by": current_user() if requested_by is None else requested_by,
                "options": plan.run.options.model_copy(update={"stuck_seconds": seconds}),
                **({} if budget is None else {"budget": budget_of(budget)}),
            }
        )
        check_travels(run, "The fork")
        new = id or f"{plan.journal.workflow_id}-fork-{uuid.uuid4().hex[:6]}"
        return await self.start_run(new, run, restart=restart, memo=memo)

    def attach(self, id: str) -> Run:
        """The run with this id; nothing is asked of the server."""
        return Run(self, self.temporal.get_workflow_handle(id, result_type=RunOutput))

    async def runs(self, *, limit: int = 50) -> list[RunReport]:
        """Runs, without their outputs: the open ones first, then those that ended last.

        A run that went on in another execution is there once, as its last one.
        """
        query = f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus != 'ContinuedAsNew'"
        with server_errors(""):
            found = self.temporal.list_workflows(query, limit=limit)
            return [await self._listed(execution) async for execution in found]

    async def sessions(self, *, limit: int = 50) -> list[SessionReport]:
        """The newest sessions that are open."""
        with server_errors(""):
            query = f"WorkflowType = '{names.SESSION_WORKFLOW}' AND ExecutionStatus = 'Running'"
            found = self.temporal.list_workflows(query, limit=limit)
            return [
                SessionReport(session_id=one.id.removeprefix(names.SESSION_PLACE), began_at=one.start_time)
                async for one in found
            ]

    async def session(self, session_id: str) -> SessionState:
        """How a session stands: its turns, and who waits. Needs a worker.

        Raises RefusedError when there is no such session, or it was ended.
        """
        state = await StoredSessions(self.temporal, self.task_queue).state(session_id)
        if state is None:
            raise RefusedError(f"There is no session {session_id!r}. See `interlock sessions list`.")
        return state

    async def conversation(self, session_id: str) -> list[Json]:
        """The messages of all turns that a session has had, as the framework's JSON, oldest first. Needs a worker.

        Raises RefusedError when there is no such session, or it was ended.
        """
        await self.session(session_id)
        return await StoredSessions(self.temporal, self.task_queue).messages(session_id)

    async def approvals(self, *, unanswered: Callable[[str], None] = lambda workflow_id: None) -> list[ApprovalRequest]:
        """The open requests of all runs, oldest first. Needs a worker.

        unanswered: called with the id of each run that could not be asked. Raises UnavailableError when none could.
        """
        query = f"WorkflowType = '{names.AGENT_WORKFLOW}' AND ExecutionStatus = 'Running'"
        with server_errors(""):
            if names.ATTRIBUTE_PENDING_APPROVALS in await self._known_attributes():
                query += f" AND {names.ATTRIBUTE_PENDING_APPROVALS} > 0"
            open_ids = [execution.id async for execution in self.temporal.list_workflows(query)]
        slots = asyncio.Semaphore(20)

        async def ask(id: str) -> list[ApprovalRequest] | None:
            async with slots:
                try:
                    return await self.attach(id).approvals()
                except UnavailableError:
                    unanswered(id)
                except RefusedError:  # It has ended meanwhile.
                    return []
                return None

        answers = await asyncio.gather(*(ask(open_id) for open_id in open_ids))
        if open_ids and all(answer is None for answer in answers):
            raise UnavailableError(
                f"No worker answered for any of {len(open_ids)} open runs. "
                "Start one with `interlock worker run MODULE:APP`."
            )
        requests = [request for answer in answers for request in answer or []]
        return sorted(requests, key=lambda request: request.requested_at)

    async def journal(self, run: str | Run, *, run_id: str | None = None, deep: bool = False) -> Journal:
        """All that a run did, running or ended, from its history. Needs no worker, and works for any workflow.

        run: a run or its id. run_id: one of its executions, the latest when not given. deep: with the journals of the
        runs that its tools have started. Raises RefusedError when there is no such run.
        """
        workflow_id = run if isinstance(run, str) else run.id
        with server_errors(workflow_id, run_id=run_id):
            handle = self.temporal.get_workflow_handle(workflow_id, run_id=run_id)
            description = await handle.describe()
            reader = HistoryReader(self.temporal.data_converter, run_id=description.run_id)
            # By its own id from here on: what is started over meanwhile is another history.
            handle = self.temporal.get_workflow_handle(workflow_id, run_id=description.run_id)
            async for event in handle.fetch_history_events():
                await reader.read(event)
            await reader.pending(description.raw_description.pending_activities)
        journal = reader.journal()
        if not deep:
            return journal
        return journal.model_copy(update={"sub_runs": tuple([await self._read_below(one) for one in journal.sub_runs])})

    async def troubled_runs(
        self,
        *,
        limit: int = 1_000,
        waits_long_seconds: float = 86_400,
        looked: Callable[[int, int], None] = lambda number, of: None,
    ) -> list[RunTrouble]:
        """The open runs of the namespace that do not get on, and why: the wrong ones first, then those that only wait.

        limit: how many open runs are looked at, the newest. waits_long_seconds: after how long an unanswered request
        is worth a word. looked: called after each run with how many were looked at, and of how many.
        Costs one request to the server for each open run, and one to a worker for each that asks somebody or is stuck.
        """
        with server_errors(""):
            return await Watchdog(self, waits_long_seconds=waits_long_seconds, looked=looked).look(limit)

    async def has_worker(self, *, pinned_to: Version = None, host: str = "") -> bool:
        """Whether a worker has asked for runs on the task queue within the last minute.

        pinned_to: for a run that stays on this worker deployment version; else it is about new runs.
        host: any worker on the machine of this name instead, whatever its version.
        """
        with server_errors(""):
            workers = await workers_of(self)
        return host in workers.hosts if host else workers.serve(pinned_to)

    async def missing_attributes(self) -> list[str]:
        """Interlock's search attributes that the server does not have. Runs work without them."""
        with server_errors(""):
            known = await self._known_attributes()
        return [name for name in names.SEARCH_ATTRIBUTES if name not in known]

    async def report_of(self, description: WorkflowExecutionDescription) -> RunReport:
        """How the run stands that Temporal describes so."""
        report = await self._listed(description)
        run = self.attach(description.id)
        if report.status == "completed":
            output = await run.result()
            return report.model_copy(update={"output": output.output, "usage": output.usage})
        if description.status is not WorkflowExecutionStatus.RUNNING:
            try:
                await run.result()
            except RunFailedError as error:
                message = f"{error.error_type}: {error}" if error.error_type else str(error)
                return report.model_copy(update={"error": message})
        if await self.has_worker(pinned_to=pin_of(description)):
            with ignoring_unanswered():
                return report.model_copy(update={"status": (await run.state()).status})
        return report

    async def _read_below(self, link: SubRunLink) -> SubRunLink:
        try:
            journal = await self.journal(link.workflow_id, run_id=link.run_id or None, deep=True)
        except (RefusedError, MisconfiguredError) as error:  # Histories are kept for a time, each by itself.
            return link.model_copy(update={"unread": str(error)})
        return link.model_copy(update={"journal": journal, "status": journal.status, "error": journal.error})

    async def _start(
        self, id: str, run: RunInput, *, restart: bool, pinned_to: Version, memo: Mapping[str, Json]
    ) -> Run:
        handle = await self.temporal.start_workflow(
            names.AGENT_WORKFLOW,
            run,
            id=id,
            task_queue=self.task_queue,
            result_type=RunOutput,
            id_reuse_policy=(
                WorkflowIDReusePolicy.ALLOW_DUPLICATE if restart else WorkflowIDReusePolicy.REJECT_DUPLICATE
            ),
            memo={
                **memo,
                names.MEMO_AGENT: run.agent,
                names.MEMO_INPUT_DIGESTS: _digests(run),
                **({names.MEMO_PARENT: run.parent.workflow_id} if run.parent else {}),
            },
            search_attributes=_first_attributes(run),
            static_summary=f"{run.agent}: {_first_line(run.prompt)}",
            versioning_override=PinnedVersioningOverride(pinned_to) if pinned_to else None,
        )
        return Run(self, handle)

    async def _known_attributes(self) -> tuple[str, ...]:
        if self._attributes is None:
            response = await self.temporal.operator_service.list_search_attributes(
                ListSearchAttributesRequest(namespace=self.temporal.namespace)
            )
            self._attributes = tuple(name for name in names.SEARCH_ATTRIBUTES if name in response.custom_attributes)
        return self._attributes

    async def _listed(self, execution: Any) -> RunReport:
        attributes = execution.typed_search_attributes
        status = CLOSED.get(execution.status)
        before = await execution.memo_value(names.MEMO_CONTINUED, {})
        return RunReport(
            workflow_id=execution.id,
            agent=str(await execution.memo_value(names.MEMO_AGENT, "")),
            status=status or attributes.get(SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)) or "running",
            started_at=before.get("started_at", execution.start_time),
            ended_at=execution.close_time,
            run_id=execution.run_id,
            continued_from=before.get("run_id", ""),
        )


_LATER = ("fork", "session", "budget", "previous_response_id", "auto_previous_response_id", "review_rounds")


def _digests(run: RunInput) -> dict[str, str]:
    # Runs that were started before there were these fields have no digest of them.
    later = {name for name in _LATER if not getattr(run, name)}
    never = {"options", "requested_by", "parent", "account", "carried", "key_root"}
    fields = run.model_dump(mode="json", exclude={*never, *later})
    return {name: digest(value)[:16] for name, value in fields.items()}


def _differences(memo: Mapping[str, Any], run: RunInput) -> list[str]:
    before, now = memo.get(names.MEMO_INPUT_DIGESTS, {}), _digests(run)
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


async def _was_unfit(run: Run, description: WorkflowExecutionDescription) -> bool:
    # A run that no worker could take on has done nothing: its id is free for a corrected input.
    if description.status is not WorkflowExecutionStatus.FAILED:
        return False
    try:
        await run.result()
    except RunFailedError as error:
        return error.error_type in _UNFIT
    return False


def _first_attributes(run: RunInput) -> TypedSearchAttributes:
    values: dict[str, Any] = {
        names.ATTRIBUTE_AGENT: run.agent,
        names.ATTRIBUTE_STATUS: "running",
        names.ATTRIBUTE_PENDING_APPROVALS: 0,
        names.ATTRIBUTE_REQUESTED_BY: run.requested_by,
    }
    return TypedSearchAttributes(
        [
            SearchAttributePair(
                SearchAttributeKey.for_int(name) if isinstance(value, int) else SearchAttributeKey.for_keyword(name),
                value,
            )
            for name, value in values.items()
            if name in run.options.search_attributes and value != ""
        ]
    )


def _first_line(prompt: str | Sequence[Json]) -> str:
    text = " ".join(masked_text((prompt if isinstance(prompt, str) else str(prompt[0]))[:500]).split())
    return text if len(text) <= 100 else f"{text[:99]}…"
