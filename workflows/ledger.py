"""The ledger of a run: counts what its model calls use, and lets each begin only as far as the budget goes.

The root of a tree of runs keeps the books of all of them. A run that a tool has started claims each of its model calls
from the root, by a signal, and begins it when the root grants it, by another. Each says all there is to say, so that
one may overtake, repeat or replace another.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from interlock.contracts import names
    from interlock.contracts.errors import RefusedError
    from interlock.contracts.failures import problems
    from interlock.contracts.payloads import (
        Account,
        BudgetState,
        Carried,
        Claim,
        Extension,
        Grant,
        Json,
        Limits,
        Message,
        RunInput,
        StepCalls,
        Usage,
    )
    from interlock.contracts.ports import CallsInside, GatedCall, ModelCall, Ruling
    from interlock.workflows.books import OWN, UNPRICED, Books, beyond, larger, words

_EXTENDS = (*Limits.model_fields, UNPRICED)


class Ledger:
    """Adds up what a run, its judges and the runs below it use, and holds model calls while the budget is used up.

    changed: called when what outsiders see has changed. ask: the gate's, for the question whether to extend the budget.
    """

    def __init__(
        self, run: RunInput, changed: Callable[[], None], ask: Callable[[GatedCall], Awaitable[Ruling]]
    ) -> None:
        carried = run.carried or Carried()
        self._changed, self._ask_gate = changed, ask
        self._keeper = run.account
        self._path = (*(run.parent.agent_path if run.parent else ()), run.agent)
        self._counted = self._called = carried.usage
        # What ended before this execution is settled: runs below claim anew, and must not be held against it.
        self._elsewhere = sum((one.usage or Usage() for one in carried.sub_runs), carried.spent_elsewhere)
        self._books = Books(run.budget)
        self._numbers = count(carried.claims + 1)  # Another than any before: each call claims at least once.
        self._calls: list[int] = []
        self._step_numbers = count(1)
        self._steps: dict[str, _Inside] = {}
        self._asking = False
        self._claims = count(carried.claims + 1)
        self._claimed = carried.claims
        self._said: tuple[object, ...] = ()
        self._extensions: list[Extension] = []
        self._ended_by = ""
        self._granted: Grant | None = None
        self._post: dict[str, _Post] = {}
        self._told: dict[str, tuple[object, ...]] = {}
        self._answers: dict[str, Claim] = {}
        self._grants = count(1)

    @property
    def account(self) -> Account | None:
        """The keeper of the budget of the runs that this one's tools start; None without a budget."""
        if self._keeper is not None or self._books.budget is None:
            return self._keeper
        info = workflow.info()
        return Account(workflow_id=info.workflow_id, run_id=info.first_execution_run_id)

    @property
    def own(self) -> Usage:
        """What the run's own agents have used, without its judges."""
        return larger(self._counted, self._called)

    @property
    def total(self) -> Usage:
        """What the run, its judges and the runs below it have used."""
        return self._here + self._books.below

    @property
    def _here(self) -> Usage:
        """What the run's own agents, its judges and the code of its steps have used."""
        return sum((step.spent for step in self._steps.values()), self.own + self._elsewhere)

    @property
    def state(self) -> BudgetState | None:
        """How the budget stands; as last heard of in a run that does not keep it itself."""
        if self._keeper is not None:
            return self._granted.state if self._granted else None
        return self._books.state()

    @property
    def waits(self) -> bool:
        """Whether a call waits for the keeper of the budget."""
        return self._keeper is not None and any(not self._may_begin(number) for number in self._calls)

    @property
    def is_busy(self) -> bool:
        """Whether calls are under way or wait."""
        return bool(self._calls)

    def carried(self, latest: Usage, taken_over: Usage) -> dict[str, Any]:
        """What another execution of the run goes on with, as fields of `Carried`. latest: the part of what the runs
        below have used that is carried with them. taken_over: what runs below of another run, whose results this one
        has taken over, had used."""
        return {
            "usage": self.own,
            "spent_elsewhere": beyond(self._elsewhere + self._books.below, latest) + taken_over,
            "claims": self._claimed,
        }

    @property
    def budget(self) -> object:
        """The budget with its extensions, for another execution of the run."""
        return self._books.budget

    def count(self, usage: Usage) -> None:
        """Take the usage of the run's own agents so far, as their framework counts it."""
        self._counted = usage
        self._book()

    def judged(self, usage: Usage) -> None:
        """Take what judges have used."""
        self._elsewhere += usage
        self._book()

    def reported(self, usage: Usage) -> None:
        """Take what a run below has used in all."""
        self._books.reported += usage
        self._book()

    @asynccontextmanager
    async def model_call(self, agent_path: tuple[str, ...]) -> AsyncIterator[ModelCall]:
        """See `Gate`."""
        number = next(self._numbers) if self.account else 0
        if number:
            await self._begin(number, agent_path)
        try:
            yield _Call(self)
        finally:
            if number:
                self._calls.remove(number)
                self._book()

    @contextmanager
    def step(self) -> Iterator[CallsInside]:
        """See `Gate`."""
        number = str(next(self._step_numbers))
        step = self._steps[number] = _Inside(number if self.account else "")
        try:
            yield step
        finally:
            del self._steps[number]
            for call in step.calls:
                self._calls.remove(call)
            self._elsewhere += step.spent
            self._book()

    def check_inside(self, asked: StepCalls) -> None:
        """Raise RefusedError when no step is at work that may ask for a model call by this key."""
        step = self._steps.get(asked.step)
        if step is None or not step.key:
            raise RefusedError("No step of that key is at work in this run: only the code of one asks for model calls.")

    async def begin_inside(self, asked: StepCalls) -> bool:
        """Let the code of a step make a model call; False when there is no room for it now.

        Raises ApplicationError (`BudgetUsedUpError`) when there will be none.
        """
        step = self._steps.get(asked.step)
        if step is None or not step.key:
            return False  # Its attempt was given up.
        step.says(asked.used)
        while len(step.calls) >= asked.calls:
            self._calls.remove(step.calls.pop(0))
        number = next(self._numbers)
        step.calls.append(number)
        self._calls.append(number)
        self._book()
        await workflow.wait_condition(lambda: self._goes_on(number) or bool(self._lacks) or number not in self._calls)
        if number not in self._calls:
            return False
        if self._may_begin(number):
            return True
        step.calls.remove(number)
        self._calls.remove(number)
        self._book()
        if self._ended:
            raise _used_up(self._ended, self.state)
        return False

    def used(self, usage: Usage) -> None:
        """Take what one model call of the run's own agents has used."""
        self._called += usage

    # Between the runs of a tree.

    def claim(self, claim: Claim) -> None:
        """A run below claims calls, and says what it has used."""
        if self._keeper is not None or self._books.budget is None:
            return  # A stranger's.
        before = self._answers.get(claim.run_id)
        if not claim.workflow_id.startswith(f"{workflow.info().workflow_id}/"):
            return  # A stranger's.
        if before is not None and before.sequence >= claim.sequence:
            return
        self._answers[claim.run_id] = claim
        for extension in claim.extensions:
            self._books.extend(extension)
        if claim.ended_by:
            self._books.end(claim.ended_by)
        self._books.claim(claim.run_id, claim.used, claim.calls)
        self._book()

    def grant(self, grant: Grant) -> None:
        """The keeper of the budget says which calls may begin."""
        if self._keeper is None or grant.run_id != workflow.info().first_execution_run_id:
            return
        if self._granted is None or grant.sequence > self._granted.sequence:
            self._granted = grant
            self._ended_by = self._ended_by or grant.state.ended_by
            self._changed()

    async def close(self) -> None:
        """Let what is to be said to other runs be said: the run is about to end."""
        for post in self._post.values():
            await post.done()

    def _book(self) -> None:
        """Bring the books up to date, here or where they are kept."""
        if self._keeper is None:
            self._books.claim(OWN, self._here, self._calls)
            if self._books.budget is not None:
                self._answer()
        else:
            # Tool calls are in no budget, and each of them would be another claim.
            used = self._here.model_copy(update={"tool_calls": 0})
            said = (used, tuple(self._calls), tuple(self._extensions), self._ended_by)
            if said == self._said:
                return
            self._said, self._claimed = said, next(self._claims)
            claim = Claim(
                workflow_id=workflow.info().workflow_id,
                run_id=workflow.info().first_execution_run_id,
                sequence=self._claimed,
                used=used,
                calls=tuple(self._calls),
                extensions=tuple(self._extensions),
                ended_by=self._ended_by,
            )
            self._send(self._keeper.workflow_id, names.CLAIM_BUDGET, claim)

    def _answer(self) -> None:
        """Tell the runs below what is new to them."""
        state = self._books.state()
        assert state
        for run_id, claim in self._answers.items():
            calls = tuple(sorted(self._books.begun(run_id)))
            waits = self._books.waits(run_id)
            told = (calls, *((claim.sequence, state.lacks, state.ended_by) if waits else ()))
            if claim.calls and self._told.get(run_id) != told:
                self._told[run_id] = told
                grant = Grant(
                    run_id=run_id, sequence=next(self._grants), answers=claim.sequence, calls=calls, state=state
                )
                self._send(claim.workflow_id, names.GRANT_BUDGET, grant)
        self._changed()

    def _send(self, workflow_id: str, signal: str, message: Message) -> None:
        if workflow_id not in self._post:
            self._post[workflow_id] = _Post(workflow_id, signal, self._lost)
        self._post[workflow_id].send(message)

    def _lost(self) -> None:
        if self._keeper is not None:
            self._ended_by = self._ended_by or "the run that keeps it has ended"

    # A call that waits.

    async def _begin(self, number: int, agent_path: tuple[str, ...]) -> None:
        self._calls.append(number)
        self._book()
        try:
            while not self._may_begin(number):
                if why := self._ended:
                    raise _used_up(why, self.state)
                if self._lacks and not self._asking:
                    await self._ask(number, agent_path)
                else:
                    await workflow.wait_condition(lambda: self._goes_on(number) or bool(self._lacks))
        except BaseException:
            self._calls.remove(number)
            self._book()
            raise

    def _may_begin(self, number: int) -> bool:
        if self._keeper is None:
            return number in self._books.begun(OWN)
        return self._granted is not None and number in self._granted.calls

    @property
    def _ended(self) -> str:
        return self._ended_by or self._books.ended_by

    @property
    def _lacks(self) -> tuple[str, ...]:
        """What keeps the calls that wait from beginning. Unknown, and so nothing, while the keeper has not answered."""
        if self._keeper is None:
            return self._books.lacks
        if self._granted is None or self._granted.answers != self._claimed:
            return ()
        return self._granted.state.lacks

    def _goes_on(self, number: int) -> bool:
        return self._may_begin(number) or bool(self._ended)

    async def _ask(self, number: int, agent_path: tuple[str, ...]) -> None:
        """Ask a person, once for all calls of this run that wait, whether to extend the budget."""
        state = self.state
        assert state
        ends = state.limits.unpriced if state.lacks == (UNPRICED,) else state.limits.when_used_up
        if ends == "end":
            self._end(words(state))
            return
        self._asking = True
        seconds = state.limits.ask_seconds
        asked = asyncio.ensure_future(self._ask_gate(self._question(state, agent_path)))
        try:
            await workflow.wait_condition(
                lambda: asked.done() or self._goes_on(number),
                timeout=timedelta(seconds=seconds) if seconds else None,
                timeout_summary="budget: until the run ends",
            )
        except TimeoutError:
            # An answer that came with the end of the time has changed the books already.
            if self._lacks and not self._goes_on(number):
                self._end(f"{words(state)}, and nobody has extended it in {seconds:g} s")
        finally:
            self._asking = False
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        if not asked.cancelled() and (error := asked.exception()) is not None:
            raise error

    def _question(self, state: BudgetState, agent_path: tuple[str, ...]) -> GatedCall:
        return GatedCall(
            kind="budget",
            agent_path=agent_path,
            toolset="",
            tool="budget",
            description="Approve to extend the budget of the run and all runs below it; reject to end it.",
            call_id="",
            arguments=state.proposal,
            metadata=None,
            check=lambda arguments: _checked(dict(arguments), state),
            question=f"The budget is used up: {words(state)}. Extend it?",
            ruled=self._ruled,
        )

    def _ruled(self, request_id: str, ruling: Ruling, by: str) -> None:
        """Take a person's answer at once, so that it counts before anything else does."""
        if ruling.outcome != "approved":
            reason = f": {ruling.reason}" if ruling.reason else ""
            self._end(f"{by or 'somebody'} has refused to extend it{reason}")
            return
        run_id = workflow.info().first_execution_run_id
        extension = Extension(run_id=run_id, request_id=request_id, **ruling.arguments)
        self._extensions.append(extension)
        self._books.extend(extension)
        self._book()

    def _end(self, why: str) -> None:
        self._ended_by = self._ended_by or why
        self._books.end(why)
        self._book()


