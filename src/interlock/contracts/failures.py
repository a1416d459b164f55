"""What is said of an error that ends a step or a run: its type, its own words, and the place in the user's code."""

import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from pydantic import ValidationError

from interlock.contracts.masking import masked_text

LONGEST_MESSAGE = 4_000
"""In characters. The message goes into the history, twice for an error in a step that ends its run."""

LARGEST_OUTPUT_BYTES = 1_500_000
"""Of what a run gives back. Temporal refuses a payload of 2 MB; past that a run could never end."""

_FRAMEWORKS = ("interlock", "pydantic_ai", "pydantic_graph", "pydantic", "temporalio", "anyio")
_FRAMEWORKS_WHERE_INSTALLED = ("agents", "openai")  # Users have modules of these names too.


@dataclass(frozen=True)
class Told:
    """An error as it goes into a history. message: bounded, without what looks like a secret, with the place."""

    type: str
    message: str


def told(error: BaseException) -> Told:
    """What an error says, whatever its author made of it: mute, of any size, with text that is no Unicode.

    An `ExceptionGroup` of one is told as the one. The place is the innermost function of the user's own code that the
    error passed through; there is none for an error of a library's own doing.
    """
    at = place(error)
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
        at = place(error) or at
    return Told(type=bounded(type(error).__name__), message=bounded(_words(error)) + (f" ({at})" if at else ""))


def bounded(text: str, longest: int = LONGEST_MESSAGE) -> str:
    """Text for a history: of bounded length, without what looks like a secret, and in Unicode that can be written."""
    # What is behind twice the length cannot be a part of a secret that the kept text begins with.
    shown = masked_text(text[: 2 * longest].encode("utf-8", "backslashreplace").decode())
    return shown if len(shown) <= longest else f"{shown[:longest]}… ({len(text):,} characters in all)"


def output_too_large(size: int) -> str:
    """That an output of this many bytes cannot be a run's."""
    return (
        f"The agent's output has {size:,} bytes; at most {LARGEST_OUTPUT_BYTES:,} fit. "
        "Return a reference to the data instead of the data."
    )


def unread(error: BaseException) -> str:
    """Why a value cannot be read, without the value, which may be a secret."""
    return problems(error) if isinstance(error, ValidationError) else told(error).type


def problems(error: ValidationError, *, depth: int | None = None) -> str:
    """What does not fit, field by field, without the values: they may be secrets, and this text goes into histories.

    depth: how many steps of a field's location are named; all when not given.
    """
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{'.'.join(str(step) for step in one['loc'][:depth]) or 'value'}: {one['msg']}" for one in found)


def place(error: BaseException) -> str:
    """Where in the user's own code an error arose: `in Audit.before_run of shop.hooks, line 12`; empty if nowhere."""
    for one in _causes(error):
        if found := own_place(traceback.walk_tb(one.__traceback__)):
            return found
    return ""


def own_place(frames: Iterable[tuple[FrameType, int]]) -> str:
    """The innermost of the user's own functions, and the one of them that was called by a framework.

    frames: with their lines, outermost first.
    """
    called = [one for one in frames if not _is_framework(one[0])]
    own = [one for one in called if not _is_installed(one[0])] or called[:1]  # Their code may be an installed package.
    if not own:
        return ""
    inner, outer = where(*own[-1]), where(*own[0])
    return f"in {inner}" if inner == outer else f"in {inner}, from {outer}"


def where(frame: FrameType, line: int) -> str:
    """A frame in words, without the path of its file: `Audit.before_run of shop.hooks, line 12`."""
    name = frame.f_code.co_qualname.replace("<locals>.", "")
    return f"{name} of {frame.f_globals.get('__name__', '?')}, line {line}"


def _is_framework(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if package in _FRAMEWORKS or filename.startswith("<"):
        return True
    if package in _FRAMEWORKS_WHERE_INSTALLED and _is_installed(frame):
        return True
    return filename.startswith(sysconfig.get_path("stdlib")) and not _is_installed(frame)


def _is_installed(frame: FrameType) -> bool:
    return any(folder in frame.f_code.co_filename for folder in ("site-packages", "dist-packages"))


def _words(error: BaseException) -> str:
    """What an error says; its type when it says nothing or cannot be asked."""
    try:
        text = str(error) or type(error).__name__
    except BaseException:  # `__str__` is the user's code and may raise anything; the error still has to be told.
        return f"{type(error).__name__}, which cannot be written as text"
    if isinstance(error, BaseExceptionGroup):
        inner = [told(one) for one in error.exceptions[:5]]
        text = "; ".join([text, *(f"{one.type}: {one.message}" for one in inner)])
    return text


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while not any(error is one for one in seen):
        seen.append(error)
        yield error
        if error.__cause__ is None:
            return
        error = error.__cause__
