"""Foreign text made safe to print: what a model, a prompt or a file says never drives a terminal.

No torch and no xarray here: the command line needs it before anything heavy is imported.
"""

from __future__ import annotations

import re
import unicodedata

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-](inf|nan)")
_MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"}


def visible(text: str) -> str:
    """Controls and other invisible characters become marks; line breaks are marked and kept."""
    if text.isprintable():
        return text
    return "".join(_MARKS.get(c, "·" if _is_invisible(c) else c) for c in text)


def one_line(text: str) -> str:
    """The same on one line: a line break is only its mark."""
    return visible(text).replace("\n", "")


def csv_cell(text: str) -> str:
    """Text as a cell of a CSV: no spreadsheet runs it, and no terminal obeys it.

    Text that begins like a formula gets an apostrophe before it; a number stays a number.
    Invisible characters become marks, but for line breaks and for tabs inside.

    >>> [csv_cell(text) for text in ("=1+1", "-0.5", "-x", "plain", "a" + chr(27))]
    ["'=1+1", '-0.5', "'-x", 'plain', 'a·']
    """
    begins = text.startswith(_FORMULA) and not _NUMBER.fullmatch(text)
    if not text.isprintable():
        text = "".join("·" if _is_invisible(c) and c not in "\n\t\r" else c for c in text)
        text = text.replace("\r\n", "\n").replace("\r", _MARKS["\r"])
    return f"'{text}" if begins else text


def _is_invisible(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in ("Zl", "Zp")
