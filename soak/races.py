"""Answers that race what ends the wait for them: whatever comes first, exactly one thing happens.

A run waits for the approval of one call, or is stuck at one step. Within 5 ms of each other come an answer, by update
or by signal, and its rival: a cancellation, the run's own time limit, that of the request, the time after which a stuck
run ends, or another person's contrary answer. Then one of these is what happened, and the run, its journal, its
history, the body of the call and the answer's sender all say the same:

* Taken: the run has the answer. The request is settled once, by it, and is never withdrawn. An update has a receipt.
  After an approval the call is scheduled once at most. Either its body ran once, and the run completed, or ended as its
  rival says after that; or the rival ended the run before the call began: then no attempt of it completed and its body
  did not run.
* Missed: the rival came first. The request is withdrawn (its own time limit leaves a run no last word; then its journal
  says so); the call was never scheduled and its body did not run, of a stuck step not again; the run ended as its rival
  says. An update is refused, with the reason.

Of two answers one is taken; the other's sender is told what was decided and by whom. Where the request's own limit came
first, it was not answered in time, and the run completes without the call. No run ends in another way, no
workflow task fails but where Temporal itself repeats one for a message that came during its last, and nobody is left
without an answer.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal

import agents as openai_agents
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from temporalio import activity
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.common import RetryPolicy
from temporalio.service import RPCError, RPCStatusCode

from interlock import Interlock, RefusedError, Retries, Run, RunFailedError, Settings
from interlock.adapters.openai_agents import approval
from interlock.adapters.pydantic_ai import Durable
from interlock.contracts import names
from interlock.contracts.payloads import Decision, Retry, RunInput, RunOptions
from interlock.journal import Journal, read_journal
from interlock.server import EmbeddedServer
from interlock.testing import RunningApp, running
from soak.agents.openai_agents import call_item, text_item
from soak.script import ADAPTERS, Adapter

WITHIN_SECONDS = 0.005
AT_ONCE = 4
"""Runs of each kind that are under way at the same time."""

REPEATED = ("WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND", "WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND")
"""Temporal's own ways to have a run look at what came while it was at its end, and to end one that is at work."""

Said = Literal["accepted", "refused", "sent", "broke"]


@dataclass(frozen=True)
class Told:
    """What a sender was told. sent: a signal or a cancellation that the server took: it says no more. at: sending."""

    said: Said
    at: float
    text: str = ""


@dataclass(frozen=True)
class Facts:
    """What became of one run, from all sides.

    by_update: whether the answer was one. told, rival: what its sender and its rival's were told; a deadline is told
    nothing. struck: when a deadline struck, as far as can be known. status, error_type: of the run's end.
    settled: by its own word. journal: by its history. bodies: how often the call's body ran.
    failed_tasks: causes of failed workflow tasks.
    """

    by_update: bool
    told: Told
    rival: Told | None
    struck: float | None
    status: str
    error_type: str
    settled: tuple[tuple[str, str], ...]
    journal: Journal
    bodies: int
    failed_tasks: tuple[str, ...]

    @property
    def gap(self) -> float:
        """By how many seconds the answer was sent after its rival."""
        return self.told.at - (self.rival.at if self.rival else self.struck or self.told.at)

    @property
    def requests(self) -> list[str]:
        """How the run's requests went, by its journal."""
        return [request.outcome for request in self.journal.requests]

    @property
    def calls(self) -> list[str]:
        """How the scheduled calls of the tool went."""
        return [step.status for step in self.journal.steps if step.kind == "tool"]


