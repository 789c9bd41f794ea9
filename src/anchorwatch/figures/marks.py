"""Marks that figures are made of: heat maps and grids, lines with bands, bars, ribbons, the legend.

Cells are vector up to a size and pixels at 300 dpi beyond it. Row 0 is at the top, and cells are
centred on whole numbers. A tidy table has `value`, and where they are known `null`, `low`, `high`
and `n` (how many prompts). The order of its rows never matters. An interval that does not exist is
not drawn, and the legend says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure as Sheet
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from anchorwatch.errors import SpecError
from anchorwatch.figures.style import (
    ABSENT_FACE,
    ABSENT_HATCH,
    ABSENT_LINE,
    DIFFERENCE,
    MAGNITUDE,
    MARKERS,
    NULL,
    PAGE,
    SINK_HATCH,
    SMALL,
    colours,
    plain_log,
    printable,
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
    # 1. Limits and matrix as they must be.
    low, high = _checked_limits(limits, kind, log)
    values = np.asarray(matrix, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise SpecError(f"a heat map needs a matrix [row, column], not shape {values.shape}")
    # 2. Cells are centred on whole numbers, row 0 at the top.
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
    # 3. Where no cell is drawn, the hatched ground shows.
    if np.isnan(values).any():
        _absent_ground(ax)
    if unit is not None:
        _bar([ax], [mesh], unit, log=log)
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
        known = ", ".join(map(str, table.columns)) or "none"
        raise SpecError(f"the table has no column {', '.join(missing)}: its columns are {known}")
    if not len(table):
        raise SpecError("the table has no rows: there is nothing to draw")


def require_quantities(table: pd.DataFrame, *names: str) -> None:
    """A table that lacks a quantity is refused, and its quantities named."""
    known = list(map(str, table["quantity"].drop_duplicates()))
    if lost := [name for name in names if name not in known]:
        raise SpecError(f"the table has no quantity {lost[0]!r}: it has {', '.join(known)}")


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


def shared_bar(axes: Sequence[Axes], meshes: Sequence[QuadMesh], unit: str) -> None:
    """One colour bar beside several heat maps that have the same limits."""
    if len({mesh.get_clim() for mesh in meshes}) != 1:
        raise SpecError("heat maps that share a bar need the same limits: give each the same")
    _bar(axes, meshes, unit, log=False)


def _bar(axes: Sequence[Axes], meshes: Sequence[QuadMesh], unit: str, *, log: bool) -> None:
    values = np.concatenate([np.ma.compressed(np.ma.asarray(mesh.get_array())) for mesh in meshes])
    low, high = meshes[0].get_clim()
    under, over = bool((values < low).any()), bool((values > high).any())
    sides = {(True, True): "both", (True, False): "min", (False, True): "max"}
    bar = axes[0].figure.colorbar(
        meshes[0],
        ax=list(axes) if len(axes) > 1 else axes[0],
        pad=0.015,
        aspect=24,
        extend=sides.get((under, over), "neither"),
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


MOST_MARKED = 24
"""Points of a line that still have a marker each."""
MOST_NAMED = 12
"""Lines that the legend names each; of more it names some, first and last among them."""


def lines(
    ax: Axes,
    table: pd.DataFrame,
    *,
    x: str,
    unit: str,
    colour_by: str | None = None,
    of: str = "prompts",
) -> list[Artist]:
    """A line over `x` for each `colour_by`, with band and null where the table has them.

    Returns the legend's entries for `key`. `of` is what `n` counts.
    """
    # 1. A line for each level, in its own colour, with the band of its interval.
    groups = _groups(table, x, colour_by)
    shades = colours(list(groups))
    entries: list[Artist] = []
    for index, (level, rows) in enumerate(groups.items()):
        positions = rows[x].to_numpy(dtype=np.float64)
        (line,) = ax.plot(
            positions,
            rows["value"].to_numpy(dtype=np.float64),
            color=shades[level],
            marker=MARKERS[index % len(MARKERS)] if len(rows) <= MOST_MARKED else "",
            label=_describe_bands(colour_by, level),
        )
        if {"low", "high"} <= set(rows.columns):
            band(
                ax, positions, rows["low"].to_numpy(), rows["high"].to_numpy(), colour=shades[level]
            )
        if colour_by is not None:
            entries.append(line)
    # 2. Nulls, and what the legend says of missing intervals.
    entries = _some(entries) + _nulls(ax, groups, x, shades)
    entries += no_interval(table, of=of)
    ax.set(xlabel=x.replace("_", " "), ylabel=unit)
    if all(pd.api.types.is_integer_dtype(rows[x]) for rows in groups.values()):
        whole_ticks(ax, y=False)
    return entries


def band(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, *, colour: str) -> None:
    """The interval around a line; where it is NaN nothing is drawn, an island of one is a bar."""
    positions, low, high = (np.asarray(array, dtype=np.float64) for array in (x, low, high))
    known = np.isfinite(low) & np.isfinite(high)
    beside = np.zeros(len(known) + 2, dtype=bool)
    beside[1:-1] = known
    alone = known & ~beside[:-2] & ~beside[2:]
    shown = (known & ~alone).tolist()
    ax.fill_between(positions, low, high, where=shown, color=colour, alpha=0.18, linewidth=0)
    ax.vlines(positions[alone], low[alone], high[alone], color=colour, linewidth=0.8)


def null_line(ax: Axes, x: np.ndarray, null: np.ndarray, *, colour: str = NULL) -> Line2D:
    """What uniform attention would score: dashed, grey, called null."""
    (line,) = ax.plot(x, null, color=colour, linestyle=(0, (4, 2)), linewidth=0.8, label="null")
    return line


def no_interval(table: pd.DataFrame, *, of: str = "prompts") -> list[Artist]:
    """The legend's word on values without an interval: `no interval: 3 prompts`."""
    if not {"low", "high"} <= set(table.columns):
        return []
    bare = table[table["value"].notna() & (table["low"].isna() | table["high"].isna())]
    if bare.empty:
        return []
    counts = sorted(set(bare["n"].dropna().astype(int))) if "n" in bare.columns else []
    unit = of.removesuffix("s") if counts == [1] else of
    text = f": {_span(counts)} {unit}" if counts else ""
    return [Line2D([], [], linestyle="none", label=f"no interval{text}")]


