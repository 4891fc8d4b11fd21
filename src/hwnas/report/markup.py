"""HTML that cannot forget to escape: text becomes safe as it is put into an element."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Html", "element", "join"]

VOID = frozenset({"br", "col", "meta"})


class Html(str):
    """Markup that is safe to show as it is; any other string is text."""

    __slots__ = ()


def join(parts: Iterable[str], separator: str = "") -> Html:
    """Put markup and text one after another, the text escaped."""
    return Html(
        separator.join(part if isinstance(part, Html) else html.escape(part) for part in parts)
    )


def element(name: str, /, *children: str, **attributes: str | int | None) -> Html:
    """An element such as ``element("td", "a < b", class_="number")``.

    Args:
        name: Of the element.
        *children: `Html` as it is, other strings escaped.
        **attributes: Values are escaped and None leaves the attribute out; in names a trailing
            underscore is dropped and others become hyphens.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")
