"""How the input of a model call is written: without the messages that an earlier call of its run was given already.

A call that goes on from an earlier one has in the place of its messages

    {"follows": STEP, "digest": DIGEST, "then": [...]}

the name of that call, as it is in its header, a digest of the messages that it was given, and only those that are new.
The list of messages is the first field of the input, and the payload's metadata say how long its text is, so that
nobody has to parse what it does not change. Whoever does not know this form refuses it: it is no list.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic_core import from_json, to_json

METADATA: Final = "interlock-messages"
"""Of a payload: how many bytes the list of messages, or of the new ones, has."""

FIELDS: Final = ("messages", "input")
"""The names that frameworks have for them."""

_EMPTY = b"[]"
_THEN = b'"then":'


@dataclass(frozen=True)
class Request:
    """A stored input, in parts. messages: JSON of all or, when it follows another call, of the new ones; head and tail:
    what is around them in the whole form."""

    head: bytes
    messages: bytes
    tail: bytes
    follows: str = ""
    digest: str = ""

    def data(self) -> bytes:
        """As it is stored."""
        if not self.follows:
            return self.head + self.messages + self.tail
        told = to_json({"follows": self.follows, "digest": self.digest})[:-1]
        return b"".join((self.head, told, b",", _THEN, self.messages, b"}", self.tail))


def emptied(field: str, data: bytes) -> Request | None:
    """The parts of an input whose list of messages is empty; None when it is not written as this module has it."""
    head = _head(field)
    return Request(head, _EMPTY, data[len(head) + len(_EMPTY) :]) if data.startswith(head + _EMPTY) else None


def read(data: bytes, length: int | None) -> Request | None:
    """The parts of a stored input. length: as its metadata have it; None reads the plain form that has none. Returns
    None for what is no input of a model call."""
    if length is None:
        given = from_json(data)
        lists = (given[field] for field in FIELDS if isinstance(given.get(field), list))
        messages = next(lists, None)
        return None if messages is None else Request(b"", to_json(messages), b"")
    head = next((head for head in map(_head, FIELDS) if data.startswith(head)), None)
    if head is None:
        return None
    if data[len(head) : len(head) + 1] != b"{":
        return Request(head, data[len(head) : len(head) + length], data[len(head) + length :])
    # No text of ours can hold this: its quotes would be escaped.
    at = data.index(_THEN, len(head)) + len(_THEN)
    told = from_json(data[len(head) : at - len(_THEN) - 1] + b"}")
    return Request(head, data[at : at + length], data[at + length + 1 :], told["follows"], told["digest"] or "")


def joined(lists: Iterable[bytes]) -> bytes:
    """One list of all that is in these, each as JSON."""
    return b"[" + b",".join(one[1:-1] for one in lists if one != _EMPTY) + b"]"


def rest(messages: bytes, length: int, digest: str) -> bytes | None:
    """What comes after the list of that length and digest; None when the messages do not begin with it."""
    if len(messages) < length or messages[length - 1 : length] not in b",]" or digest_of(messages[:length]) != digest:
        return None
    return b"[" + messages[length:] if length < len(messages) else _EMPTY


def digest_of(messages: bytes) -> str:
    """Of a list of messages, as JSON: of what a longer list begins with, too."""
    return hashlib.blake2b(memoryview(messages)[:-1], digest_size=16).hexdigest()


def _head(field: str) -> bytes:
    return b'{"%s":' % field.encode()