def bars(
    ax: Axes,
    table: pd.DataFrame,
    *,
    x: str,
    unit: str,
    colour_by: str | None = None,
    of: str = "prompts",
) -> list[Artist]:
    """Bars over `x`, side by side for each `colour_by`, with intervals and nulls as dashes."""
    # 1. Bars of the levels stand side by side at each x.
    groups = _groups(table, x, colour_by)
    shades = colours(list(groups))
    places = {level: index for index, level in enumerate(_levels(table[x]))}
    width = 0.8 / len(groups)
    entries: list[Artist] = []
    for index, (level, rows) in enumerate(groups.items()):
        centre = rows[x].map(places).to_numpy(dtype=np.float64)
        centre += (index - (len(groups) - 1) / 2) * width
        value = rows["value"].to_numpy(dtype=np.float64)
        ax.bar(centre, value, 0.92 * width, color=shades[level])
        # 2. Intervals as lines, nulls as dashes across the bar.
        if {"low", "high"} <= set(rows.columns):
            ax.vlines(centre, rows["low"], rows["high"], color="black", linewidth=0.7)
        if "null" in rows.columns:
            ends = (centre - width / 2, centre + width / 2)
            ax.hlines(rows["null"], *ends, color=NULL, linestyle=(0, (3, 1.5)), linewidth=0.9)
        if colour_by is not None:
            entries.append(Patch(color=shades[level], label=_describe_bands(colour_by, level)))
    if "null" in table.columns and table["null"].notna().any():
        entries.append(_null_entry())
    # 3. Levels of x are named, whatever their type.
    ax.set_xticks(list(places.values()), labels=[printable(str(level), 16) for level in places])
    ax.tick_params(axis="x", length=0)
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set(xlabel=x.replace("_", " "), ylabel=unit)
    return entries + no_interval(table, of=of)


def key(drawn: Sheet, entries: Sequence[Artist]) -> Legend | None:
    """The legend above all panels, where it covers nothing; None if there are no entries."""
    if not entries:
        return None
    names = [printable(str(entry.get_label()), 40) for entry in entries]
    widest = max(map(len, names)) * 0.54 * SMALL + 26
    columns = max(1, min(len(names), int(72 * min(drawn.get_figwidth(), PAGE) / widest)))
    return drawn.legend(
        handles=list(entries), labels=names, loc="outside upper left", ncols=columns
    )