class Lane:
    """A worker, and how often the body of each run's call has run on it."""

    def __init__(self) -> None:
        self.bodies: Counter[str] = Counter()
        self.app: RunningApp

    async def entered(
        self, stack: AsyncExitStack, server: EmbeddedServer, adapter: Adapter, cached_runs: int
    ) -> "Lane":
        """Start the worker."""
        once = Retries(tool=RetryPolicy(maximum_attempts=1))
        agent = self._pydantic_ai() if adapter == "pydantic-ai" else self._openai_agents()
        app = Interlock([agent], settings=Settings(stuck_seconds=0), retries=once)
        self.app = await stack.enter_async_context(running(app, server, max_cached_workflows=cached_runs))
        return self

    def handle(self, run: Run) -> WorkflowHandle[Any, Any]:
        """Temporal's own handle of the run."""
        return self.app.client.temporal.get_workflow_handle(run.id)

    def _pay(self) -> str:
        self.bodies[str(activity.info().workflow_id)] += 1
        return "paid"

    def _send(self) -> str:
        self.bodies[str(activity.info().workflow_id)] += 1
        if self.bodies[str(activity.info().workflow_id)] == 1:
            raise ConnectionError("unplugged")
        return "sent"

    def _pydantic_ai(self) -> Agent[Any, Any]:
        def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            if len(messages) > 1:
                return ModelResponse(parts=[TextPart("done")])
            tool = str(getattr(messages[0].parts[0], "content", ""))
            return ModelResponse(parts=[ToolCallPart(tool, {}, tool_call_id="a")])

        model = FunctionModel(answer, model_name="racer")
        limited = {"approval": {"after_seconds": ItsLimit.seconds, "then": "deny"}}
        tools = [
            Tool(self._pay, name="pay", requires_approval=True),
            Tool(self._pay, name="hurry", requires_approval=True, metadata=limited),
            Tool(self._send, name="send"),
        ]
        return Agent(model, name="racer", tools=tools, capabilities=[Durable()])

    def _openai_agents(self) -> openai_agents.Agent[Any]:
        pay = openai_agents.function_tool(self._pay, name_override="pay", needs_approval=True)
        send = openai_agents.function_tool(self._send, name_override="send", failure_error_function=None)
        hurry = openai_agents.function_tool(self._pay, name_override="hurry", needs_approval=True)
        approval(hurry, after_seconds=ItsLimit.seconds)
        return openai_agents.Agent(name="racer", model=_Racer(), tools=[pay, hurry, send])


class _Racer(openai_agents.Model):
    """The model of the racer in the OpenAI Agents SDK."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **named: Any
    ) -> openai_agents.ModelResponse:
        asked, *rest = [{"content": input}] if isinstance(input, str) else input
        output: list[Any] = [text_item("done")] if rest else [call_item(asked["content"], "a", {})]
        return openai_agents.ModelResponse(output=output, usage=openai_agents.Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


class Kind:
    """What an answer races. ends_as: the status of a run that the rival has ended."""

    name: str
    ends_as: str

    async def begun(self, lane: Lane) -> tuple[Run, float | None] | None:
        """A run that waits for the answer; and when its rival is due, by the clock, or None for one that is sent.

        None when the run's time was over before it came to wait, as on a busy machine.
        """
        run = await lane.app.client.start("racer", "pay")
        await lane.app.requests(run, 1)
        return run, None

    async def rival(self, lane: Lane, run: Run, by_update: bool) -> Told:
        """Send the rival."""
        raise NotImplementedError

    async def answer(self, lane: Lane, run: Run, by_update: bool) -> Told:
        """Send the answer."""
        return await _decide(lane, run, "approve", "ann", by_update)

    def struck(self, journal: Journal) -> float | None:
        """When the deadline struck, by the history."""
        return None

    def outcome(self, facts: Facts) -> str:
        """In a word or two, what happened."""
        if facts.requests == ["approved"]:
            return f"taken, {facts.status}" + ("" if facts.bodies else " before the call began")
        return f"missed, {facts.status}"

    def wrong(self, facts: Facts) -> list[str]:
        """What happened that must not."""
        found = _told_wrong(facts, taken=facts.requests == ["approved"])
        own = [outcome for outcome, _ in facts.settled]
        if facts.requests == ["approved"]:
            began = "completed" in facts.calls
            found += _unless(own == ["approved"], f"the run itself says {own}")
            found += _unless(facts.status in ("completed", self.ends_as), f"taken, but {facts.status}")
            found += _unless(
                facts.bodies == began or facts.status != "completed", "completed, but the body did not run"
            )
            found += _unless(facts.bodies <= 1 and len(facts.calls) <= 1, f"{facts.bodies} bodies, {facts.calls}")
            found += _unless(facts.bodies == 1 or not began, "the call completed, but its body did not run")
        else:
            last = [] if self.ends_as == "timed_out" else ["withdrawn"]
            found += _unless(facts.requests == ["withdrawn"], f"the journal says {facts.requests}")
            found += _unless(own == last, f"the run itself says {own}")
            found += _unless(facts.status == self.ends_as, f"missed, but {facts.status}")
            found += _unless(not facts.bodies and not facts.calls, f"missed, but {facts.bodies} bodies, {facts.calls}")
        return found


class Cancelled(Kind):
    """The run is cancelled."""

    name, ends_as = "approval x cancel", "cancelled"

    async def rival(self, lane: Lane, run: Run, by_update: bool) -> Told:
        """See `Kind`."""
        return await _sent(lane.handle(run).cancel())


class TimedOut(Kind):
    """The run's own time limit, which the server keeps."""

    name, ends_as = "approval x time limit", "timed_out"
    limit = timedelta(seconds=3)

    async def begun(self, lane: Lane) -> tuple[Run, float | None] | None:
        """See `Kind`."""
        client = lane.app.client
        options = RunOptions(search_attributes=tuple(names.SEARCH_ATTRIBUTES), places_by_answer=True)
        handle = await client.temporal.start_workflow(
            names.AGENT_WORKFLOW,
            RunInput(agent="racer", prompt="pay", options=options),
            id=f"racer-{uuid.uuid4().hex[:12]}",
            task_queue=client.task_queue,
            execution_timeout=self.limit,
        )
        run = client.attach(handle.id)
        try:
            async with asyncio.timeout(self.limit.total_seconds()):
                await lane.app.requests(run, 1)
        except TimeoutError:
            return None
        return run, ((await handle.describe()).start_time + self.limit).timestamp()

    def struck(self, journal: Journal) -> float | None:
        """See `Kind`."""
        timed_out = journal.status == "timed_out" and journal.ended_at
        return journal.ended_at.timestamp() if timed_out and journal.ended_at else None


