"""The journal as a page and in the terminal: whole, harmless, and readable at every width."""

import io
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from rich.console import Console

from interlock.cli import _journal
from interlock.contracts.durations import span
from interlock.journal import Answer, Journal, Request
from interlock.journal._markup import Markup, el, join
from interlock.journal._scale import short_scale, true_scale
from interlock.journal._words import amount, settled, short
from interlock.journal.html import page
from tests.unit.stored import NAMES, asked_in_full, history, journal_of, payloads, rewritten, set_value, value_of

HOSTILE = "</style></title></pre><script>alert(1)</script><img src=x onerror=alert(2)>\\\"'&amp;\u202e\x1b[31m"
BEGAN = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)


class Page(HTMLParser):
    """A page taken apart: its tags, its attributes, its text, and whether every tag was closed in its place."""

    VOID = ("meta", "input", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


@pytest.mark.parametrize("name", NAMES)
async def test_a_page_is_whole_and_loads_nothing(name: str) -> None:
    text = page(await journal_of(name))
    read = Page(text)

    assert read.open == []
    assert read.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form", "a", "base"})
    assert not re.search(r"url\(|@import", text)
    assert [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "href")] == []
    ids = [value for name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'") in (
        read.attributes
    )


def hostile(document: dict[str, Any]) -> None:
    """Models, tools and people say it wherever they can."""
    for payload in payloads(document):
        set_value(payload, said(value_of(payload)))
    document["events"][0]["workflowExecutionStartedEventAttributes"]["workflowId"] = HOSTILE


def said(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: said(item) for name, item in value.items()}
    if isinstance(value, list):
        return [said(item) for item in value]
    keep = ("approve", "reject", "tool_return", "tool-call", "support", "judged", "refund", "1", "2", "3")
    return value if not isinstance(value, str) or value in keep else f"{value}{HOSTILE}"


@pytest.mark.parametrize("name", ["completed-decisions", "completed-judge", "failed-approved-tool"])
async def test_what_models_and_people_say_is_only_text_on_a_page(name: str) -> None:
    journal = await journal_of(history(name, asked_in_full(order=HOSTILE), hostile))
    text = page(journal)
    read = Page(text)

    assert read.open == []
    assert read.tags.isdisjoint({"script", "img"})
    assert any("<script>alert(1)</script>" in one for one in read.texts)
    assert "\u202e" not in text
    assert "\x1b" not in text


async def test_a_page_tells_of_waits_attempts_and_what_was_decided() -> None:
    asked = asked_in_full(order="A-1003", amount=300.0)

    def tried_again(document: dict[str, Any]) -> None:
        for one in document["events"]:
            if one["eventId"] == "25":
                attributes = one["activityTaskStartedEventAttributes"]
                attributes["attempt"] = 3
                attributes["lastFailure"] = {"message": "no answer", "applicationFailureInfo": {"type": "Offline"}}

    text = " ".join(Page(page(await journal_of("completed-decisions", asked, tried_again))).texts)

    assert "approved by ann after 145 ms" in text
    assert "Approved by ann after 145 ms, with amount 30.0 instead of 300.0, at 22:20:52 UTC (+200 ms)" in text
    assert "Rejected by bob after 172 ms: too late" in text
    assert "Ran as step 6: returned" in text
    assert "41 ms ×3" in text
    assert "Offline: no answer" in text


async def test_a_run_below_is_told_under_the_step_that_started_it() -> None:
    journal = await with_run_below()
    text = page(journal)

    assert 'id="step-2.3"' in text
    assert text.index('id="step-2"') < text.index('id="step-2.1"') < text.index('id="step-3"')
    assert "Ran as step 2.3: returned" in text


async def with_run_below() -> Journal:
    journal, child = await journal_of("completed-sub-run"), await journal_of("completed-sub-run-child")
    (link,) = journal.sub_runs
    return journal.model_copy(update={"sub_runs": (link.model_copy(update={"journal": child}),)})


def tiles(journal: Journal) -> dict[str, str]:
    found = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page(journal).partition("<section")[0])
    return dict(found)


