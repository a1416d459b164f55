"""Text from models, tools and people, made harmless to whatever shows it."""

import re
from typing import Final

# Control characters, what turns the direction of text around, and what cannot be seen. Line feed and tab may stay.
HARMFUL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff]"
)


def plain(text: str) -> str:
    """The text with an escape for every character that could act on a terminal, or turn a page's text around."""
    return HARMFUL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def line(text: str) -> str:
    """`plain`, in one line."""
    return plain(" ".join(text.split()))
