"""How figures look, in one place: colours, sizes, and the settings that hold only while we draw.

Colours are Okabe and Ito's, which people with any colour vision tell apart; roles have the colours
of the film strip. Text never means mathematics here: a token may be `$x_1$`, so log axes take their
numbers from `plain_log`.

Token text is foreign: every character is made visible and in the font, clipped, and labels never
overlap. What the font lacks becomes a box; a token of nothing else is spelled as U+4F60, so that no
label is empty and matplotlib never warns of a missing glyph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import ceil
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import FuncFormatter, NullFormatter

from anchorwatch.errors import SpecError
from anchorwatch.trace.escape import one_line
from anchorwatch.trace.trace import ABSENT, MASK_MARK, MASKED, Trace

COLUMN, PAGE = 3.3, 6.9
"""Widths in inches: one column of a paper, and both."""
TALLEST = 8.5
FONT, SMALL = 7.0, 6.0
"""Sizes in points: of names, and of ticks, tokens and legends."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's colours that show on white, most different first."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MAGNITUDE = "cividis"
"""From nothing to much: perceptually uniform, made for colour blindness."""
DIFFERENCE = "RdBu_r"
"""Less, the same, more; the middle is no difference."""

NULL = "#767676"
ABSENT_FACE, ABSENT_LINE = "#f2f2f2", "#b0b0b0"
ABSENT_HATCH = "////"
SINK_HATCH = "//////"
ROLE_COLOURS = {
    "prompt": "#6b6b6b",
    "special": "#b3b3b3",
    "masked": "#dedede",
    "fresh": "#ffd84d",
    "written": "#00606b",
    "absent": "#ffffff",
}

_LOOK: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": FONT,
    "axes.labelsize": FONT,
    "axes.titlesize": FONT,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.5,
    "axes.linewidth": 0.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": True,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    **{
        f"{axis}tick.major.{key}": value
        for axis in "xy"
        for key, value in {"width": 0.5, "size": 2.0, "pad": 1.5}.items()
    },
    **{
        f"{axis}tick.minor.{key}": value
        for axis in "xy"
        for key, value in {"width": 0.4, "size": 1.2}.items()
    },
    "lines.linewidth": 1.1,
    "lines.markersize": 2.6,
    "patch.linewidth": 0.5,
    "hatch.linewidth": 0.45,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.5,
    "legend.handleheight": 0.8,
    "legend.columnspacing": 1.1,
    "legend.handletextpad": 0.5,
    "legend.borderaxespad": 0.2,
    "legend.borderpad": 0.1,
    "legend.labelspacing": 0.35,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.045,
    "figure.dpi": 100,
    "text.parse_math": False,  # foreign text is text
    "text.usetex": False,
    "pdf.fonttype": 42,  # TrueType: journals refuse Type 3, and text can be selected
    "svg.fonttype": "none",  # text stays text, to search, edit and read aloud; the font may differ
    "svg.hashsalt": "anchorwatch",
}


@contextmanager
def look() -> Iterator[None]:
    """Draw with our settings, whatever the reader's matplotlibrc says; it is restored after.

    As a decorator, `@look()`, it holds for a whole function.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)  # type: ignore[arg-type]
        yield


def sheet(
    width: float,
    height: float,
    *,
    rows: int = 1,
    columns: int = 1,
    ratios: Sequence[float] | None = None,
) -> tuple[Sheet, list[Axes]]:
    """An empty figure of so many inches and its axes, row by row; `ratios` of the column widths."""
    drawn = Sheet(figsize=(width, min(height, TALLEST)), layout="constrained")
    axes = drawn.subplots(rows, columns, squeeze=False, width_ratios=ratios)
    return drawn, list(axes.flat)


def colours(levels: Sequence[Any]) -> dict[Any, str]:
    """A colour for each level: of the palette, or along a map where numbers are more than that."""
    if len(levels) <= len(PALETTE):
        return dict(zip(levels, PALETTE, strict=False))
    if not all(isinstance(level, int | float | np.number) for level in levels):
        raise SpecError(
            f"{len(levels)} kinds cannot be told apart by colour: "
            f"show {len(PALETTE)} or fewer, or colour by a number such as layer"
        )
    shades = matplotlib.colormaps[MAGNITUDE](np.linspace(0.0, 0.88, len(levels)))
    return {level: to_hex(shade) for level, shade in zip(levels, shades, strict=True)}


def plain_log(axis: Axis) -> None:
    """Numbers such as 0.01 and 100 on a log axis, without mathematics in the text."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


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
    marks = {MASKED: MASK_MARK, ABSENT: ""}
    return [
        marks.get(role, token_label(trace.token(token)))
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
