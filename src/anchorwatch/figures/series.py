"""Marks of tidy tables: lines with bands and nulls, bars with intervals, the legend beside them.

A table has `value`, and where they are known `null`, `low`, `high` and `n` (how many prompts). The
order of its rows never matters. An interval that does not exist is not drawn, and the legend says
so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from anchorwatch.errors import SpecError
from anchorwatch.figures.cells import require, whole_ticks
from anchorwatch.figures.labels import printable
from anchorwatch.figures.style import MARKERS, NULL, PAGE, SMALL, colours

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
    groups = _groups(table, x, colour_by)
    shades = colours(list(groups))
    entries: list[Artist] = []
    for index, (level, rows) in enumerate(groups.items()):
        place = rows[x].to_numpy(dtype=np.float64)
        (line,) = ax.plot(
            place,
            rows["value"].to_numpy(dtype=np.float64),
            color=shades[level],
            marker=MARKERS[index % len(MARKERS)] if len(rows) <= MOST_MARKED else "",
            label=_describe_bands(colour_by, level),
        )
        if {"low", "high"} <= set(rows.columns):
            band(ax, place, rows["low"].to_numpy(), rows["high"].to_numpy(), colour=shades[level])
        if colour_by is not None:
            entries.append(line)
    entries = _some(entries) + _nulls(ax, groups, x, shades)
    entries += no_interval(table, of=of)
    ax.set(xlabel=x.replace("_", " "), ylabel=unit)
    if all(pd.api.types.is_integer_dtype(rows[x]) for rows in groups.values()):
        whole_ticks(ax, y=False)
    return entries


def band(ax: Axes, x: np.ndarray, low: np.ndarray, high: np.ndarray, *, colour: str) -> None:
    """The interval around a line; where it is NaN nothing is drawn, an island of one is a bar."""
    place, low, high = (np.asarray(one, dtype=np.float64) for one in (x, low, high))
    there = np.isfinite(low) & np.isfinite(high)
    beside = np.zeros(len(there) + 2, dtype=bool)
    beside[1:-1] = there
    alone = there & ~beside[:-2] & ~beside[2:]
    shown = (there & ~alone).tolist()
    ax.fill_between(place, low, high, where=shown, color=colour, alpha=0.18, linewidth=0)
    ax.vlines(place[alone], low[alone], high[alone], color=colour, linewidth=0.8)


def null_line(ax: Axes, x: np.ndarray, null: np.ndarray, *, colour: str = NULL) -> Line2D:
    """What indifferent attention would score: dashed, grey, called null."""
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
    said = f": {_span(counts)} {unit}" if counts else ""
    return [Line2D([], [], linestyle="none", label=f"no interval{said}")]


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
        if {"low", "high"} <= set(rows.columns):
            ax.vlines(centre, rows["low"], rows["high"], color="black", linewidth=0.7)
        if "null" in rows.columns:
            ends = (centre - width / 2, centre + width / 2)
            ax.hlines(rows["null"], *ends, color=NULL, linestyle=(0, (3, 1.5)), linewidth=0.9)
        if colour_by is not None:
            entries.append(Patch(color=shades[level], label=_describe_bands(colour_by, level)))
    if "null" in table.columns and table["null"].notna().any():
        entries.append(_null_entry())
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
    held = {level: rows.dropna(subset=["null"]) for level, rows in groups.items() if "null" in rows}
    held = {level: rows for level, rows in held.items() if len(rows)}
    if not held:
        return []
    points = pd.concat(held.values()).drop_duplicates([x, "null"]).sort_values(x)
    if not points.duplicated(x).any():
        null_line(ax, points[x].to_numpy(), points["null"].to_numpy())
    else:
        for level, rows in held.items():
            null_line(ax, rows[x].to_numpy(), rows["null"].to_numpy(), colour=shades[level])
    return [_null_entry()]


def _null_entry() -> Line2D:
    return Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, label="null")


def _span(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
