"""The picture of a criterion: effect, interval, margin, null, control, the paper's number, units.

It is drawn once, as shapes on an axis (`draw_criterion`), and written twice: as SVG into the page
(templates/picture.svg), and by matplotlib as PDF (`claim_figure`). Across it places are percent;
words have a size of their own, so that a picture is as wide as the page, and its words as large on
a phone as on a screen.

The axis spans effect, interval, margin and null, and the values of units. Control and the paper's
numbers stand on it where they are near enough not to squeeze the rest; else they are named as off
the axis.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from anchorwatch.figures.figure import Figure
from anchorwatch.figures.style import COLUMN, NULL, PALETTE, SMALL, look, printable, sheet
from anchorwatch.studies.claim import Criterion
from anchorwatch.studies.report.text import number
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, JudgedClaim

MOST_UNITS = 200
"""Units that are drawn as points each."""
FEWEST_KINDS = 4
"""Values that take fewer (right or wrong, less the same) make no picture as points."""
_PAD = 0.06
_LEFT, _RIGHT = 3.0, 97.0
"""Percent of the width between which the axis is."""
_BAR, _UNITS, _AXIS, _NAMES = 34.0, 52.0, 64.0, 94.0
"""Heights of interval, units, axis and the first row of names, in pixels."""
_ROW, _NEAR = 14.0, 26.0
"""Of names: the height of a row, and how near (percent) two may be in it."""
_INCHES = 0.0085
"""Of a pixel, in PDF."""
_LETTERS = 66
"""Of a title that is as wide as a column."""


@dataclass(frozen=True)
class Marks:
    """One criterion, as marks on an axis from `low` to `high`."""

    low: float
    high: float
    effect: float
    interval: tuple[float, float]
    """NaN where there is none."""
    region: tuple[float, float]
    """Where the claim holds, within the axis."""
    limits: tuple[float, ...]
    """Ends of the region that are margins."""
    named: tuple[tuple[str, float], ...] = ()
    """null, control and the paper's numbers that are on the axis."""
    off: tuple[tuple[str, float], ...] = ()
    """Those that are not."""
    values: tuple[float, ...] = ()
    """Of units."""

    @property
    def lies(self) -> str:
        """Where the interval is: supported, refuted or undecided, were this criterion alone."""
        (low, high), (bottom, top) = self.interval, self.region
        if math.isnan(low):
            return UNDECIDED
        inside_low = low > bottom or bottom not in self.limits
        inside_high = high < top or top not in self.limits
        if inside_low and inside_high:
            return SUPPORTED
        beyond = (high <= bottom and bottom in self.limits) or (low >= top and top in self.limits)
        return REFUTED if beyond else UNDECIDED

    def at(self, value: float) -> float:
        """Where a value is on the axis: 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def marks(judged: JudgedClaim, criterion: Criterion) -> Marks:
    """From what a criterion announced and what was measured."""
    # 1. what must be on the axis
    row = judged.criterion_row(criterion)
    limits = tuple(bound for bound in criterion.region if math.isfinite(bound))
    interval = (float(row["low"]), float(row["high"]))
    values = _unit_values(judged, criterion)
    core = _finite([row["effect"], *interval, *limits, *values])
    # 2. what may be, where it is near enough
    named = [("null", row["null"]), ("control", row["control"])]
    named += [(f"paper, {who}", value) for who, value in criterion.published.items()]
    low, high, kept, off = min(core), max(core), [], []
    reach = {"null": 4.0, "control": 1.0}
    for name, value in named:
        if not math.isfinite(value):
            continue
        span = (high - low) or abs(high) or 1.0
        room = reach.get(name, 2.0) * span
        if low - room <= value <= high + room:
            kept.append((name, float(value)))
            low, high = min(low, value), max(high, value)
        else:
            off.append((name, float(value)))
    # 3. a little room at either end
    pad = _PAD * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad
    inside = (max(low, criterion.region[0]), min(high, criterion.region[1]))
    rest = tuple(kept), tuple(off), values
    return Marks(low, high, float(row["effect"]), interval, inside, limits, *rest)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two, at least two and at most `most`.

    >>> ticks(-0.03, 0.41)
    [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * by for by in (1, 2, 5, 10, 20) if _count(low, high, size * by) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round((first + index) * step, 12) + 0.0 for index in range(_count(low, high, step))]


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _unit_values(judged: JudgedClaim, criterion: Criterion) -> tuple[float, ...]:
    assert judged.finding is not None
    values = judged.finding.measured[criterion.name].estimate.values
    few = len(np.unique(np.round(values, 12))) < FEWEST_KINDS
    return () if few or len(values) > MOST_UNITS else values


def _finite(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]


@dataclass(frozen=True)
class Shape:
    """A rectangle, line, circle or word: x in percent of the width, y in pixels from the top."""

    kind: str
    style: str
    """What it stands for: the page's style sheet and `_ink` say how that looks."""
    x: float
    y: float
    x2: float = 0.0
    y2: float = 0.0
    """The other end of a line or rectangle."""
    size: float = 0.0
    """Radius of a circle."""
    words: str = ""
    anchor: str = "middle"