class ItsLimit(Kind):
    """The request's own time limit, which denies the call."""

    name, ends_as = "approval x its limit", "completed"
    seconds = 1.5

    async def begun(self, lane: Lane) -> tuple[Run, float | None] | None:
        """See `Kind`."""
        run = await lane.app.client.start("racer", "hurry")
        state = await lane.app.state(run, lambda state: bool(state.requests or state.settled))
        at = state.requests[0].expires_at if state.requests else None
        return (run, at.timestamp()) if at else None

    def struck(self, journal: Journal) -> float | None:
        """See `Kind`."""
        # Not when the timer fired, which is later: what was sent after the limit is refused from then on.
        over = [one.expires_at for one in journal.requests if one.outcome == "timed_out" and one.expires_at]
        return over[0].timestamp() if over else None

    def outcome(self, facts: Facts) -> str:
        """See `Kind`."""
        return "taken" if facts.bodies else "missed"

    def wrong(self, facts: Facts) -> list[str]:
        """See `Kind`."""
        taken = facts.settled == (("approved", "ann"),)
        found = _told_wrong(facts, taken=taken)
        found += _unless(taken or facts.settled == (("timed_out", ""),), f"the run itself says {facts.settled}")
        found += _unless(facts.requests == [one for one, _ in facts.settled], f"the journal says {facts.requests}")
        found += _unless(facts.bodies == taken, f"taken: {taken}, and {facts.bodies} bodies")
        return found + _unless(facts.status == "completed", f"the run has {facts.status}")


class StuckEnds(Kind):
    """The time is over that a stuck run waits to be retried."""

    name, ends_as = "retry x stuck run's end", "failed"
    seconds = 1.5

    async def begun(self, lane: Lane) -> tuple[Run, float | None] | None:
        """See `Kind`."""
        run = await lane.app.client.start("racer", "send", stuck_seconds=self.seconds)
        state = await lane.app.state(run, lambda state: bool(state.stuck) or state.status == self.ends_as)
        return (run, state.stuck[0].ends_at.timestamp()) if state.stuck else None

    async def answer(self, lane: Lane, run: Run, by_update: bool) -> Told:
        """See `Kind`."""
        if by_update:
            return await _told(run.retry(by="ann"))
        return await _sent(lane.handle(run).signal(names.RETRY_RUN, Retry(requested_by="ann", requested_at=_now())))

    def struck(self, journal: Journal) -> float | None:
        """See `Kind`."""
        ended = journal.status == "failed" and journal.stuck and journal.stuck[0].until
        return ended.timestamp() if ended else None

    def outcome(self, facts: Facts) -> str:
        """See `Kind`."""
        return f"{'taken' if facts.status == 'completed' else 'missed'}, {facts.status}"

    def wrong(self, facts: Facts) -> list[str]:
        """See `Kind`."""
        taken = facts.status == "completed"
        found = _told_wrong(facts, taken=taken)
        found += _unless(facts.bodies == (2 if taken else 1), f"{facts.status}, and {facts.bodies} bodies")
        found += _unless(facts.calls == ["failed", "completed"][: facts.bodies], f"{facts.status}, and {facts.calls}")
        found += _unless(taken or facts.error_type == "ConnectionError", f"{facts.status} by {facts.error_type}")
        said = [stuck.outcome for stuck in facts.journal.stuck]
        return found + _unless(
            said == ["retried" if taken else "given_up"], f"{facts.status}, and the journal says {said}"
        )


