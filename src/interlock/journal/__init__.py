"""The journal: what a run did, step by step, read from its history alone."""

from interlock.journal.events import EventReader, RunEvent
from interlock.journal.model import Answer, Journal, Request, Retry, Step, Stuck, SubRunLink, Totals
from interlock.journal.reader import HistoryReader, read_journal

__all__ = [
    "Answer",
    "EventReader",
    "HistoryReader",
    "Journal",
    "Request",
    "Retry",
    "RunEvent",
    "Step",
    "Stuck",
    "SubRunLink",
    "Totals",
    "read_journal",
]
