"""From times to places on the page. Pauses in which nothing works are cut short, or the work could not be seen."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise

Span = tuple[datetime, datetime]

_ROOMY = 3  # How much more time than the work the pauses may take before they are cut.
_WORTHWHILE = 2.5  # A pause is cut only if it gets at least so many times shorter.
_SEEN = 0.2  # How much of the rest a single cut takes at least, so that it is seen.
_LINES = 9
_LABEL = 7.5  # How much room a label needs, in percent.
_ROUND_SECONDS = (
    *(digit * 10.0**power for power in range(-4, 1) for digit in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400 * days for days in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)),
)


@dataclass(frozen=True)
class Tick:
    """A line on the axis. place: in percent. passed: since the beginning, for a line that has a label."""

    place: float
    passed: timedelta | None


@dataclass(frozen=True)
class Cut:
    """A pause that is drawn shorter than it was. place, width: in percent."""

    place: float
    width: float
    lasted: timedelta


@dataclass(frozen=True)
class _Piece:
    """A stretch of time and the width that it gets, in seconds of the drawing."""

    since: datetime
    until: datetime
    width: float
    is_cut: bool = False


class Scale:
    """Where times are on the page, in percent of its width."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = _joined(pieces)
        self._begins = [piece.since for piece in self._pieces]
        self._before = list(accumulate((piece.width for piece in self._pieces), initial=0.0))
        self._total = self._before[-1] or 1.0
        self._since = self._begins[0]
        self.cuts = [
            Cut(self.place(piece.since), 100 * piece.width / self._total, piece.until - piece.since)
            for piece in self._pieces
            if piece.is_cut
        ]
        wanted = self._total / _LINES
        self.every = timedelta(seconds=next((one for one in _ROUND_SECONDS if one >= wanted), wanted))

    def place(self, at: datetime) -> float:
        """Where a time is. What lies outside is at the edge."""
        index = max(bisect_right(self._begins, at) - 1, 0)
        piece = self._pieces[index]
        lasts = (piece.until - piece.since).total_seconds()
        share = (at - piece.since).total_seconds() / lasts if lasts else 0.0
        return 100 * (self._before[index] + min(max(share, 0.0), 1.0) * piece.width) / self._total

    def ticks(self) -> Iterator[Tick]:
        """Lines at round times, and where the work goes on behind a cut."""
        labelled = -100.0
        for number, piece in enumerate(self._pieces):
            if piece.is_cut:
                continue
            ends = self.place(piece.until)
            for at in self._lines(piece, behind_cut=number > 0):
                place = self.place(at)
                fits = labelled + _LABEL < place < ends - _LABEL and (number == 0 or at == piece.since)
                labelled = place if fits else labelled
                yield Tick(place, at - self._since if fits else None)

    def _lines(self, piece: _Piece, *, behind_cut: bool) -> Iterator[datetime]:
        if behind_cut:
            yield piece.since
        first = -(-(piece.since - self._since) // self.every)
        for number in range(first, (piece.until - self._since) // self.every + 1):
            yield self._since + number * self.every


def true_scale(whole: Span) -> Scale:
    """Every second as wide as every other."""
    since, until = whole
    return Scale([_Piece(since, until, (until - since).total_seconds())])


def short_scale(whole: Span, work: Sequence[Span], marks: Sequence[datetime]) -> Scale:
    """With long pauses cut short. work: when something was at work. marks: times that are shown; a cut holds none."""
    since, until = whole
    times = sorted({at for at in (*marks, *(at for span in work for at in span)) if since < at < until})
    busy = _merged(work)
    pieces = [
        (begin, end, (end - begin).total_seconds(), _within(busy, begin, end))
        for begin, end in pairwise([since, *times, until])
    ]
    at_work = sum(lasts for _, _, lasts, works in pieces if works)
    pauses = [lasts for _, _, lasts, works in pieces if not works]
    if not at_work or sum(pauses) <= at_work * _ROOMY:
        return true_scale(whole)
    longest = _longest_kept(pauses, at_work)
    long = max(longest * _WORTHWHILE, at_work * _ROOMY)
    cut = [not works and lasts > long for _, _, lasts, works in pieces]
    kept = sum(lasts for (_, _, lasts, _), is_cut in zip(pieces, cut, strict=True) if not is_cut)
    width = max(longest, kept * _SEEN / max(sum(cut), 1) ** 0.5)
    return Scale(
        [
            _Piece(begin, end, min(width, lasts) if is_cut else lasts, is_cut)
            for (begin, end, lasts, _), is_cut in zip(pieces, cut, strict=True)
        ]
    )


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    joined: list[_Piece] = []
    for piece in pieces:
        if joined and not joined[-1].is_cut and not piece.is_cut:
            joined[-1] = _Piece(joined[-1].since, piece.until, joined[-1].width + piece.width)
        else:
            joined.append(piece)
    return joined


def _longest_kept(pauses: Sequence[float], room: float) -> float:
    """How long a pause may be drawn so that all of them fill the room."""
    left, count = room, len(pauses)
    for pause in sorted(pauses):
        if pause * count >= left:
            return left / count
        left, count = left - pause, count - 1
    return max(pauses)


def _merged(spans: Sequence[Span]) -> list[Span]:
    merged: list[Span] = []
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], until))
        else:
            merged.append((since, until))
    return merged


def _within(busy: Sequence[Span], begin: datetime, end: datetime) -> bool:
    """Whether something worked then. Nothing begins or ends in between."""
    index = bisect_right(busy, begin, key=lambda span: span[0]) - 1
    return index >= 0 and busy[index][1] >= end
