"""Marks made of cells: heat maps with absent cells hatched, layer x head grids, hatched sinks.

Cells are vector up to a size and pixels at 300 dpi beyond it. Row 0 is at the top, and cells are
centred on whole numbers.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from anchorwatch.errors import SpecError
from anchorwatch.figures.style import (
    ABSENT_FACE,
    ABSENT_HATCH,
    ABSENT_LINE,
    DIFFERENCE,
    MAGNITUDE,
    SINK_HATCH,
    SMALL,
    plain_log,
)

MOST_VECTOR_CELLS = 2_500


def heat(
    ax: Axes,
    matrix: np.ndarray,
    *,
    limits: tuple[float, float],
    unit: str | None,
    kind: Literal["magnitude", "difference"] = "magnitude",
    log: bool = False,
) -> QuadMesh:
    """A matrix [row, column] as colour between `limits`, NaN cells hatched as absent.

    The colour bar is labelled with `unit`; with None there is none. Values beyond the limits are
    said by an arrow on the bar. A difference has its middle at zero.
    """
    low, high = _checked_limits(limits, kind, log)
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise SpecError(f"a heat map needs a matrix [row, column], not shape {values.shape}")
    rows, columns = values.shape
    mesh = ax.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        np.ma.masked_invalid(values),
        cmap=colormaps[MAGNITUDE if kind == "magnitude" else DIFFERENCE],
        norm=LogNorm(low, high) if log else Normalize(low, high),
        edgecolors="face",
        linewidth=0.15,  # closes the hairlines that PDF viewers leave between cells
        antialiased=False,
        rasterized=values.size > MOST_VECTOR_CELLS,
    )
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    for side in ("top", "right"):
        ax.spines[side].set_visible(True)
    if np.isnan(values).any():
        _absent_ground(ax)
    if unit is not None:
        _bar(ax, mesh, unit, log=log)
    return mesh


def limits_of(matrix: np.ndarray) -> tuple[float, float]:
    """From zero to the largest value; to one where there is none."""
    finite = matrix[np.isfinite(matrix)]
    largest = float(finite.max()) if finite.size else 0.0
    return 0.0, largest if largest > 0 else 1.0


def even_limits_of(matrix: np.ndarray) -> tuple[float, float]:
    """As far below zero as above it."""
    _, largest = limits_of(np.abs(matrix))
    return -largest, largest


def whole_ticks(ax: Axes, *, x: bool = True, y: bool = True) -> None:
    """Ticks at whole numbers only."""
    for axis, wanted in ((ax.xaxis, x), (ax.yaxis, y)):
        if wanted:
            axis.set_major_locator(MaxNLocator(nbins="auto", integer=True, min_n_ticks=1))


def hatch_cells(ax: Axes, marked: np.ndarray, mesh: QuadMesh) -> int:
    """Hatch marked cells of a heat map, dark on light and light on dark; returns how many."""
    rows, columns = np.nonzero(marked)
    if not rows.size:
        return 0
    values: np.ndarray = np.ma.filled(np.ma.asarray(mesh.get_array()).reshape(marked.shape), np.nan)
    shades = mesh.to_rgba(values[rows, columns])
    light = shades[:, :3] @ np.array([0.299, 0.587, 0.114]) > 0.5
    for chosen, ink in ((light, "black"), (~light, "white")):
        corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])
        centres = np.stack([columns[chosen], rows[chosen]], axis=-1)
        if len(centres):
            ax.add_collection(
                PolyCollection(
                    list(centres[:, None, :] + 0.94 * corners),
                    facecolor="none",
                    edgecolor=ink,
                    linewidth=0.5,
                    hatch=SINK_HATCH,
                ),
                autolim=False,
            )
    return int(rows.size)


def absent_patch(text: str = "absent") -> Patch:
    """How the legend says that a cell does not exist."""
    return Patch(
        facecolor=ABSENT_FACE,
        edgecolor=ABSENT_LINE,
        hatch=ABSENT_HATCH * 2,
        label=text,
        linewidth=0,
    )


def sink_patch(text: str = "sink") -> Patch:
    """How the legend says that a cell is a sink."""
    return Patch(facecolor="none", edgecolor="black", hatch=SINK_HATCH, label=text)


def grid(
    ax: Axes,
    table: pd.DataFrame,
    *,
    limits: tuple[float, float],
    unit: str | None,
    row: str = "layer",
    column: str = "head",
    kind: Literal["magnitude", "difference"] = "magnitude",
) -> QuadMesh:
    """A tidy table with one `value` for each row and column as a heat map; the rest is absent."""
    require(table, row, column, "value")
    if table.duplicated([row, column]).any():
        raise SpecError(
            f"the table has several values for one {row} and {column}: "
            f"take a mean by {row} and {column} first"
        )
    wide = table.pivot(index=row, columns=column, values="value")
    full = wide.reindex(
        index=range(int(table[row].max()) + 1), columns=range(int(table[column].max()) + 1)
    )
    mesh = heat(ax, full.to_numpy(dtype=np.float64), limits=limits, unit=unit, kind=kind)
    whole_ticks(ax)
    ax.set(xlabel=column.replace("_", " "), ylabel=row.replace("_", " "))
    return mesh


def require(table: pd.DataFrame, *columns: str) -> None:
    """A table that lacks a column is refused, and its columns named."""
    if missing := [name for name in columns if name not in table.columns]:
        held = ", ".join(map(str, table.columns)) or "none"
        raise SpecError(f"the table has no column {', '.join(missing)}: its columns are {held}")
    if not len(table):
        raise SpecError("the table has no rows: there is nothing to draw")


def _checked_limits(limits: tuple[float, float], kind: str, log: bool) -> tuple[float, float]:
    low, high = limits
    if kind not in ("magnitude", "difference"):
        raise SpecError(f"kind={kind!r} is unknown: expected 'magnitude' or 'difference'")
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise SpecError(f"limits={limits} are no range: expected two numbers, the smaller first")
    if kind == "difference" and low != -high:
        raise SpecError(
            f"limits={limits} have their middle elsewhere: a difference is even, (-x, x)"
        )
    if log and low <= 0:
        raise SpecError(f"limits={limits} reach zero: a log scale begins above it")
    return low, high


def _absent_ground(ax: Axes) -> None:
    """The ground of the axes, which shows where no cell is."""
    ax.patch.set(
        facecolor=ABSENT_FACE, hatch=ABSENT_HATCH, edgecolor=ABSENT_LINE, linewidth=0, visible=True
    )


def _bar(ax: Axes, mesh: QuadMesh, unit: str, *, log: bool) -> None:
    values: np.ndarray = np.ma.compressed(np.ma.asarray(mesh.get_array()))
    low, high = mesh.get_clim()
    under, over = bool((values < low).any()), bool((values > high).any())
    sides = {(True, True): "both", (True, False): "min", (False, True): "max"}
    bar = ax.figure.colorbar(
        mesh, ax=ax, pad=0.015, aspect=24, extend=sides.get((under, over), "neither")
    )
    bar.set_label(unit)
    bar.outline.set_linewidth(0.5)
    bar.ax.tick_params(labelsize=SMALL, width=0.5, length=2)
    bar.solids.set_rasterized(False)  # type: ignore[union-attr]
    if log:
        plain_log(bar.ax.yaxis)
    else:
        bar.locator = MaxNLocator(nbins=5)
        bar.update_ticks()
