"""Token text on paper: every character visible and in the font, clipped, never overlapping.

Tokens are foreign text. What the font lacks becomes a box; a token of nothing else is spelled as
U+4F60, so that no label is empty of meaning and matplotlib never warns of a missing glyph.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from math import ceil
from typing import Literal

from matplotlib import font_manager
from matplotlib.axes import Axes

from anchorwatch.errors import SpecError
from anchorwatch.figures.style import ROLE_COLOURS, SMALL
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import ABSENT, MASK_MARK, MASKED, Trace

LONGEST = 12
BOX, SPACE, ELLIPSIS = "□", "␣", "…"
_FONT = "DejaVu Sans"
_PITCH = 1.22
"""Room for a label, in letter sizes."""


def printable(text: str, longest: int | None = None) -> str:
    """Foreign text as a figure can show it: marks for what is invisible, boxes for what is not had.

    >>> printable("a\\nb\\x1b[31m")
    'a⏎b·[31m'
    """
    flat = one_line(text)
    shown = "".join(char if _drawable(char) else BOX for char in flat)
    if shown.strip(BOX + " ") == "" and BOX in shown:
        first = next(char for char in text if not all(map(_drawable, one_line(char))))
        lead, rest = shown[: -len(shown.lstrip())], shown.strip()
        shown = f"{lead}U+{ord(first):04X}{ELLIPSIS if len(rest) > 1 else ''}"
    if longest is not None and len(shown) > longest:
        shown = shown[: longest - 1] + ELLIPSIS
    return shown


def token_label(token: str, longest: int = LONGEST) -> str:
    """A token on an axis: its spaces visible, a line break as its mark, clipped.

    >>> token_label(" anchor"), token_label("\\n\\n"), token_label("")
    ('␣anchor', '⏎⏎', '')
    """
    return printable(token, longest).replace(" ", SPACE)


def token_labels(trace: Trace, frame: int = -1) -> list[str]:
    """The tokens of a frame as labels: masked positions are a mark, absent ones are empty."""
    ids, roles = trace.canvas[frame].tolist(), trace.role[frame].tolist()
    said = {MASKED: MASK_MARK, ABSENT: ""}
    return [
        said.get(role, token_label(trace.token(token)))
        for token, role in zip(ids, roles, strict=True)
    ]


def label_axis(
    ax: Axes,
    labels: Sequence[str],
    *,
    along: Literal["x", "y"] = "x",
    name: str = "token",
    most: int | None = None,
    fresh: Collection[int] = (),
) -> int:
    """Name positions 0, 1, ... of an axis; returns k where only one in k has room for its label.

    `most` labels at the most, by default what fits the axis. `fresh` positions are named first and
    stand on yellow, as in the film strip.
    """
    if most is not None and most < 1:
        raise SpecError(f"most={most} labels name nothing: expected at least 1")
    every = max(1, ceil(len(labels) / (most or room(ax, along))))
    axis = ax.xaxis if along == "x" else ax.yaxis
    ticks = _spread([*sorted(fresh), *range(0, len(labels), every)], every)
    axis.set_ticks(ticks, labels=[labels[position] for position in ticks], parse_math=False)
    axis.set_tick_params(length=1.2, labelsize=SMALL, labelrotation=90 if along == "x" else 0)
    for position, text in zip(ticks, axis.get_ticklabels(), strict=True):
        if position in fresh:
            box = {"facecolor": ROLE_COLOURS["fresh"], "edgecolor": "none", "pad": 0.6}
            text.set_bbox(box)
    axis.set_label_text(name if every == 1 else f"{name} (1 in {every} named)")
    return every


def _spread(wanted: Sequence[int], apart: int) -> list[int]:
    """Of the wanted positions those that leave room for the ones before them, in order."""
    kept: list[int] = []
    for position in wanted:
        if all(abs(position - other) >= apart for other in kept):
            kept.append(position)
    return sorted(kept)


def room(ax: Axes, along: Literal["x", "y"]) -> int:
    """How many labels fit side by side, before the layout has settled."""
    box, sheet = ax.get_position(), ax.figure
    width, height = sheet.get_figwidth(), sheet.get_figheight()  # type: ignore[union-attr]
    inches = box.width * width if along == "x" else box.height * height
    return max(1, int(72 * inches / (_PITCH * SMALL)))


def _drawable(char: str) -> bool:
    return char == " " or ord(char) in _glyphs()


@cache
def _glyphs() -> frozenset[int]:
    font = font_manager.get_font(font_manager.findfont(_FONT))
    return frozenset(font.get_charmap())