async def test_the_sums_of_a_deep_journal_are_those_of_all_its_runs(printed: "Printed") -> None:
    alone, deep = await journal_of("completed-sub-run"), await with_run_below()

    assert tiles(deep).items() >= {"model calls": "4", "tool calls": "2", "calls asked about": "1"}.items()
    assert "model calls below" not in tiles(deep)
    assert tiles(deep)["waited for people"] == "143 ms"
    assert tiles(alone).items() >= {"model calls": "2", "model calls below": "2", "tool calls": "1"}.items()
    assert "calls asked about" not in tiles(alone)
    assert tiles(deep)["tokens in"] == tiles(alone)["tokens in"]
    assert printed(deep, 200)[-1].startswith("4 model calls, ")
    assert "1 wait for a person (143 ms)" in printed(deep, 200)[-1]
    assert printed(alone, 200)[-1].startswith("2 model calls and 2 in runs below, ")


async def test_a_stuck_step_ends_on_the_page_when_it_ends() -> None:
    still, over = page(await journal_of("open-stuck")), page(await journal_of("completed-retried"))

    assert 'class="bar wait wait-end"' in still
    assert 'class="bar wait bad-end"' not in still
    assert 'class="bar wait bad-end"' in over


@pytest.mark.parametrize("name", NAMES)
async def test_where_there_is_little_room_every_second_label_is_left_of_each_axis(name: str) -> None:
    for axis in re.findall(r'<div class="labels.*?</div></div>', page(await journal_of(name))):
        labels = re.findall(r'<b(?: class="(\w+)")? style=[^>]*>', axis)
        ticks = [label for label in labels if label != "pause"]

        assert ticks == ["second" if number % 2 else "" for number in range(len(ticks))]
        assert ticks


def test_markup_escapes_whatever_is_no_markup() -> None:
    made = el("p", "<b>", el("i", "&"), None, "", title='"><script>', hidden=True, class_=None)

    assert made == '<p title="&quot;&gt;&lt;script&gt;" hidden>&lt;b&gt;<i>&amp;</i></p>'
    assert join("<", Markup("<br>")) == "&lt;<br>"


def test_a_decision_that_a_fork_took_over_was_no_wait() -> None:
    answer = Answer(request_id="1", verdict="approve", by="ann", at=BEGAN, via="fork")
    request = Request(
        request_id="1",
        agent_path=(),
        tool="pay",
        label="pay",
        asked_at=BEGAN,
        asked_by=1,
        outcome="approved",
        answer=answer,
    )

    assert settled(request) == "approved by ann before the fork"


# The scale.


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


WORK = [(at(0), at(1)), (at(101), at(102)), (at(86_500), at(86_501))]
MARKS = [edge for one in WORK for edge in one]


def test_a_scale_without_long_pauses_is_true() -> None:
    scale = short_scale((at(0), at(4)), [(at(0), at(1)), (at(2), at(4))], [])

    assert scale.cuts == []
    assert [scale.place(at(seconds)) for seconds in (-1, 0, 1, 2, 4, 9)] == [0, 0, 25, 50, 100, 100]


def test_long_pauses_are_cut_so_that_the_work_can_be_seen() -> None:
    scale = short_scale((at(0), at(86_501)), WORK, MARKS)
    widths = [scale.place(until) - scale.place(since) for since, until in WORK]

    assert [one.lasted.total_seconds() for one in scale.cuts] == [100, 86_398]
    assert all(width > 15 for width in widths)
    assert max(widths) == pytest.approx(min(widths))
    assert true_scale((at(0), at(86_501))).place(at(102)) < 0.2


def test_places_keep_the_order_of_times() -> None:
    scale = short_scale((at(0), at(86_501)), WORK, MARKS)
    places = [scale.place(at(seconds / 2)) for seconds in range(0, 173_002, 50)]

    assert places == sorted(places)
    assert (places[0], scale.place(at(86_501))) == (0, 100)


@pytest.mark.parametrize("seconds", [0.001, 0.04, 3, 55, 1_000, 90_000, 3_000_000])
def test_the_axis_has_a_handful_of_lines_whose_labels_do_not_touch(seconds: float) -> None:
    ticks = list(true_scale((at(0), at(seconds))).ticks())
    labelled = [tick.place for tick in ticks if tick.passed is not None]

    assert 3 <= len(labelled) <= len(ticks) <= 11
    assert all(later - one > 7 for one, later in pairwise(labelled))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0124, "12 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (45.4, "45 s"),
        (59.96, "1 min"),
        (185, "3 min 5 s"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (270_000, "3 d 3 h"),
        (-1, "0 ms"),
    ],
)
def test_a_time_span_is_told_in_the_units_that_fit_it(seconds: float, text: str) -> None:
    assert span(seconds) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (7_527, "7.5 kB"), (1_200_000, "1.2 MB")])
