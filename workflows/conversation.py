"""Keeps the messages of a conversation from being written into the history once more with each model call."""

import dataclasses
from typing import Any

from temporalio import workflow
from temporalio.api.common.v1 import Payload

with workflow.unsafe.imports_passed_through():
    from interlock.contracts import conversation
    from interlock.contracts.conversation import Request

_WORTHWHILE_BYTES = 1_000  # Of less the reference is hardly shorter, and whoever reads the history sees all of it.
_LARGEST_BYTES = 1_500_000  # What comes with the messages has to fit into the 2 MB of a payload, too.


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a model call was given. is_recorded: in just these words; of a replayed one, and of one that goes on from
    it, the history may have others."""

    step: str
    place: str
    activity: str
    length: int
    digest: str
    is_recorded: bool


class Conversations:
    """Of the model calls of a run: what each agent was last given, by the place where it is at work."""

    def __init__(self) -> None:
        self._answered: dict[tuple[str, str], Sent] = {}

    def sent(self, given: object, *, step: str, place: str, activity: str) -> tuple[Payload, Sent] | None:
        """What a model call is to be given, as it goes into the history. None when it is to be written as it is."""
        parts = _parts(given)
        if parts is None:
            return None
        request = self._following(parts, place) or parts
        return _payload(request), Sent(
            step=step,
            place=place,
            activity=activity,
            length=len(parts.messages),
            digest=conversation.digest_of(parts.messages),
            is_recorded=not workflow.unsafe.is_replaying() and bool(request.digest or not request.follows),
        )

    def answered(self, sent: Sent) -> None:
        """Have later calls go on from this one. Only one that was answered is in the history for certain: one that was
        cancelled in the task which began it is not."""
        self._answered[sent.place, sent.activity] = sent

    def forget(self, place: str) -> None:
        """Have the next call there be written whole: the history does not have what this one was to go on from."""
        self._answered = {key: one for key, one in self._answered.items() if one.place != place}

    def _following(self, parts: Request, place: str) -> Request | None:
        """The shortest that can be said: after the call that was given the most of these messages."""
        here = [one for (at, _), one in self._answered.items() if at == place]
        for sent in sorted(here, key=lambda one: one.length, reverse=True):
            if sent.length < _WORTHWHILE_BYTES or not (sent.is_recorded or len(parts.messages) > _LARGEST_BYTES):
                continue
            then = conversation.rest(parts.messages, sent.length, sent.digest)
            if then is not None:
                digest = sent.digest if sent.is_recorded else ""
                return dataclasses.replace(parts, messages=then, follows=sent.step, digest=digest)
        return None


def _parts(given: object) -> Request | None:
    to_payload = workflow.payload_converter().to_payload
    for field in conversation.FIELDS:
        messages, without = _without(given, field)
        if not isinstance(messages, list) or not messages:
            continue
        parts = conversation.emptied(field, to_payload(without).data)
        return parts and dataclasses.replace(parts, messages=to_payload(messages).data)
    return None


def _without(given: Any, field: str) -> tuple[Any, Any]:
    if isinstance(given, dict):
        return given.get(field), {field: [], **{name: value for name, value in given.items() if name != field}}
    if dataclasses.is_dataclass(given) and not isinstance(given, type) and hasattr(given, field):
        return getattr(given, field), dataclasses.replace(given, **{field: []})
    return None, None


def _payload(request: Request) -> Payload:
    metadata = {"encoding": b"json/plain", conversation.METADATA: b"%d" % len(request.messages)}
    return Payload(metadata=metadata, data=request.data())
