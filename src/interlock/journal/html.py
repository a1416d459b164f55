"""The journal as one page that needs nothing else: no script, no network, readable on a phone and on paper."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from importlib.resources import files

from interlock.contracts.budgets import shares
from interlock.journal import _words as words
from interlock.journal._markup import Markup, el, escaped, join
from interlock.journal._rows import Row, rows_of
from interlock.journal._scale import Scale, short_scale, true_scale
from interlock.journal._totals import unread_model_calls, with_runs_below
from interlock.journal.model import Answer, Journal, Request

# Nothing may run and nothing may be loaded, even if something slipped through the escaping.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_TONES = {"completed": "good", "failed": "bad", "timed_out": "bad", "terminated": "bad", "stuck": "bad"}
_WAITS = ("awaiting_approval", "awaiting_tool_result")
_CUT = " Where it is hatched nothing ran, and the pause is drawn shorter than it was."
_CHARACTER = 0.9  # About how wide one is, in percent of the timeline.
_LONG_LABEL = 14
_LEGEND = (
    ("model", "model"),
    ("tool", "tool"),
    ("judge", "judge"),
    ("wait", "waits for a person"),
    ("queue", "earlier attempts, or no worker yet"),
    ("run", "run below"),
    ("bad", "failed"),
)


def page(journal: Journal) -> str:
    """The page, as the text of an HTML file."""
    rows = list(rows_of(journal))
    drawn = [row for row in rows if row.bars]
    head = join(
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        Markup('<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'),
        el("title", f"Journal of {journal.workflow_id}"),
        el("style", Markup(files("interlock.journal").joinpath("page.css").read_text(encoding="utf-8"))),
    )
    body = el(
        "main",
        _header(journal),
        _timeline(journal, drawn) if drawn else None,
        *_requests(journal),
        _steps(journal, rows),
        el("footer", el("p", _footer(journal))),
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _header(journal: Journal) -> Markup:
    status = journal.status.replace("_", " ")
    tone = _TONES.get(journal.status, "wait" if journal.status in _WAITS else "plain")
    facts = [
        f"Started {journal.started_at:%Y-%m-%d %H:%M:%S} UTC",
        f"for {journal.requested_by}" if journal.requested_by else "",
        f"by a tool of {journal.parent_id}" if journal.parent_id else "",
        f"cancellation asked for {_offset(journal.cancel_requested_at, journal)}"
        if journal.cancel_requested_at
        else "",
        f"forked from {journal.forked_from}" if journal.forked_from else "",
        f"goes on from execution {journal.continued_from}" if journal.continued_from else "",
        f"went on as execution {journal.continued_as}" if journal.continued_as else "",
    ]
    return el(
        "header",
        el("p", f"Journal of {' / '.join(journal.agent_path) or journal.workflow_type}", class_="eyebrow"),
        el("h1", el("span", journal.workflow_id), " ", el("span", status, class_=f"pill {tone}")),
        el("p", journal.summary, class_="lead") if journal.summary else None,
        el("p", ", ".join(fact for fact in facts if fact), class_="muted"),
        el("p", el("b", "Ended by "), journal.error, class_="callout") if journal.error else None,
        el("dl", *(el("div", el("dt", name), el("dd", value)) for name, value in _tiles(journal)), class_="tiles"),
    )


def _tiles(journal: Journal) -> Iterator[tuple[str, str]]:
    sums, unread = with_runs_below(journal), unread_model_calls(journal)
    used = sums.usage
    yield ("took" if journal.ended_at else "so far"), words.span(sums.elapsed_seconds)
    if sums.people or sums.waited_seconds:
        yield "waited for people", words.span(sums.waited_seconds)
    yield "model calls", f"{max(used.requests - unread, sums.model_calls):,}"
    if unread:
        yield "model calls below", f"{unread:,}"
    yield "tokens in", f"{used.input_tokens:,}"
    yield "tokens out", f"{used.output_tokens:,}"
    if used.cost_usd:
        yield "cost", f"{used.cost_usd} USD"
    for share in shares(journal.budget, used) if journal.budget else ():
        yield f"budget, {share.name}", f"{share.part:.0%} of {share.text.partition(' of ')[2]}"
    yield "tool calls", f"{sums.tool_calls:,}"
    if sums.requests:
        yield "calls asked about", f"{sums.requests:,}"
    if sums.retries:
        yield "attempts repeated", f"{sums.retries:,}"


def _timeline(journal: Journal, rows: Sequence[Row]) -> Markup:
    whole = (
        journal.started_at,
        max(journal.ended_at or journal.read_at, journal.started_at + timedelta(milliseconds=1)),
    )
    marks = [at for row in rows for bar in row.bars for at in (bar.since, bar.until)]
    work = [(bar.since, bar.until) for row in rows for bar in row.bars if bar.works]
    short, true = short_scale(whole, work, marks), true_scale(whole)
    cut = bool(short.cuts)
    kinds = {bar.tone.split()[0] for row in rows for bar in row.bars}
    return el(
        "section",
        el("h2", "Timeline"),
        el("p", *_legend(kinds), class_="legend"),
        Markup('<input type="checkbox" id="true-scale"><label for="true-scale">True to scale</label>') if cut else None,
        el(
            "div",
            _axis(short, "short"),
            _axis(true, "true") if cut else None,
            _labels(short, "short"),
            _labels(true, "true") if cut else None,
            *(_row(row, short, true if cut else None) for row in rows),
            class_="timeline",
        ),
        el("p", _lines(short), _CUT if cut else None, class_="muted small short"),
        el("p", _lines(true), class_="muted small true") if cut else None,
        class_="card",
    )


def _legend(kinds: set[str]) -> Iterator[Markup]:
    for kind, meaning in _LEGEND:
        if kind in kinds:
            yield el("span", el("i", class_=f"swatch {kind}"), meaning)


def _lines(scale: Scale) -> str:
    return f"The lines are {words.span(scale.every.total_seconds())} apart. Tap or click a row for more."


def _axis(scale: Scale, name: str) -> Markup:
    parts: list[Markup] = []
    for cut in scale.cuts:
        place = f"--a:{cut.place:.3f};--b:{cut.width:.3f}"
        parts.append(el("i", class_="cut", style=place))
    parts += [el("i", class_="tick", style=f"--a:{tick.place:.3f}") for tick in scale.ticks()]
    return el("div", el("div", *parts), class_=f"axis {name}", aria_hidden="true")


def _labels(scale: Scale, name: str) -> Markup:
    """The labels of the axis, which stay in view. Where there is little room only every second one is shown."""
    parts: list[Markup] = []
    for cut in scale.cuts:
        place = f"--a:{cut.place:.3f};--b:{cut.width:.3f}"
        parts.append(el("b", words.span(cut.lasted.total_seconds()), class_="pause", style=place))
    labelled = [tick for tick in scale.ticks() if tick.passed is not None]
    for number, tick in enumerate(labelled):
        text = words.span(tick.passed.total_seconds()) if tick.passed else "0"
        parts.append(el("b", text, class_="second" if number % 2 else None, style=f"--a:{tick.place:.3f}"))
    return el("div", el("div", *parts), class_=f"labels {name}", aria_hidden="true")


def _row(row: Row, short: Scale, true: Scale | None) -> Markup:
    label = el(
        "span",
        el("i", class_=f"dot {row.tone}"),
        el("b", row.number, class_="number") if row.number else None,
        el(
            "span",
            el("span", row.title, class_="title"),
            el("small", row.took, class_="narrow") if _is_long(row.took) else None,
            el("small", row.note) if row.note else None,
            class_="texts",
        ),
        class_="label",
        style=f"--depth:{row.depth}" if row.depth else None,
    )
    bars = (el("i", class_=f"bar {bar.tone}", style=_place(bar.since, bar.until, short, true)) for bar in row.bars)
    begin, end = row.bars[0].since, row.bars[-1].until
    beside = [_side(short.place(begin), short.place(end), row.took), *(["long"] if _is_long(row.took) else [])]
    if true is not None:
        beside.append(f"true-{_side(true.place(begin), true.place(end), row.took)}")
    took = el("em", row.took, class_=" ".join(beside), style=_place(begin, end, short, true)) if row.took else None
    tip = "\n".join(text for text in (row.title, row.when, row.took, row.note) if text)
    return el(
        "details",
        el("summary", label, el("span", *bars, took, class_="track", data_tip=tip)),
        el("dl", *(el("div", el("dt", name), el("dd", _value(value))) for name, value in row.facts), class_="facts"),
        id=row.key,
    )


def _is_long(text: str) -> bool:
    return len(text) > _LONG_LABEL


def _side(begin: float, end: float, text: str) -> str:
    """On which side of its bar a text has room."""
    width = len(text) * _CHARACTER
    if end - begin > max(width + 2, 24):
        return "inside"
    if end + width < 99:
        return "after"
    return "before" if begin > min(width + 1, 100 - begin) else "inside"


def _place(since: datetime, until: datetime, short: Scale, true: Scale | None) -> str:
    begin = short.place(since)
    style = f"--a:{begin:.3f};--b:{short.place(until) - begin:.3f}"
    if true is None:
        return style
    return f"{style};--A:{true.place(since):.3f};--B:{true.place(until) - true.place(since):.3f}"


def _value(value: str) -> Markup:
    return el("pre", value) if "\n" in value else escaped(value)


def _requests(journal: Journal) -> Iterator[Markup]:
    cards = list(_cards(journal, ""))
    if cards:
        yield el("section", el("h2", "What was asked and decided"), *cards, class_="requests")


def _cards(journal: Journal, above: str) -> Iterator[Markup]:
    for request in journal.requests:
        yield _card(request, journal, above)
    for link in journal.sub_runs:
        if link.journal is not None:
            yield from _cards(link.journal, f"{above}{link.position or ''}.")


def _card(request: Request, journal: Journal, above: str) -> Markup:
    tone = words.tone(request)
    return el(
        "article",
        el(
            "h3",
            el("span", words.subject(request)),
            " ",
            el("span", request.outcome.replace("_", " "), class_=f"pill {tone}"),
        ),
        el("p", f"Request {request.request_id}, {' / '.join(request.agent_path)}", class_="muted small"),
        _arguments(request),
        el("ul", *(el("li", line) for line in _story(request, journal, above))),
        class_=f"card {tone}",
    )


def _arguments(request: Request) -> Markup | None:
    """The arguments, as proposed and as they ran. An older history does not hold what was proposed."""
    rows = words.arguments(request)
    asked, ran = request.proposed is not None, request.executed is not None
    if not rows:
        return None
    head = [el("th", "argument"), *([el("th", "proposed")] if asked else []), *([el("th", "ran with")] if ran else [])]
    lines = []
    for name, old, new in rows:
        cells = [el("th", name, scope="row"), *([el("td", old)] if asked else [])]
        if ran:
            cells.append(el("td", new, class_="changed" if asked and new != old else None))
        lines.append(el("tr", *cells))
    table = el("table", el("thead", el("tr", *head)), el("tbody", *lines), class_="arguments")
    return el("div", table, class_="scroll")


def _story(request: Request, journal: Journal, above: str) -> Iterator[str]:
    yield f"Asked {_offset(request.asked_at, journal)}"
    if request.judged_by:
        judged = journal.steps[request.judged_by - 1]
        yield f"Judges were asked (step {above}{judged.position}): {words.ending(judged)}"
    yield _sentence(words.settled(request)) + (
        f", {_offset(request.settled_at, journal)}" if request.settled_at else ""
    )
    for answer in request.ignored:
        yield _ignored(answer, journal)
    if ran := words.came_of(request, journal, above):
        yield _sentence(ran)


def _ignored(answer: Answer, journal: Journal) -> str:
    said = f"{answer.verdict or 'an answer'} by {answer.by or 'somebody'}"
    return f"Without effect: {said}, {_offset(answer.at, journal)}: {answer.ignored}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _steps(journal: Journal, rows: Sequence[Row]) -> Markup | None:
    names = ("", "Kind", "Agent", "Step", "Tries", "Start", "Took", "Tokens in", "out", "Bytes in", "out", "Outcome")
    lines = [el("tr", *(el("td", cell) for cell in row.cells), class_=row.tone) for row in rows if row.cells]
    if not lines:
        return None
    head = el("tr", *(el("th", name, scope="col") for name in names))
    table = el("table", el("thead", head), el("tbody", *lines), class_="steps")
    return el("section", el("h2", "Steps"), el("div", table, class_="scroll"), class_="card")


def _offset(at: datetime | None, journal: Journal) -> str:
    if at is None:
        return ""
    return f"at {at:%H:%M:%S} UTC (+{words.span((at - journal.started_at).total_seconds())})"


def _footer(journal: Journal) -> str:
    events = f"{words.counted(journal.history_events, 'event')} ({words.amount(journal.history_bytes)})"
    at = f"{journal.read_at:%Y-%m-%d at %H:%M:%S} UTC"
    return f"Read from {events} of execution {journal.run_id} on {at}. What looks like a secret is masked."