class Contrary(Kind):
    """Another person says the contrary."""

    name, ends_as = "approval x rejection", "completed"

    async def rival(self, lane: Lane, run: Run, by_update: bool) -> Told:
        """See `Kind`."""
        return await _decide(lane, run, "reject", "bob", by_update)

    def wrong(self, facts: Facts) -> list[str]:
        """See `Kind`."""
        assert facts.rival
        approved = facts.requests == ["approved"]
        found = _told_wrong(facts, taken=approved)
        found += _unless(facts.settled in ((("approved", "ann"),), (("rejected", "bob"),)), f"settled {facts.settled}")
        found += _unless(facts.requests == [outcome for outcome, _ in facts.settled], f"journal: {facts.requests}")
        found += _unless(
            facts.bodies == approved and facts.status == "completed", f"{facts.bodies} bodies, {facts.status}"
        )
        won, lost, winner = (
            (facts.told, facts.rival, "approved by ann") if approved else (facts.rival, facts.told, "rejected by bob")
        )
        found += _unless(won.said in ("accepted", "sent"), f"the winner was told {won}")
        found += _unless(lost.said in ("refused", "sent"), f"the loser was told {lost}")
        named = lost.said == "sent" or f"already {winner}" in lost.text
        return found + _unless(named, f"the loser was not told who won: {lost}")


KINDS: Sequence[Kind] = (Cancelled(), TimedOut(), ItsLimit(), StuckEnds(), Contrary())


@dataclass
class Row:
    """The contests of one kind. wide: in which the two were more than 5 ms apart, so that they do not count."""

    kind: str
    runs: int = 0
    wide: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    gaps: list[float] = field(default_factory=list)
    repeated_tasks: int = 0


