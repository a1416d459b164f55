"""HTML that cannot be made to say more than it should: whatever is not markup already is escaped."""

import html

from interlock._text import plain


class Markup(str):
    """Text that is HTML already."""


Child = str | None


def el(tag: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element. Children that are no markup are escaped, and so are attributes; None and False leave one out.

    An attribute's trailing underscore is dropped, so that `class_` can be written; other underscores become dashes.
    """
    named = "".join(_attribute(name, value) for name, value in attributes.items() if value not in (None, False))
    return Markup(f"<{tag}{named}>{join(*children)}</{tag}>")


def join(*children: Child) -> Markup:
    """Children in a row."""
    return Markup("".join(child if isinstance(child, Markup) else escaped(child) for child in children if child))


def escaped(text: str) -> Markup:
    """Text as HTML that shows it, in its own direction, with what cannot be seen as escapes."""
    return Markup(html.escape(plain(text)))


def _attribute(name: str, value: str | bool | None) -> str:
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(plain(str(value)))}"'
