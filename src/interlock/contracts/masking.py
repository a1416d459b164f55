"""What a person, a summary or a log may see of a tool's arguments. The tool itself always gets the real ones."""

import re
from itertools import islice
from typing import Any, Final

from interlock.contracts.payloads import Json

MASK: Final = "[masked]"

_LABELLED_TEXT: Final = 4_000  # In characters; the end of a long secret may be what tells it.
_LABELLED_ITEMS: Final = 100

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_\-. ])(?:pass|passwords?|passwd|passphrases?|pwd|secrets?|jwt|auth|authorization|credentials?"
    r"|token|(?:access|refresh|auth|api|id|bearer)[_\- ]?tokens|cookies?"
    r"|(?:api|private|access|secret|signing|encryption)[_\- ]?keys?)$"
)
_KEYED: Final = r"(?:password|passwd|passphrase|secret|token|api[_\-]?key|access[_\-]?key)[\"']?\s*[=:]\s*"
# Random text holds a digit or changes its case inside; words of prose do neither.
_RANDOM: Final = r"(?=[A-Za-z0-9+/_~=\-]*(?:[0-9]|(?-i:[a-z][A-Z])))"
# Each pattern keeps group 1 (what names the secret) and masks the rest. A model writes this text and workflow code
# reads it, so none may take more than linear time: each can begin at few places.
_SECRET_TEXT: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?!\[masked\]).*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
        r"(\bauthorization[\"']?\s*[=:]\s*[\"']?(?:bearer|basic|token|digest)\s+)[^\s\"',;]+",
        rf"(\b(?:bearer|basic)\s+){_RANDOM}[A-Za-z0-9+/_.~=\-]{{8,}}",
        r"(://[^/\s:@]*:)[^/\s]+(?=@)",
        rf"({_KEYED}(?P<quote>[\"']))(?:(?!(?P=quote))[^\r\n])+",
        rf"({_KEYED})[^\s\"',;&]+",
        r"()(?<![\w\-])eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?",
        r"()(?<![\w\-])(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}[A-Za-z0-9_\-]*",
        r"()\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-)[A-Za-z0-9_\-]{10,}",
        r"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    )
)


def masked(value: Json, name: str = "") -> Json:
    """The value with secrets replaced by `[masked]`: under names such as `api_key`, and inside free text."""
    if isinstance(value, dict):
        return {key: masked(item, _inner_name(name, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    if value not in (None, "") and not isinstance(value, bool) and _names_a_secret(name):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """Free text with what looks like a secret replaced."""
    for pattern in _SECRET_TEXT:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def unmasked(edited: Json, real: Json, name: str = "", *, in_text: bool = False) -> Json:
    """Edited arguments with the real value wherever the reviewer left a masked one as it was.

    in_text: also inside of a text that was changed around its only mask. Not for calls: a run that has refused such an
    edit before would take it on a replay.
    Raises ValueError when a masked value was changed in part, or moved so that nobody can tell which one it is: the
    tool must never get the mask itself.
    """
    if isinstance(edited, dict) and isinstance(real, dict):
        return {
            key: unmasked(item, real.get(key), _inner_name(name, key), in_text=in_text) for key, item in edited.items()
        }
    if isinstance(edited, list) and isinstance(real, list):
        return _unmasked_list(edited, real, name, in_text=in_text)
    if edited == (shown := masked(real, name)) and shown != real:
        return real
    if in_text and (around := _with_its_secret(edited, real, shown)) is not None:
        return around
    if str(edited).count(MASK) > str(real).count(MASK):
        raise ValueError(f"{name or 'value'}: a masked value was moved or changed in part; write it in full")
    return edited


def _with_its_secret(edited: Json, real: Json, shown: Json) -> str | None:
    """A text that was edited around its only mask, with the secret in its place.

    None when it has another number of masks, or when the secret would not be known for one there.
    """
    if not (isinstance(edited, str) and isinstance(real, str) and isinstance(shown, str)) or MASK in real:
        return None
    if shown == MASK or (shown.count(MASK), edited.count(MASK)) != (1, 1):
        return None
    before, after = shown.split(MASK)
    written = edited.replace(MASK, real[len(before) : len(real) - len(after)])
    return written if masked_text(written) == masked_text(edited) else None


def _unmasked_list(edited: list[Json], real: list[Json], name: str, *, in_text: bool) -> list[Json]:
    shown = [masked(item, name) for item in real]

    def counterpart(at: int, item: Json) -> Json:
        # What is still at its place, what has moved, or what was edited at its place and has not moved away from it.
        stayed = len(edited) == len(real) and all(look != shown[at] for look in edited[:at] + edited[at + 1 :])
        at_its_place = real[at] if stayed else None
        if len(edited) == len(real) and shown[at] == item:
            return real[at]
        moved = [one for one, look in zip(real, shown, strict=True) if look == item]
        if not moved:
            return at_its_place
        return moved[0] if all(one == moved[0] for one in moved) else None

    return [unmasked(item, counterpart(at, item), name, in_text=in_text) for at, item in enumerate(edited)]


def call_label(tool: str, arguments: dict[str, Json], *, limit: int = 180) -> str:
    """One line that says what a call does: `refund: order A-1001, amount 42.00`."""
    parts = [f"{name} {_short(value)}" for name, value in masked(_beginning(arguments)).items()]
    label = " ".join((f"{tool}: {', '.join(parts)}" if parts else tool).split())
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _inner_name(name: str, key: str) -> str:
    # Everything below a secret's name is a part of the secret.
    return name if _names_a_secret(name) else key


def _names_a_secret(name: str) -> bool:
    return bool(name) and _SECRET_NAME.search(_CAMEL.sub("_", name).lower()) is not None


def _beginning(value: Any) -> Any:
    """As much of a value as a label can show. Many are made, and masking the whole of a large one takes long."""
    if isinstance(value, dict):
        return {key: _beginning(item) for key, item in islice(value.items(), _LABELLED_ITEMS)}
    if isinstance(value, list):
        return [_beginning(item) for item in value[:_LABELLED_ITEMS]]
    return value[:_LABELLED_TEXT] if isinstance(value, str) else value


def _short(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if round(value, 2) == value else f"{value}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} {_short(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_short(item) for item in value)}]"
    text = " ".join(str(value).split()) or '""'
    return text if len(text) <= 60 else f"{text[:59]}…"