def test_sizes_are_told_in_the_units_that_fit_them(size: int, text: str) -> None:
    assert amount(size) == text
    assert short(size) == text.replace(" ", "").removesuffix("B")


# The terminal.


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Journal, int], list[str]]:
    def lines(journal: Journal, width: int) -> list[str]:
        console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
        monkeypatch.setattr(_journal, "out", lambda: console)
        _journal.print_journal(journal)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    return lines


Printed = Callable[[Journal, int], list[str]]


async def test_a_run_that_goes_on_from_another_execution_names_it(printed: Printed) -> None:
    journal = (await journal_of("completed-plain")).model_copy(
        update={"continued_from": "before", "continued_as": "next"}
    )

    for told in (" ".join(Page(page(journal)).texts), "\n".join(printed(journal, 200))):
        assert "goes on from execution before" in told
        assert "went on as execution next" in told


async def test_a_step_is_a_line_with_all_its_facts(printed: Printed) -> None:
    lines = printed(await journal_of("completed-decisions"), 10_000)

    (first,) = (line for line in lines if "scripted, turn 1" in line)
    words = ["1", "model", "scripted, turn 1", "29 ms", "12 ms", "53 > 26", "7.5k > 1.4k"]
    assert re.split(r"\s{2,}", first.strip()) == [*words, "calls refund ×3, look_up"]
    assert lines[-1] == (
        "2 model calls, 147 tokens in, 55 out, 3 tool calls, 3 waits for a person (201 ms), 360 ms in all"
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("completed")])
@pytest.mark.parametrize("width", [120, 80])
async def test_the_table_fits_and_at_120_columns_each_step_has_one_line(
    printed: Printed, name: str, width: int
) -> None:
    journal = await journal_of(name)
    lines = printed(journal, width)
    rule = next(at for at, line in enumerate(lines) if line.startswith("───"))
    table = lines[rule - 1 : lines.index("", rule)] if "" in lines[rule:] else lines[rule - 1 :]

    assert max(map(len, table)) <= width
    if width == 120:
        runs = len(journal.sub_runs)
        assert len(table) == 2 + len(journal.steps) + runs


async def test_requests_and_failures_are_told_below_the_table(printed: Printed) -> None:
    decided = printed(await journal_of("completed-decisions"), 120)
    repeated = printed(await journal_of("completed-by-signals"), 120)
    broken = printed(await journal_of("failed-approved-tool"), 120)

    assert "request 2: refund: order A-1002, amount 20.00  support" in decided
    assert "  rejected by bob after 172 ms: too late" in decided
    assert "  without effect: approve by ann: the request was settled already" in repeated
    assert "step 3 failed: ValueError: it is broken" in broken
    assert broken[-1] == "ValueError: it is broken"


async def test_what_people_found_of_a_call_and_of_a_stuck_step_is_told(printed: Printed) -> None:
    happened = printed(await journal_of("completed-happened"), 120)
    retried = printed(await journal_of("completed-retried"), 120)

    assert "request 2: break_it (did it happen?)  support" in happened
    assert "  found to have happened by ann after 158 ms, with the result done by hand" in happened
    assert "stuck: wobble, 98 ms, retried" in retried
    assert "retried by ann" in retried
    assert retried[-1].endswith("3 tool calls, stuck for 98 ms, 346 ms in all")


async def test_a_run_below_has_its_steps_under_the_one_that_started_it(printed: Printed) -> None:
    lines = printed(await with_run_below(), 120)
    places = [line.split()[0] for line in lines if " tool " in line or " model " in line]

    assert places[:6] == ["1", "2", "2.1", "2.3", "2.4", "3"]
    assert any("↳ payer" in line for line in lines)
    assert "    approved by ann after 143 ms; ran as step 2.3: returned" in lines


async def test_nothing_in_a_journal_acts_on_the_terminal(printed: Printed) -> None:
    journal = await journal_of(history("completed-decisions", asked_in_full(order=HOSTILE), hostile))
    text = "\n".join(printed(journal, 120) + printed(journal, 10_000))

    assert "\x1b" not in text
    assert "\u202e" not in text


async def test_text_that_looks_like_a_secret_is_masked_in_the_terminal(printed: Printed) -> None:
    leaking = rewritten(lambda text: text.replace("too late", "password=hunter2").replace("A-1001", "token=abcdef12"))
    text = "\n".join(printed(await journal_of("completed-decisions", leaking), 10_000))

    assert "rejected by bob after 172 ms: password=[masked]" in text
    assert "abcdef12" not in text
