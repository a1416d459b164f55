"""The arithmetic of a budget: exact to the call for requests, and nothing twice whatever is said how often."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from interlock.contracts.budgets import bar, budget_of, read_budget, shares
from interlock.contracts.errors import MisconfiguredError
from interlock.contracts.payloads import Budget, Extension, Usage, extended
from interlock.workflows.books import OWN, UNPRICED, Books, beyond, larger

ACCOUNTS = [OWN, "a", "b", "c"]
counts = st.integers(0, 10**6)
usages = st.builds(
    Usage,
    requests=counts,
    tool_calls=counts,
    input_tokens=counts,
    output_tokens=counts,
    cost_usd=st.decimals(0, 10**4, places=6),
    unpriced=counts,
)
amounts = st.fixed_dictionaries(
    {},
    optional={
        "requests": st.integers(1, 10**12),
        "tokens": st.integers(1, 10**12),
        "input_tokens": st.integers(1, 10**12),
        "output_tokens": st.integers(1, 10**12),
        "cost_usd": st.decimals("0.000001", 10**9, places=6),
    },
).filter(bool)


class Tree(RuleBasedStateMachine):
    """Agents of a tree that want calls, begin them and end them; claims arrive repeated and late."""

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.tokens = 5, 300
        self.books = Books(Budget(requests=self.limit, tokens=self.tokens))
        self.open: dict[str, list[int]] = {account: [] for account in ACCOUNTS}
        self.used = {account: Usage() for account in ACCOUNTS}
        self.begun: set[tuple[str, int]] = set()
        self.numbers = 0
        self.extensions: list[Extension] = []
        self.tokens_when_begun: dict[tuple[str, int], int] = {}

    def say(self, account: str) -> None:
        self.books.claim(account, self.used[account], self.open[account])

    @rule(account=st.sampled_from(ACCOUNTS))
    def want(self, account: str) -> None:
        self.numbers += 1
        self.open[account].append(self.numbers)
        self.say(account)

    @rule(account=st.sampled_from(ACCOUNTS), tokens=st.integers(0, 200), answers=st.booleans())
    def end_one(self, account: str, tokens: int, answers: bool) -> None:
        begun = [number for number in self.open[account] if number in self.books.begun(account)]
        if begun:
            self.open[account].remove(begun[0])
            if answers:
                self.used[account] += Usage(requests=1, input_tokens=tokens)
            self.say(account)

    @rule(account=st.sampled_from(ACCOUNTS))
    def give_up_waiting(self, account: str) -> None:
        waiting = [number for number in self.open[account] if number not in self.books.begun(account)]
        if waiting:
            self.open[account].remove(waiting[-1])
            self.say(account)

    @rule(account=st.sampled_from(ACCOUNTS))
    def say_it_again(self, account: str) -> None:
        before = self.books.state()
        self.say(account)
        assert self.books.state() == before

    @rule(requests=st.integers(1, 3), tokens=st.integers(1, 100))
    def extend(self, requests: int, tokens: int) -> None:
        extension = Extension(run_id="r", request_id=str(len(self.extensions)), requests=requests, tokens=tokens)
        self.extensions.append(extension)
        self.limit, self.tokens = self.limit + requests, self.tokens + tokens
        self.books.extend(extension)

    @precondition(lambda self: self.extensions)
    @rule(data=st.data())
    def extend_again(self, data: Any) -> None:
        before = self.books.state()
        self.books.extend(data.draw(st.sampled_from(self.extensions)))
        assert self.books.state() == before

    @invariant()
    def requests_never_go_over(self) -> None:
        assert sum(used.requests for used in self.used.values()) + self.books.under_way <= self.limit

    @invariant()
    def the_sum_is_that_of_the_agents(self) -> None:
        assert self.books.spent == sum(self.used.values(), Usage())

    @invariant()
    def no_call_begins_once_the_tokens_are_spent(self) -> None:
        spent = self.books.spent.input_tokens
        for account in ACCOUNTS:
            for number in self.books.begun(account):
                if (account, number) not in self.begun:
                    assert spent < self.tokens
                    self.begun.add((account, number))

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        state = self.books.state()
        assert state is not None
        assert not state.waiting or state.lacks


test_a_tree_of_agents_stays_within_its_budget = Tree.TestCase
test_a_tree_of_agents_stays_within_its_budget.settings = settings(max_examples=40, deadline=None)


@given(usages, usages)
def test_the_larger_of_two_counts_holds_both_and_no_more(one: Usage, other: Usage) -> None:
    both = larger(one, other)

    assert larger(both, one) == larger(other, both) == both
    assert both + beyond(one, both) == both
    assert one + beyond(both, one) == both
    assert beyond(both, both) == Usage()


@given(amounts, st.lists(amounts, max_size=4))
def test_extensions_add_up_in_any_order_and_stay_a_budget(first: dict[str, Any], more: list[dict[str, Any]]) -> None:
    made = [Extension(run_id="r", request_id=str(number), **one) for number, one in enumerate(more)]
    forwards = backwards = Budget(**first)
    for one in made:
        forwards = extended(forwards, one)
    for one in reversed(made):
        backwards = extended(backwards, one)

    assert forwards == backwards
    assert Budget.model_validate_json(forwards.model_dump_json()) == forwards
    assert forwards.given().keys() == first.keys()


@given(amounts, usages)
def test_what_is_proposed_is_enough_for_another_call(limits: dict[str, Any], spent: Usage) -> None:
    books = Books(Budget(**{name: min(value, 10**8) for name, value in limits.items()}))
    books.claim(OWN, spent, [1])
    state = books.state()
    assert state is not None
    if not books.begun(OWN):
        assert state.lacks
        books.extend(Extension(run_id="r", request_id="1", **state.proposal))
    assert books.begun(OWN) == {1}


@given(st.lists(st.tuples(usages, st.booleans()), max_size=5))
def test_reports_at_the_end_of_runs_and_their_claims_are_one_count(runs: list[tuple[Usage, bool]]) -> None:
    books = Books(Budget(requests=10**12))
    whole = Usage()
    for number, (used, reported) in enumerate(runs):
        books.claim(f"run {number}", used, [])
        whole += used
        if reported:
            books.reported += used

    assert books.spent == whole


def test_a_call_without_a_price_is_lacking_only_where_the_cost_is_limited() -> None:
    used = Usage(requests=1, unpriced=1)
    for budget, lacks in (
        (Budget(cost_usd=Decimal(1)), (UNPRICED,)),
        (Budget(cost_usd=Decimal(1), unpriced="ignore"), ()),
        (Budget(requests=2), ()),
    ):
        books = Books(budget)
        books.claim(OWN, used, [])
        assert books.lacks == lacks


def test_an_ended_budget_lets_nothing_begin_however_it_is_extended() -> None:
    books = Books(Budget(requests=1))
    books.claim(OWN, Usage(), [1, 2])
    books.end("ann has refused")
    books.extend(Extension(run_id="r", request_id="1", requests=10))

    assert books.begun(OWN) == {1}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "name at least one of requests, tokens, input_tokens, output_tokens, cost_usd"),
        ({"requests": 0}, "requests: Input should be greater than 0"),
        ({"requests": -1}, "requests: Input should be greater than 0"),
        ({"requests": True}, "requests: Input should be a valid integer"),
        ({"requests": 1.5}, "requests: Input should be a valid integer"),
        ({"tokens": 10**30}, "tokens: Input should be less than or equal to 1000000000000"),
        ({"cost_usd": "NaN"}, "cost_usd: Input should be a finite number"),
        ({"cost_usd": float("nan")}, "cost_usd: Input should be a finite number"),
        ({"cost": float("inf")}, "cost_usd: Input should be a finite number"),
        ({"cost": "-0.01"}, "cost_usd: Input should be greater than 0"),
        ({"cost": "1e400"}, "cost_usd: Input should be less than or equal to 1000000000"),
        ({"calls": 3}, "A budget has no calls; it has requests, tokens"),
        ({"requests": 3, "when_used_up": "panic"}, "when_used_up: Input should be 'ask' or 'end'"),
        ({"requests": 3, "unpriced": "pay"}, "unpriced: Input should be 'ask', 'end' or 'ignore'"),
        ({"requests": 3, "ask_seconds": 0}, "ask_seconds: Input should be greater than 0"),
        ("requests=3", "A budget is its limits by name"),
    ],
    ids=str,
)
def test_a_budget_that_is_none_is_one_clear_error(given: Any, problem: str) -> None:
    with pytest.raises(MisconfiguredError, match=problem):
        budget_of(given)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is no amount: a budget is written as requests=20,tokens=100000,cost=1.50"),
        ("requests", "'requests' is no amount"),
        ("requests=", "'requests=' is no amount"),
        ("requests=20,", "'' is no amount"),
        ("requests=many", "requests=many is no number"),
        ("requests=20,requests=30", "requests is there twice"),
        ("cost=1,cost_usd=2", "cost_usd is there twice"),
        ("cost=dear", "cost_usd: Input should be a valid decimal"),
        ("requests=1e3", "requests=1e3 is no number"),
        ("ask_seconds=soon,requests=1", "ask_seconds=soon is no number"),
        ("money=3", "A budget has no money"),
    ],
    ids=str,
)
def test_a_line_that_is_no_budget_says_how_one_is_written(text: str, problem: str) -> None:
    with pytest.raises(MisconfiguredError, match=problem):
        read_budget(text)


def test_a_budget_is_read_from_a_line() -> None:
    read = read_budget("requests=20, tokens=100_000,cost=1.50,when_used_up=end,ask_seconds=60")

    assert read == Budget(requests=20, tokens=100_000, cost_usd=Decimal("1.50"), when_used_up="end", ask_seconds=60)


def test_a_budget_is_shown_as_what_is_spent_of_each_limit() -> None:
    budget = Budget(requests=8, tokens=1_000, cost_usd=Decimal("1.50"))
    spent = Usage(requests=6, input_tokens=900, output_tokens=99, cost_usd=Decimal("1.52"))

    assert [(bar(share.part), share.text) for share in shares(budget, spent)] == [
        ("████████░░", "6 of 8 model calls"),
        ("█████████░", "999 of 1,000 tokens"),
        ("██████████", "1.52 of 1.50 USD"),
    ]
