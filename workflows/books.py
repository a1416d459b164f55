"""The arithmetic of a budget: what a tree of runs has used, what it may use, and which model calls may begin."""

from collections.abc import Iterable
from decimal import Decimal

from interlock.contracts.budgets import amount, share
from interlock.contracts.payloads import Budget, BudgetState, Extension, Json, Usage, extended

UNPRICED = "unpriced"
"""Among what a budget lacks: calls were made whose price is not known, so that nobody knows what is left."""

OWN = ""
"""The account of the run that keeps the books."""


def larger(one: Usage, other: Usage) -> Usage:
    """The larger of two counts of the same calls, field by field."""
    return Usage(**{name: max(getattr(one, name), getattr(other, name)) for name in Usage.model_fields})


def beyond(whole: Usage, part: Usage) -> Usage:
    """What is in the whole and not in the part; nothing is less than zero."""
    return Usage(**{name: max(getattr(whole, name) - getattr(part, name), 0) for name in Usage.model_fields})


class Books:
    """What a tree of runs has used, by account, and its calls that wait or have begun.

    budget: null is without limits. own: what the run itself has used. reported: what the runs of its tools have said at
    their ends; those that claim say more, and sooner, and of both counts the larger holds.
    """

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self.own = Usage()
        self.reported = Usage()
        self.ended_by = ""
        self._first = budget.given() if budget else {}
        self._claimed: dict[str, Usage] = {}
        self._waiting: list[tuple[str, int]] = []
        self._begun: dict[str, set[int]] = {}
        self._extended: set[tuple[str, str]] = set()

    @property
    def below(self) -> Usage:
        """What the runs of the run's tools have used."""
        return larger(self.reported, sum(self._claimed.values(), Usage()))

    @property
    def spent(self) -> Usage:
        """What the whole tree has used."""
        return self.own + self.below

    @property
    def under_way(self) -> int:
        """Calls that have begun and not ended."""
        return sum(map(len, self._begun.values()))

    @property
    def lacks(self) -> tuple[str, ...]:
        """The limits that another call cannot begin for."""
        if self.budget is None:
            return ()
        spent, begun = self.spent, self.under_way
        used = {name: amount(spent, name) + (begun if name == "requests" else 0) for name in self._first}
        found = [name for name, limit in self.budget.given().items() if used[name] >= limit]
        if self.budget.cost_usd is not None and self.budget.unpriced != "ignore" and spent.unpriced:
            found.append(UNPRICED)
        return tuple(found)

    def state(self) -> BudgetState | None:
        """How the budget stands; None without one."""
        if self.budget is None:
            return None
        return BudgetState(
            limits=self.budget,
            spent=self.spent,
            under_way=self.under_way,
            waiting=len(self._waiting),
            lacks=self.lacks,
            proposal=self._proposal(self.lacks),
            ended_by=self.ended_by,
        )

    def begun(self, account: str) -> set[int]:
        """The calls of an account that have begun."""
        return self._begun.get(account, set())

    def waits(self, account: str) -> bool:
        """Whether a call of an account waits."""
        return any(of == account for of, _ in self._waiting)

    def claim(self, account: str, used: Usage, calls: Iterable[int]) -> None:
        """Take what an account has used, and all its calls that want to begin or have; others of it have ended."""
        if account != OWN:
            self._claimed[account] = larger(self._claimed.get(account, Usage()), used)
        else:
            self.own = used
        now = set(calls)
        self._begun[account] = self.begun(account) & now
        self._waiting = [one for one in self._waiting if one[0] != account or one[1] in now]
        known = {number for of, number in self._waiting if of == account} | self._begun[account]
        self._waiting += [(account, number) for number in sorted(now - known)]
        self.admit()

    def admit(self) -> None:
        """Let the calls that wait begin, the first first, as far as the budget goes."""
        while self._waiting and not self.ended_by and not self.lacks:
            account, number = self._waiting.pop(0)
            self._begun.setdefault(account, set()).add(number)

    def extend(self, extension: Extension) -> None:
        """Add to the limits, once for each request that was decided."""
        decided = (extension.run_id, extension.request_id)
        if self.budget is None or decided in self._extended:
            return
        self._extended.add(decided)
        self.budget = extended(self.budget, extension)
        self.admit()

    def end(self, why: str) -> None:
        """Let no call begin any more."""
        self.ended_by = self.ended_by or why

    def _proposal(self, lacks: Iterable[str]) -> dict[str, Json]:
        """Of each limit that is reached as much as there was first, beyond what went over it."""
        limits, spent, found = self.budget.given() if self.budget else {}, self.spent, dict[str, Json]()
        for name in lacks:
            if name == UNPRICED:
                found[name] = True
                continue
            more = self._first[name] + max(amount(spent, name) - limits[name], 0)
            found[name] = str(more) if isinstance(more, Decimal) else more
        return found


def words(state: BudgetState) -> str:
    """What is used up, for a person: `12 of 12 requests and 1.52 of 1.50 USD are used`."""
    limits = state.limits.given()
    begun = {"requests": state.under_way}
    used = [
        share(name, amount(state.spent, name) + begun.get(name, 0), limits[name]).text
        for name in state.lacks
        if name in limits
    ]
    texts = [f"{' and '.join(used)} are used"] if used else []
    if UNPRICED in state.lacks:
        texts.append(f"of {state.spent.unpriced:,} model calls nobody knows the price")
    return "; ".join(texts)
