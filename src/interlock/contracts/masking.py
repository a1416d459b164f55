"""What a person, a summary or a log may see of a tool's arguments. The tool itself always gets the real ones."""

import re
from typing import Final

from interlock.contracts.payloads import Json

MASK: Final = "[masked]"

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME: Final = re.compile(
    r"(?:^|[_\-. ])(?:pass|password|passwd|passphrase|pwd|secret|token|jwt|auth|authorization|credentials?|cookie"
    r"|api[_\- ]?key|private[_\- ]?key|access[_\- ]?key|secret[_\- ]?key|signing[_\- ]?key|encryption[_\- ]?key)$"
)
# Each pattern keeps group 1 (what names the secret) and masks the rest.
_SECRET_TEXT: Final = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        r"(\b(?:bearer|basic)\s+)[A-Za-z0-9+/_.~=\-]{8,}",
        r"([a-z][a-z0-9+.\-]*://[^/\s:@]*:)[^/\s@]+(?=@)",
        r"(\b[\w\-]*(?:password|passwd|passphrase|secret|token|api[_\-]?key|access[_\-]?key)[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]+",
        r"()\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+(?:\.[A-Za-z0-9_\-]*)?",
        r"()\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_])*[A-Za-z0-9]{16,}[A-Za-z0-9_\-]*",
        r"()\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-)[A-Za-z0-9_\-]{10,}",
        r"()\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    )
)


def masked(value: Json, name: str = "") -> Json:
    """The value with secrets replaced by `[masked]`: under names such as `api_key`, and inside free text."""
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in value.items()}
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


def unmasked(edited: Json, real: Json, name: str = "") -> Json:
    """Edited arguments with the real value wherever the reviewer left a masked one as it was."""
    if isinstance(edited, dict) and isinstance(real, dict):
        return {key: unmasked(item, real.get(key), key) for key, item in edited.items()}
    if isinstance(edited, list) and isinstance(real, list) and len(edited) == len(real):
        return [unmasked(item, before, name) for item, before in zip(edited, real, strict=True)]
    return real if real is not None and edited == masked(real, name) else edited


def call_label(tool: str, arguments: dict[str, Json], *, limit: int = 180) -> str:
    """One line that says what a call does: `refund: order A-1001, amount 42.00`."""
    parts = [f"{name} {_short(value)}" for name, value in masked(arguments).items()]
    label = f"{tool}: {', '.join(parts)}" if parts else tool
    return label if len(label) <= limit else f"{label[: limit - 1]}…"


def _names_a_secret(name: str) -> bool:
    return bool(name) and _SECRET_NAME.search(_CAMEL.sub("_", name).lower()) is not None


def _short(value: Json) -> str:
    if isinstance(value, float):
        return f"{value:.2f}" if round(value, 2) == value else f"{value}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} {_short(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(_short(item) for item in value)}]"
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
