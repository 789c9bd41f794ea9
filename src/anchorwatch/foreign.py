"""Foreign text made safe to print: what a model, a prompt or a file says never drives a terminal.

No torch and no xarray here: the command line needs it before anything heavy is imported.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 2**28
"""Of a file or a pipe that is read whole; a device may have no end."""
_MARKS = {"\n": "⏎\n", "\t": "⇥", "\r": "␍"}


def read_text(source: Path | BinaryIO, most: int = MOST_BYTES) -> str:
    """UTF-8 text of a file or a pipe, or ValueError where it is none or has no end."""
    if isinstance(source, Path):
        with source.open("rb") as handle:
            return read_text(handle, most)
    raw = source.read(most + 1)
    if len(raw) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return raw.decode("utf-8")


def visible(text: str) -> str:
    """Controls and other invisible characters become marks; line breaks are marked and kept."""
    if text.isprintable():
        return text
    return "".join(_MARKS.get(c, "·" if _is_invisible(c) else c) for c in text)


def one_line(text: str) -> str:
    """The same on one line: a line break is only its mark."""
    return visible(text).replace("\n", "")


def _is_invisible(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind[0] == "C" or kind in ("Zl", "Zp")
