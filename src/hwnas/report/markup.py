"""HTML markup with automatic escaping of the text that is put into an element."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Html", "element", "join"]

VOID = frozenset({"br", "col", "meta"})


class Html(str):
    """Markup that needs no escaping; any other string is text."""

    __slots__ = ()


def join(parts: Iterable[str], separator: str = "") -> Html:
    """Concatenate markup and text, with the text escaped."""
    return Html(
        separator.join(part if isinstance(part, Html) else html.escape(part) for part in parts)
    )


def element(name: str, /, *children: str, **attributes: str | int | None) -> Html:
    """Return an HTML element such as ``element("td", "a < b", class_="number")``.

    Args:
        name: Name of the element.
        *children: Contents: `Html` is used unchanged, other strings are escaped.
        **attributes: Attributes. Values are escaped; None leaves an attribute out. In names,
            trailing underscores are dropped and all others become hyphens.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")
