"""Flow between two columns of named blocks, as bands whose width is the share that flows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path

from anchorwatch.errors import SpecError
from anchorwatch.figures.labels import printable
from anchorwatch.figures.style import SMALL, colours

MOST_BLOCKS = 7
_GAP, _BLOCK = 0.03, 0.035
"""Between blocks, and the width of one, as shares of the panel."""


def bands(
    ax: Axes,
    flow: np.ndarray,
    *,
    sources: Sequence[str],
    targets: Sequence[str],
    titles: tuple[str, str] = ("from", "to"),
) -> None:
    """What flows [source, target] from the left column to the right, coloured by source.

    A source without numbers (NaN: it had no queries) has no block, and its name says so. More than
    seven blocks a side are a matter for `heat`.
    """
    values = _check_flow(flow, sources, targets)
    total = np.nansum(values)
    there = np.nan_to_num(values) / total
    left, right = _stack_heights(there.sum(axis=1)), _stack_heights(there.sum(axis=0))
    shades = colours(list(range(len(sources))))
    leave, arrive = left.copy(), right.copy()
    for source, target in np.ndindex(*there.shape):
        if (width := there[source, target]) > 0:
            shape = _ribbon(float(leave[source]), float(arrive[target]), width)
            ax.add_patch(PathPatch(shape, facecolor=shades[source], alpha=0.5, linewidth=0))
        leave[source] += there[source, target]
        arrive[target] += there[source, target]
    empty = np.isnan(values).all(axis=1)
    said = [
        f"{name} (no queries)" if none else None for name, none in zip(sources, empty, strict=True)
    ]
    _blocks(ax, left, there.sum(axis=1), names=sources, said=said, side=0, shades=shades)
    _blocks(ax, right, there.sum(axis=0), names=targets, said=[None] * len(targets), side=1)
    for place, title, along in ((0.0, titles[0], "left"), (1.0, titles[1], "right")):
        ax.text(place, -0.02, title, ha=along, va="bottom", fontweight="bold", fontsize=SMALL)
    deepest = max(left[-1] + there.sum(axis=1)[-1], right[-1] + there.sum(axis=0)[-1])
    ax.set(xlim=(0, 1), ylim=(deepest + 0.01, -0.03))
    ax.set_axis_off()


def _check_flow(flow: np.ndarray, sources: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    values = np.asarray(flow, dtype=np.float64)
    if values.shape != (len(sources), len(targets)):
        raise SpecError(
            f"the flow has shape {values.shape}: expected [source, target], "
            f"{len(sources)} x {len(targets)} for these names"
        )
    if max(values.shape) > MOST_BLOCKS:
        raise SpecError(
            f"{max(values.shape)} blocks a side cannot be told apart: "
            f"up to {MOST_BLOCKS} are drawn as bands, more as a heat map"
        )
    if np.nanmin(values, initial=0.0) < 0 or np.nansum(values) <= 0:
        raise SpecError("a flow is made of shares: none below zero, and some above it")
    return values


def _stack_heights(heights: np.ndarray) -> np.ndarray:
    """Where each block begins, from the top; one that is empty still has room for its name."""
    room = np.maximum(heights, 0.02)
    return np.concatenate([[0.0], np.cumsum(room + _GAP)[:-1]])


def _ribbon(start: float, end: float, width: float) -> Path:
    near, far, middle = _BLOCK, 1 - _BLOCK, 0.5
    points = [
        *((near, start), (middle, start), (middle, end), (far, end)),
        *(
            (far, end + width),
            (middle, end + width),
            (middle, start + width),
            (near, start + width),
        ),
        (near, start),
    ]
    curve = [Path.CURVE4] * 3
    return Path(points, [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY])


def _blocks(
    ax: Axes,
    starts: np.ndarray,
    heights: np.ndarray,
    *,
    names: Sequence[str],
    said: Sequence[str | None],
    side: int,
    shades: dict[int, str] | None = None,
) -> None:
    for index, (start, height) in enumerate(zip(starts, heights, strict=True)):
        corner = (0.0 if side == 0 else 1 - _BLOCK, start)
        face = "#6b6b6b" if shades is None else shades[index]
        ax.add_patch(Rectangle(corner, _BLOCK, height, facecolor=face, linewidth=0))
        text = said[index] or f"{names[index]}  {height:.0%}"
        ax.text(
            -0.015 if side == 0 else 1.015,
            start + max(height, 0.02) / 2,
            printable(text, 30),
            ha="right" if side == 0 else "left",
            va="center",
            fontsize=SMALL,
        )