@dataclass(frozen=True)
class Picture:
    """Shapes of one criterion, in the order they are drawn."""

    shapes: tuple[Shape, ...]
    height: float
    lies: str


def draw_criterion(judged: JudgedClaim, criterion: Criterion) -> Picture:
    """One criterion as a picture with an axis."""
    shown = marks(judged, criterion)
    names = _place_names(shown)
    height = _NAMES + _ROW * max((row for row, *_ in names), default=-1) + 8
    shapes = [*_region(shown, 0, _AXIS), *_axis(shown)]
    shapes += [  # units in two rows, so that neighbours are told apart
        Shape("circle", "unit", _x(shown, value), _UNITS + 3.0 * (index % 2), size=2)
        for index, value in enumerate(sorted(shown.values))
    ]
    for row, words, percent, share in names:
        shapes += _name(row, words, percent, share)
    shapes += _bar(shown, _BAR, 5)
    if math.isfinite(shown.effect):
        x, anchor = _x(shown, shown.effect), _anchor(shown.at(shown.effect))
        words = number(shown.effect)
        shapes.append(Shape("text", "value", x, _BAR - 9, words=words, anchor=anchor))
    return Picture(tuple(shapes), height, shown.lies)


def draw_small(judged: JudgedClaim) -> Picture | None:
    """The binding criterion without words, for a table that has the numbers beside it."""
    binding = judged.binding_criterion
    if binding is None:
        return None
    whole = marks(judged, binding)
    shown = _finite([whole.effect, *whole.interval, *whole.limits])
    pad = 0.12 * ((max(shown) - min(shown)) or 1.0)
    low, high = min(shown) - pad, max(shown) + pad
    region = max(low, binding.region[0]), min(high, binding.region[1])
    inner = replace(whole, low=low, high=high, region=region, named=(), off=(), values=())
    shapes = [*_region(inner, 0, 20, named=False), *_bar(inner, 10, 3)]
    return Picture(tuple(shapes), 20, judged.says)


def _x(shown: Marks, value: float) -> float:
    return _percent(min(max(shown.at(value), 0.0), 1.0))


def _percent(share: float) -> float:
    return _LEFT + share * (_RIGHT - _LEFT)


def _region(shown: Marks, top: float, bottom: float, *, named: bool = True) -> list[Shape]:
    """The shaded region, its name and its margins."""
    low, high = shown.region
    shapes = [Shape("rect", "region", _x(shown, low), top, _x(shown, high), bottom)]
    if named:
        wide = shown.at(high) - shown.at(low)
        words = "the claim holds here" if wide > 0.3 else "holds" if wide > 0.12 else ""
        shapes.append(Shape("text", "where", _x(shown, (low + high) / 2), 11, words=words))
    for limit in shown.limits:
        x = _x(shown, limit)
        shapes.append(Shape("line", "limit", x, top, x, bottom))
    return shapes


def _axis(shown: Marks) -> list[Shape]:
    shapes = [Shape("line", "axis", _LEFT, _AXIS, _RIGHT, _AXIS)]
    for value in ticks(shown.low, shown.high):
        x, words = _x(shown, value), f"{value:.6g}".replace("-", "−")
        shapes.append(Shape("line", "axis", x, _AXIS, x, _AXIS + 4))
        shapes.append(Shape("text", "tick", x, _AXIS + 15, words=words))
    return shapes


def _bar(shown: Marks, y: float, cap: float) -> list[Shape]:
    """The interval with its ends, and the effect."""
    low, high = shown.interval
    shapes = []
    if math.isfinite(low):
        ends = _x(shown, low), _x(shown, high)
        shapes.append(Shape("line", "bar", ends[0], y, ends[1], y))
        shapes += [Shape("line", "bar", end, y - cap, end, y + cap) for end in ends]
    if math.isfinite(shown.effect):
        shapes.append(Shape("circle", "dot", _x(shown, shown.effect), y, size=4))
    return shapes