def _groups(table: pd.DataFrame, x: str, colour_by: str | None) -> dict[Any, pd.DataFrame]:
    """Rows of each level in the order of x; refuses several rows for one point."""
    by = [x] if colour_by is None else [colour_by, x]
    require(table, *by, "value")
    if table.duplicated(by).any():
        raise SpecError(
            f"the table has several values for one {' and '.join(by)}: "
            f"take a mean by {' and '.join(by)} first"
        )
    ordered = table.sort_values(x, kind="stable")
    if colour_by is None:
        return {None: ordered}
    return {level: ordered[ordered[colour_by] == level] for level in _levels(table[colour_by])}


def _levels(column: pd.Series) -> list[Any]:
    """Different values: in the order of a categorical, else sorted."""
    return list(column.drop_duplicates().sort_values())


def _some(entries: list[Artist]) -> list[Artist]:
    if len(entries) <= MOST_NAMED:
        return entries
    return [entries[index] for index in np.linspace(0, len(entries) - 1, 6).round().astype(int)]


def _describe_bands(colour_by: str | None, level: Any) -> str:
    numbered = isinstance(level, int | float | np.number) and not isinstance(level, bool)
    text = f"{str(colour_by).replace('_', ' ')} {level}" if numbered else str(level)
    return printable(text, 40)


def _nulls(
    ax: Axes, groups: dict[Any, pd.DataFrame], x: str, shades: dict[Any, str]
) -> list[Artist]:
    """One grey null where all groups share it, else each group's in its own colour."""
    with_null = {
        level: rows.dropna(subset=["null"]) for level, rows in groups.items() if "null" in rows
    }
    with_null = {level: rows for level, rows in with_null.items() if len(rows)}
    if not with_null:
        return []
    points = pd.concat(with_null.values()).drop_duplicates([x, "null"]).sort_values(x)
    if not points.duplicated(x).any():
        null_line(ax, points[x].to_numpy(), points["null"].to_numpy())
    else:
        for level, rows in with_null.items():
            null_line(ax, rows[x].to_numpy(), rows["null"].to_numpy(), colour=shades[level])
    return [_null_entry()]


def _null_entry() -> Line2D:
    return Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, label="null")


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"


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
    # 1. Shares of all flow, and where each block begins on either side.
    values = _check_flow(flow, sources, targets)
    total = np.nansum(values)
    shares = np.nan_to_num(values) / total
    left, right = _stack_heights(shares.sum(axis=1)), _stack_heights(shares.sum(axis=0))
    shades = colours(list(range(len(sources))))
    # 2. Ribbons leave and arrive in order, each as wide as what it carries.
    leave, arrive = left.copy(), right.copy()
    for source, target in np.ndindex(*shares.shape):
        if (width := shares[source, target]) > 0:
            shape = _ribbon(float(leave[source]), float(arrive[target]), width)
            ax.add_patch(PathPatch(shape, facecolor=shades[source], alpha=0.5, linewidth=0))
        leave[source] += shares[source, target]
        arrive[target] += shares[source, target]
    # 3. Blocks and names; a source without queries says so.
    empty = np.isnan(values).all(axis=1)
    names = [
        f"{name} (no queries)" if none else None for name, none in zip(sources, empty, strict=True)
    ]
    _blocks(ax, left, shares.sum(axis=1), names=sources, labels=names, side=0, shades=shades)
    _blocks(ax, right, shares.sum(axis=0), names=targets, labels=[None] * len(targets), side=1)
    for position, title, along in ((0.0, titles[0], "left"), (1.0, titles[1], "right")):
        ax.text(position, -0.02, title, ha=along, va="bottom", fontweight="bold", fontsize=SMALL)
    deepest = max(left[-1] + shares.sum(axis=1)[-1], right[-1] + shares.sum(axis=0)[-1])
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
    labels: Sequence[str | None],
    side: int,
    shades: dict[int, str] | None = None,
) -> None:
    for index, (start, height) in enumerate(zip(starts, heights, strict=True)):
        corner = (0.0 if side == 0 else 1 - _BLOCK, start)
        face = "#6b6b6b" if shades is None else shades[index]
        ax.add_patch(Rectangle(corner, _BLOCK, height, facecolor=face, linewidth=0))
        text = labels[index] or f"{names[index]}  {height:.0%}"
        ax.text(
            -0.015 if side == 0 else 1.015,
            start + max(height, 0.02) / 2,
            printable(text, 30),
            ha="right" if side == 0 else "left",
            va="center",
            fontsize=SMALL,
        )
