"""Pictures of a criterion as SVG: interval, effect, margin, null, the paper's number, the units.

Places are percentages and letters have a size of their own, so that a picture is as wide as the
page, and its words as large on a phone as on a screen. Colours are those of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anchorwatch.studies.claim import Criterion
from anchorwatch.studies.report.marks import Marks, marks, ticks
from anchorwatch.studies.report.markup import Markup, join_markup, tag
from anchorwatch.studies.report.sentences import describe_target, interval, number
from anchorwatch.studies.verdict import JudgedClaim

_LEFT, _RIGHT = 3.0, 97.0
_BAR, _UNITS, _AXIS, _NAMES = 34.0, 52.0, 64.0, 94.0
"""Heights of interval, units, axis and the first row of names, in pixels."""
_ROW, _NEAR = 14.0, 26.0
"""Of names: the height of a row, and how near (percent) two may be in it."""


def forest(one: JudgedClaim, criterion: Criterion) -> Markup:
    """One criterion as a picture with an axis."""
    found = marks(one, criterion)
    rows = _names(found)
    height = _NAMES + _ROW * max((row for row, _, _, _ in rows), default=-1) + 8
    parts = [_draw_region(found), *_axis(found), *_points(found.values, found)]
    parts += [_name(*row) for row in rows]
    parts += _effect(found)
    said = _alt(one, criterion)
    attributes = {"class": f"forest {found.lies}", "width": "100%", "height": height}
    return tag("svg", attributes | {"role": "img", "aria-label": said}, *parts)


def mini(one: JudgedClaim) -> Markup:
    """The binding criterion without words, for a table that has the numbers beside it."""
    binding = one.binding
    if binding is None:
        return Markup("")
    found = marks(one, binding)
    low, high = found.interval
    shown = [value for value in (found.effect, low, high, *found.limits) if math.isfinite(value)]
    pad = 0.12 * ((max(shown) - min(shown)) or 1.0)
    inner = Marks(
        min(shown) - pad,
        max(shown) + pad,
        found.effect,
        found.interval,
        (max(min(shown) - pad, binding.region[0]), min(max(shown) + pad, binding.region[1])),
        found.limits,
        (),
        (),
        (),
    )
    parts = [_region(inner, 0, 20), *(_limit(inner, at, 0, 20) for at in found.limits)]
    parts += _bar(inner, 10, 3)
    attributes = {"class": f"forest mini {one.says}", "width": 110, "height": 20}
    return tag("svg", attributes | {"aria-hidden": "true"}, *parts)


def _alt(one: JudgedClaim, criterion: Criterion) -> str:
    row = one.criterion_row(criterion)
    return (
        f"{criterion.name}: {number(row['effect'])}, {interval(row['low'], row['high'])}; "
        f"the claim needs it {describe_target(criterion)}"
    )


def _x(found: Marks, value: float) -> str:
    share = min(max(found.at(value), 0.0), 1.0)
    return f"{_LEFT + share * (_RIGHT - _LEFT):.2f}%"


def _region(found: Marks, top: float, height: float) -> Markup:
    low, high = (min(max(found.at(end), 0.0), 1.0) for end in found.region)
    width = f"{max(high - low, 0.0) * (_RIGHT - _LEFT):.2f}%"
    place = {"x": _x(found, found.region[0]), "y": top, "width": width, "height": height}
    return tag("rect", {"class": "region"} | place)


def _limit(found: Marks, value: float, top: float, bottom: float) -> Markup:
    at = _x(found, value)
    return tag("line", {"class": "limit", "x1": at, "x2": at, "y1": top, "y2": bottom})


def _draw_region(found: Marks) -> Markup:
    """The shaded region, its margins and its name."""
    low, high = found.region
    middle = _x(found, (low + high) / 2)
    wide = found.at(high) - found.at(low)
    words = "the claim holds here" if wide > 0.3 else "holds" if wide > 0.12 else ""
    name = tag("text", {"class": "where", "x": middle, "y": 11, "text-anchor": "middle"}, words)
    limits = [_limit(found, at, 0, _AXIS) for at in found.limits]
    return join_markup(_region(found, 0, _AXIS), name, *limits)


def _axis(found: Marks) -> list[Markup]:
    ends = {"x1": f"{_LEFT}%", "x2": f"{_RIGHT}%", "y1": _AXIS, "y2": _AXIS}
    parts = [tag("line", {"class": "axis"} | ends)]
    for value in ticks(found.low, found.high):
        at = _x(found, value)
        place = {"x1": at, "x2": at, "y1": _AXIS, "y2": _AXIS + 4}
        parts.append(tag("line", {"class": "axis"} | place))
        spelled = {"class": "tick", "x": at, "y": _AXIS + 15, "text-anchor": "middle"}
        parts.append(tag("text", spelled, f"{value:.6g}".replace("-", "−")))
    return parts


def _points(values: Sequence[float], found: Marks) -> list[Markup]:
    """Units, in two rows so that neighbours are told apart."""
    return [
        tag(
            "circle",
            {"class": "unit", "cx": _x(found, value), "cy": _UNITS + 3.0 * (at % 2), "r": 2},
        )
        for at, value in enumerate(sorted(values))
    ]


def _bar(found: Marks, y: float, cap: float) -> list[Markup]:
    low, high = found.interval
    parts = []
    if math.isfinite(low):
        a, b = _x(found, low), _x(found, high)
        parts.append(tag("line", {"class": "bar", "x1": a, "x2": b, "y1": y, "y2": y}))
        for end in (a, b):
            place = {"x1": end, "x2": end, "y1": y - cap, "y2": y + cap}
            parts.append(tag("line", {"class": "bar"} | place))
    if math.isfinite(found.effect):
        place = {"cx": _x(found, found.effect), "cy": y, "r": 4}
        parts.append(tag("circle", {"class": "dot"} | place))
    return parts


def _effect(found: Marks) -> list[Markup]:
    """Interval and effect, with the value above."""
    parts = _bar(found, _BAR, 5)
    if math.isfinite(found.effect):
        share = found.at(found.effect)
        place = {"x": _x(found, found.effect), "y": _BAR - 9, "text-anchor": _anchor(share)}
        parts.append(tag("text", {"class": "value"} | place, number(found.effect)))
    return parts


def _names(found: Marks) -> list[tuple[int, str, float, float]]:
    """(row, name, place in percent, place 0 to 1) of all that is named under the axis."""
    named = [("margin", value) for value in found.limits] + list(found.named)
    held: list[list[float]] = []
    placed = []
    for name, value in sorted(named, key=lambda one: one[1]):
        share = found.at(value)
        percent = _LEFT + share * (_RIGHT - _LEFT)
        free = (at for at, row in enumerate(held) if all(abs(percent - x) > _NEAR for x in row))
        row = next(free, len(held))
        if row == len(held):
            held.append([])
        held[row].append(percent)
        placed.append((row, f"{name} {number(value)}", percent, share))
    return placed


def _name(row: int, words: str, percent: float, share: float) -> Markup:
    """A name under the axis, and its line above."""
    at, y = f"{percent:.2f}%", _NAMES + _ROW * row
    kind = words.partition(" ")[0].rstrip(",")
    top = 18.0 if kind in ("null", "margin") else _BAR - 8
    line = {"class": kind, "x1": at, "x2": at, "y1": top, "y2": _AXIS}
    label = {"class": f"name {kind}", "x": at, "y": y, "text-anchor": _anchor(share)}
    drawn = [] if kind == "margin" else [tag("line", line)]
    return join_markup(*drawn, tag("text", label, words))


def _anchor(share: float) -> str:
    return "start" if share < 0.15 else "end" if share > 0.85 else "middle"