def _place_names(shown: Marks) -> list[tuple[int, str, float, float]]:
    """(row, name, percent, share) of all that is named under the axis, so that none overlap."""
    named = [("margin", value) for value in shown.limits] + list(shown.named)
    rows: list[list[float]] = []
    placed = []
    for name, value in sorted(named, key=lambda pair: pair[1]):
        share = shown.at(value)
        percent = _percent(share)
        free = (i for i, row in enumerate(rows) if all(abs(percent - x) > _NEAR for x in row))
        row = next(free, len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(percent)
        placed.append((row, f"{name} {number(value)}", percent, share))
    return placed


def _name(row: int, words: str, percent: float, share: float) -> list[Shape]:
    """A name under the axis, and its line above; a margin has its line already."""
    kind, y = words.partition(" ")[0].rstrip(","), _NAMES + _ROW * row
    top = 18.0 if kind in ("null", "margin") else _BAR - 8
    label = Shape("text", f"name {kind}", percent, y, words=words, anchor=_anchor(share))
    line = Shape("line", kind, percent, top, percent, _AXIS)
    return [label] if kind == "margin" else [line, label]


def _anchor(share: float) -> str:
    return "start" if share < 0.15 else "end" if share > 0.85 else "middle"


@look()
def claim_figure(judged: JudgedClaim) -> Figure:
    """A panel for each criterion of a claim that was run, as in the page, for a paper."""
    criteria = judged.claim.criteria
    titles = [textwrap.wrap(printable(f"{c.name}: {c.statistic}"), _LETTERS) for c in criteria]
    pictures = [draw_criterion(judged, criterion) for criterion in criteria]
    tallest = max(picture.height for picture in pictures)
    height = 0.35 + sum(_INCHES * tallest + 0.1 * len(lines) for lines in titles)
    drawn, axes = sheet(COLUMN, height, rows=len(criteria))
    for ax, picture, lines in zip(axes, pictures, titles, strict=True):
        for shape in picture.shapes:
            _ink(ax, shape, picture.lies)
        ax.set(xlim=(0, 100), ylim=(tallest, 0))
        ax.set_axis_off()
        ax.set_title("\n".join(lines), fontsize=SMALL)
    words = f"{judged.claim.id}: {judged.says} (shaded: where the claim holds)"
    drawn.suptitle(words, fontsize=SMALL, x=0.01, ha="left")
    table = pd.DataFrame([judged.criterion_row(criterion) for criterion in criteria])
    settings = {"claim": judged.claim.id, "verdict": judged.says}
    return Figure(drawn, table, name="claim", settings=settings, traces=[])


_INK = {"where": PALETTE[2], "limit": PALETTE[2], "margin": PALETTE[2], "paper": PALETTE[3]}
_INK |= {"value": PALETTE[-1], "unit": PALETTE[-1]}
"""Colours on paper; what is not named here is grey, interval and effect have the verdict's."""
_VERDICT_INK = {SUPPORTED: PALETTE[0], REFUTED: PALETTE[1], UNDECIDED: NULL}
_WIDTH = {"bar": 1.2, "limit": 0.8, "axis": 0.5}
_DASHES = {"null": (0, (4, 2)), "control": (0, (1, 1.5))}
_ALIGN = {"start": "left", "middle": "center", "end": "right"}


def _ink(ax: Axes, shape: Shape, lies: str) -> None:
    """One shape, by matplotlib."""
    style = shape.style.rpartition(" ")[2]
    colour = _VERDICT_INK[lies] if style in ("bar", "dot") else _INK.get(style, NULL)
    if shape.kind == "rect":
        corner, size = (shape.x, shape.y), (shape.x2 - shape.x, shape.y2 - shape.y)
        ax.add_patch(Rectangle(corner, *size, color=PALETTE[2], alpha=0.14, linewidth=0))
    elif shape.kind == "line":
        dashes, width = _DASHES.get(style, "-"), _WIDTH.get(style, 0.7)
        ax.plot(
            [shape.x, shape.x2],
            [shape.y, shape.y2],
            color=colour,
            linestyle=dashes,
            linewidth=width,
        )
    elif shape.kind == "circle":
        alpha = 0.35 if style == "unit" else 1.0
        ax.plot([shape.x], [shape.y], "o", color=colour, alpha=alpha, ms=shape.size, mew=0)
    elif shape.words:
        words, side = printable(shape.words, 30), _ALIGN[shape.anchor]
        ax.text(shape.x, shape.y, words, color=colour, fontsize=SMALL - 1, ha=side)