class _Call:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def used(self, usage: Usage) -> None:
        """See `ModelCall`."""
        self._ledger.used(usage)


class _Inside:
    """The model calls that the code of a step makes. calls: their numbers. spent: by those that have ended."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.calls: list[int] = []
        self._said = self._unheard = Usage()

    @property
    def spent(self) -> Usage:
        return self._unheard + self._said

    def says(self, used: Usage) -> None:
        """Take what an attempt says. One that says less than was said before has not heard of all: the worker of an
        attempt before it was lost, and its last words to the next one with it."""
        if used.requests < self._said.requests:
            self._unheard += beyond(self._said, used)
        self._said = used

    def used(self, usage: Usage) -> None:
        """See `CallsInside`."""
        self._said = larger(self._said, usage)


class _Post:
    """Sends signals to one run, one at a time; of several that wait only the last is sent: it says it all.

    lost: called when the run is not there any more.
    """

    def __init__(self, workflow_id: str, signal: str, lost: Callable[[], None]) -> None:
        self._handle = workflow.get_external_workflow_handle(workflow_id)
        self._signal = signal
        self._lost = lost
        self._next: Message | None = None
        self._task: asyncio.Task[None] | None = None

    def send(self, message: Message) -> None:
        """Send it, in place of one that still waits to be sent."""
        self._next = message
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver())

    async def done(self) -> None:
        """Wait until all is sent."""
        if self._task is not None:
            await self._task

    async def _deliver(self) -> None:
        while self._next is not None:
            message, self._next = self._next, None
            try:
                await self._handle.signal(self._signal, message)
            except FailureError:
                workflow.logger.info("run.gone", extra={"signal": self._signal})
                self._lost()


def _checked(given: dict[str, Json], state: BudgetState) -> dict[str, Json]:
    """What a person extends a budget by, or ValueError saying what is wrong with it."""
    limited = [*state.limits.given(), *([UNPRICED] if UNPRICED in state.lacks else [])]
    if other := sorted(set(given) - set(limited)):
        raise ValueError(f"the budget has no limit {', '.join(other)}; it has {', '.join(limited)}")
    try:
        extension = Extension(run_id="", request_id="", **given)
    except ValidationError as error:
        raise ValueError(problems(error)) from error
    return extension.model_dump(mode="json", include=set(_EXTENDS), exclude_none=True, exclude_defaults=True)


def _used_up(why: str, state: BudgetState | None) -> ApplicationError:
    return ApplicationError(
        f"The budget of the run is used up: {why}. Nothing that completed is lost: "
        "`interlock runs fork` goes on from any of its steps, with another budget.",
        type=names.BUDGET_USED_UP,
        non_retryable=True,
    )