@dataclass
class RaceReport:
    """How the races went. violations: what happened that must not; empty is good."""

    seed: int
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Races that count: those whose two were sent within 5 ms."""
        return sum(row.runs for row in self.rows)

    def table(self) -> str:
        """The figures as Markdown: the outcomes of each kind, and how far apart the two were."""
        lines = [
            "| race | runs | within 5 ms by, median ms (95 %) | outcomes | tasks repeated |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in self.rows:
            apart = sorted(abs(gap) * 1_000 for gap in row.gaps)
            spread = f"{apart[len(apart) // 2]:.1f} ({apart[len(apart) * 95 // 100]:.1f})" if apart else ""
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in row.outcomes.most_common())
            lines.append(f"| {row.kind} | {row.runs} | {spread} | {outcomes} | {row.repeated_tasks} |")
        return "\n".join(lines)


async def race(
    runs: int,
    seed: int,
    progress: Callable[[str], None],
    *,
    kinds: Sequence[Kind] = KINDS,
    adapters: Sequence[Adapter] = ADAPTERS,
    server: EmbeddedServer | None = None,
) -> RaceReport:
    """Let answers race their rivals, in `runs` runs over all kinds; half by update, half by signal.

    They are shared out over the adapters, with the cache on and off.
    seed: of who comes first, and by how much. progress: told what is done. server: one of its own when not given.
    """
    report, begun = RaceReport(seed), time.monotonic()
    async with AsyncExitStack() as stack:
        if server is None:
            server = await EmbeddedServer.start(port=0, ui=False)
            stack.push_async_callback(server.stop)
        lanes = [
            await Lane().entered(stack, server, adapter, cached_runs)
            for cached_runs in (1_000, 0)
            for adapter in adapters
        ]
        races = [_Races(kind, lanes, Random(f"{seed} {kind.name}"), report.violations, progress) for kind in kinds]
        counts = [runs // len(kinds) + (place < runs % len(kinds)) for place in range(len(kinds))]
        report.rows += await asyncio.gather(*(one.run(count) for one, count in zip(races, counts, strict=True)))
    report.seconds = time.monotonic() - begun
    return report


class _Races:
    """The contests of one kind. late: by how much deadlines were seen to strike after they were due, seconds."""

    def __init__(
        self,
        kind: Kind,
        lanes: Sequence[Lane],
        random: Random,
        violations: list[str],
        progress: Callable[[str], None],
    ) -> None:
        self._kind = kind
        self._lanes = lanes
        self._random = random
        self._violations = violations
        self._progress = progress
        self._late: list[float] = []
        self._row = Row(kind.name)
        self._begun = 0
        self._under_way = 0

    async def run(self, count: int) -> Row:
        async def racer() -> None:
            while self._row.runs + self._under_way < count and self._begun < 5 * count:
                self._begun += 1
                self._under_way += 1
                await self._contest(self._begun)
                self._under_way -= 1
                if self._row.runs and self._row.runs % 50 == 0:
                    self._progress(f"{self._kind.name}: {self._row.runs} of {count}")

        await asyncio.gather(*(racer() for _ in range(min(count, AT_ONCE))))
        return self._row

    async def _contest(self, number: int) -> None:
        lane, by_update = self._lanes[number % len(self._lanes)], number // len(self._lanes) % 2 == 0
        kind, gap = self._kind, self._random.uniform(-WITHIN_SECONDS, WITHIN_SECONDS) * 0.9
        rival_by_update = self._random.random() < 0.5
        begun = await kind.begun(lane)
        if begun is None:
            self._row.wide += 1
            return
        run, due = begun
        if due is None:
            told, rival = await asyncio.gather(
                _after(max(0, gap), lambda: kind.answer(lane, run, by_update)),
                _after(max(0, -gap), lambda: kind.rival(lane, run, rival_by_update)),
            )
        else:
            strikes = due + self._lateness
            await asyncio.sleep(max(0, strikes + gap - time.time()))
            told, rival = await kind.answer(lane, run, by_update), None
        status, error_type = await _end(run)
        history = await lane.handle(run).fetch_history()
        journal = await read_journal(history.events, lane.app.client.temporal.data_converter)
        struck = kind.struck(journal)
        if due is not None and struck is not None:
            self._late.append(struck - due)
        facts = Facts(
            by_update=by_update,
            told=told,
            rival=rival,
            struck=None if due is None else struck or strikes,
            status=status,
            error_type=error_type,
            settled=tuple((one.outcome, one.by) for one in (await run.state()).settled),
            journal=journal,
            bodies=lane.bodies[run.id],
            failed_tasks=tuple(_failed_tasks(history)),
        )
        self._count(run, facts)

    @property
    def _lateness(self) -> float:
        latest = sorted(self._late[-15:])
        return latest[len(latest) // 2] if latest else 0.0

    def _count(self, run: Run, facts: Facts) -> None:
        row, repeated = self._row, [cause for cause in facts.failed_tasks if cause in REPEATED]
        wrong = self._kind.wrong(facts)
        wrong += [f"a workflow task failed: {cause}" for cause in facts.failed_tasks if cause not in REPEATED]
        self._violations += [f"{self._kind.name}, run {run.id}: {one}" for one in wrong]
        row.repeated_tasks += len(repeated)
        if abs(facts.gap) > WITHIN_SECONDS:
            row.wide += 1
            return
        row.runs += 1
        row.gaps.append(facts.gap)
        row.outcomes[self._kind.outcome(facts)] += 1


async def _after(seconds: float, send: Callable[[], Awaitable[Told]]) -> Told:
    await asyncio.sleep(seconds)
    return await send()


async def _decide(lane: Lane, run: Run, verdict: Literal["approve", "reject"], by: str, by_update: bool) -> Told:
    if by_update:
        return await _told(run.decide("1", verdict, by=by))
    decision = Decision(request_id="1", verdict=verdict, decided_by=by, decided_at=_now())
    return await _sent(lane.handle(run).signal(names.DECIDE_APPROVAL, decision))


async def _told(update: Awaitable[Any]) -> Told:
    at = time.time()
    try:
        await update
    except RefusedError as error:
        return Told("refused", at, str(error))
    except Exception as error:  # Whatever else a sender is told is told to nobody's use.
        return Told("broke", at, repr(error))
    return Told("accepted", at)


async def _sent(call: Awaitable[None]) -> Told:
    at = time.time()
    try:
        await call
    except RPCError as error:
        return Told("refused" if error.status is RPCStatusCode.NOT_FOUND else "broke", at, error.message)
    return Told("sent", at)


async def _end(run: Run) -> tuple[str, str]:
    try:
        await run.result()
    except RunFailedError as error:
        return error.status, error.error_type
    return "completed", ""


def _failed_tasks(history: WorkflowHistory) -> list[str]:
    return [
        WorkflowTaskFailedCause.Name(event.workflow_task_failed_event_attributes.cause)
        for event in history.events
        if event.HasField("workflow_task_failed_event_attributes")
    ]


def _told_wrong(facts: Facts, *, taken: bool) -> list[str]:
    found = [f"a sender was told {told.text}" for told in (facts.told, facts.rival) if told and told.said == "broke"]
    if facts.by_update:
        return found + _unless(facts.told.said == ("accepted" if taken else "refused"), f"taken: {taken}, {facts.told}")
    return found + _unless(not taken or facts.told.said == "sent", f"taken: {taken}, {facts.told}")


def _unless(holds: bool, wrong: str) -> list[str]:
    return [] if holds else [wrong]


def _now() -> datetime:
    return datetime.now(UTC)
