"""HTML and SVG as values: text is escaped unless it is `Markup` already, so none gets through raw.

Foreign text (names of models, tokens, paths) is made visible first: no control, no mark that turns
the direction of what follows, reaches a page.
"""

from __future__ import annotations

import html
from collections.abc import Mapping

from anchorwatch.trace.escape import one_line

Attributes = Mapping[str, object]
_VOID = frozenset(("meta", "input", "br", "rect", "line", "circle", "path"))


class Markup(str):
    """What is markup already, and is not escaped again."""

    __slots__ = ()


def text(words: str) -> Markup:
    """Text for a page, on one line.

    >>> text("<b> & \\x1b")
    '&lt;b&gt; &amp; ·'
    """
    return Markup(html.escape(one_line(words), quote=True))


def join_markup(*parts: str, between: str = "") -> Markup:
    """Parts one after another."""
    return Markup(between.join(_safe(part) for part in parts if part))


def tag(name: str, attributes: Attributes | None = None, *parts: str) -> Markup:
    """An element: True is an attribute without a value, None and False are none.

    >>> tag("p", {"class": "a", "hidden": True}, "x < y", tag("b", None, "z"))
    '<p class="a" hidden>x &lt; y<b>z</b></p>'
    """
    opened = f"<{name}{_format_attributes(attributes or {})}>"
    if name in _VOID:
        return Markup(opened if name in ("meta", "input", "br") else f"{opened[:-1]}/>")
    return Markup(f"{opened}{''.join(_safe(part) for part in parts)}</{name}>")


def _safe(part: str) -> str:
    return part if isinstance(part, Markup) else text(part)


def _format_attributes(attributes: Attributes) -> str:
    said = ""
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        said += f" {name}"
        if value is not True:
            words = f"{value:.6g}" if isinstance(value, float) else str(value)
            said += f'="{text(words)}"'
    return said
