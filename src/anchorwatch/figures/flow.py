"""Figures of region flow and rollout: matrices, bands, gold lift, depth, and columns with nulls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    absent_patch,
    bands,
    bars,
    even_limits_of,
    heat,
    key,
    limits_of,
    lines,
    require,
    require_quantities,
    whole_ticks,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import COLUMN, PAGE, PALETTE, label_axis, printable, sheet
from anchorwatch.metrics.flow import REGIONS

COLLAPSED = 0.05
"""A Dobrushin coefficient below which the rows of a rollout are the same."""
_GREY = "#d9d9d9"
LEAST_GAP = 0.01
"""Differences below this are pale: they are rounding."""
MOST_WRITTEN = 15
"""Regions a side whose numbers still fit into the cells."""


@figure(
    Plot("flow-matrix", metric="region_flow", by=REGIONS),
    Plot("rollout-matrix", metric="published_rollout", by=REGIONS),
)
def flow_matrix(table: pd.DataFrame, *, quantity: str | None = None) -> Figure:
    """Region to region, one row of panels for each model: the value, and the value minus its null.

    For a table of `region_flow`, `rollout` or `published_rollout` split by both regions alone, or
    the rows of one layer or step of it. `quantity` is by default the first of the table.
    """
    # 1. Value and null of each model as matrices over both regions.
    data = _one_quantity(table, quantity)
    models, named = sorted(data["model"].drop_duplicates()), _regions(data)
    wide = {
        model: [_wide(data[data["model"] == model], named, column) for column in ("value", "null")]
        for model in models
    }
    # 2. One colour scale for all models; a difference has its middle at zero.
    every = np.stack([np.stack(pair) for pair in wide.values()])
    gap = max(LEAST_GAP, even_limits_of(every[:, 0] - every[:, 1])[1])
    drawn, axes = sheet(PAGE, 0.5 + 2.9 * len(models), rows=len(models), columns=2)
    # 3. The value at the left, what it has over its null at the right.
    for row, (model, (value, null)) in enumerate(wide.items()):
        left, right = axes[2 * row : 2 * row + 2]
        name = data["quantity"].iloc[0].replace("_", " ")
        mesh = heat(left, value, limits=limits_of(every[:, 0]), unit=name)
        _write(left, value, mesh)
        left.set_title(printable(model, 40))
        mesh = heat(
            right,
            value - null,
            limits=(-gap, gap),
            unit=f"{name} minus its null",
            kind="difference",
        )
        _write(right, value - null, mesh, signed=True)
        for ax in (left, right):
            _name_both(ax, named)
    key(drawn, [absent_patch()] if np.isnan(every[:, 0]).any() else [])
    return Figure.of_table(drawn, data, "flow_matrix", {"quantity": data["quantity"].iloc[0]})


@figure(Plot("flow-bands", metric="region_flow", by=REGIONS))
def flow_bands(table: pd.DataFrame) -> Figure:
    """What each region looks at, as bands from query regions to key regions, a panel a model.

    For a table of `region_flow` split by both regions alone, or the rows of one layer or step;
    bands are wide as the share of attention, and seven regions a side are the most.
    """
    data = _one_quantity(table, "flow")
    models, named = sorted(data["model"].drop_duplicates()), _regions(data)
    columns = min(len(models), 2)
    rows = -(-len(models) // columns)
    drawn, axes = sheet(
        COLUMN if columns == 1 else PAGE, 0.3 + 2.6 * rows, rows=rows, columns=columns
    )
    for ax, model in zip(axes, models, strict=False):
        flow = _wide(data[data["model"] == model], named, "value")
        shown = [printable(name, 16) for name in named["query_region"]]
        onto = [printable(name, 16) for name in named["key_region"]]
        bands(ax, flow, sources=shown, targets=onto, titles=("queries of", "look at"))
        ax.set_title(printable(model, 40), pad=8)
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    return Figure.of_table(drawn, data, "flow_bands")


@figure(Plot("gold-lift", metric="gold_lift"))
def gold_lift(table: pd.DataFrame, *, x: str = "layer") -> Figure:
    """How much more a token of gold is looked at than one of the others, over layers or progress.

    A line with band for each place of gold (a table split by gold_at or gold_index too), one panel
    a model; else a line for each model. The null is 1.
    """
    require(table, "model", "quantity", x, "value")
    column = next((name for name in ("gold_at", "gold_index") if name in table.columns), None)
    shown = table
    if column == "gold_at":
        shown = table.assign(gold_at=pd.Categorical(table["gold_at"], ["start", "middle", "end"]))
    models = sorted(table["model"].drop_duplicates()) if column else [None]
    columns = min(len(models), 3)
    rows = -(-len(models) // columns)
    drawn, axes = sheet(
        COLUMN if columns == 1 else PAGE, 0.45 + 1.75 * rows, rows=rows, columns=columns
    )
    entries: list[Artist] = []
    for ax, model in zip(axes, models, strict=False):
        part = shown if model is None else shown[shown["model"] == model]
        drawn_lines = lines(
            ax,
            part,
            x=x,
            unit="gold / distractor, per token",
            colour_by=column or "model",
            of="items",
        )
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        if model is not None:
            ax.set_title(printable(model, 40))
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(0, top)
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    key(drawn, entries)
    return Figure.of_table(drawn, table, "gold_lift", {"x": x})


@figure(Plot("rollout-depth", metric="rollout"))
def rollout_depth(
    table: pd.DataFrame, *, query: str = "answer", regions: Sequence[str] | None = None
) -> Figure:
    """Where a region's rollout ends as layers are added, nulls dashed, and how much rows differ.

    For a table of `rollout` or `published_rollout` split by layer and both regions. `regions` are
    the key regions to draw, by default all of them, seven at the most.
    """
    require(table, "model", "layer", "query_region", "key_region", "value", "dobrushin")
    data = _of_query(table, query, regions)
    if (count := data["key_region"].nunique()) > len(PALETTE):
        raise SpecError(
            f"{count} lines cannot be told apart: choose up to {len(PALETTE)} key regions, "
            "regions=['gold', ...]"
        )
    models = sorted(data["model"].drop_duplicates())
    columns = len(models)
    drawn, axes = sheet(COLUMN if columns == 1 else PAGE, 3.4, rows=2, columns=columns)
    entries: list[Artist] = []
    shares, spreads, name = axes[:columns], axes[columns:], printable(query, 16)
    for ax, below, model in zip(shares, spreads, models, strict=True):
        part = data[data["model"] == model]
        drawn_lines = lines(ax, part, x="layer", unit=f"{name}'s rollout", colour_by="key_region")
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        ax.set(ylim=(0, 1), xlabel="", title=printable(model, 40))
        ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        apart = part.drop_duplicates("layer").sort_values("layer")
        below.plot(apart["layer"], apart["dobrushin"], color="black")
        below.axhspan(0, COLLAPSED, color=_GREY, linewidth=0)
        below.set(ylim=(0, 1), xlim=ax.get_xlim(), xlabel="layer", ylabel="Dobrushin coefficient")
        whole_ticks(below, y=False)
    key(drawn, [*entries, Patch(color=_GREY, label=f"below {COLLAPSED:g}: rows have collapsed")])
    return Figure.of_table(drawn, data, "rollout_depth", {"query": query})


@figure(Plot("rollout-columns", metric="published_rollout", by=REGIONS))
def rollout_columns(table: pd.DataFrame, *, query: str = "answer") -> Figure:
    """Where a region's rollout ends, region by region, beside what uniform attention gives.

    Bars for each model, nulls as dashes. For a table of `published_rollout` or `rollout` split by
    both regions alone (all layers), or the rows of one layer. The title says how much rows differ.
    """
    require(table, "model", "query_region", "key_region", "value", "dobrushin")
    data = _of_query(table, query, None)
    drawn, (ax,) = sheet(PAGE if data["key_region"].nunique() > 6 else COLUMN, 2.3)
    entries = bars(
        ax, data, x="key_region", unit=f"{printable(query, 16)}'s rollout", colour_by="model"
    )
    ax.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    titles = [
        f"Dobrushin coefficient of {printable(str(model), 30)}: {rows['dobrushin'].iloc[0]:.2f}"
        for model, rows in data.groupby("model", sort=True)
    ]
    ax.set_title("\n".join(titles))
    key(drawn, entries)
    return Figure.of_table(drawn, data, "rollout_columns", {"query": query})


def _one_quantity(table: pd.DataFrame, quantity: str | None) -> pd.DataFrame:
    require(table, "model", "query_region", "key_region", "quantity", "value", "null")
    chosen = table["quantity"].iloc[0] if quantity is None else quantity
    require_quantities(table, chosen)
    data = table[table["quantity"] == chosen]
    if data.duplicated(["model", "query_region", "key_region"]).any():
        raise SpecError(
            "the table has several values for one pair of regions: measure "
            "by=('query_region', 'key_region'), or choose rows, table[table.layer == 3]"
        )
    return data


def _of_query(table: pd.DataFrame, query: str, regions: Sequence[str] | None) -> pd.DataFrame:
    """The rows of one query region, key regions in the order they are drawn."""
    known = _in_order(table, "query_region")
    if query not in known:
        raise SpecError(f"the table has no query region {query!r}: it has {', '.join(known)}")
    data = table[table["query_region"] == query]
    named = _in_order(data, "key_region")
    if lost := [name for name in regions or () if name not in named]:
        raise SpecError(f"the table has no key region {lost[0]!r}: it has {', '.join(named)}")
    kept = list(regions or named)
    data = data[data["key_region"].isin(kept)]
    attrs = data.attrs
    data = data.assign(key_region=pd.Categorical(data["key_region"], kept))
    data.attrs = attrs
    return data


def _regions(data: pd.DataFrame) -> dict[str, list[str]]:
    """Names on either side."""
    return {side: _in_order(data, side) for side in ("query_region", "key_region")}


def _in_order(data: pd.DataFrame, side: str) -> list[str]:
    """Regions as the first trace has them; those of a table that does not say, as they come."""
    names = list(data[side].drop_duplicates())
    known = [name for name in data.attrs.get("about", {}).get("regions", []) if name in names]
    return known + [name for name in names if name not in known]


def _wide(data: pd.DataFrame, named: dict[str, list[str]], column: str) -> np.ndarray:
    """[query_region, key_region]"""
    wide = data.pivot(index="query_region", columns="key_region", values=column)
    wide = wide.reindex(index=named["query_region"], columns=named["key_region"])
    return wide.to_numpy(dtype=np.float64)


def _name_both(ax: Axes, named: dict[str, list[str]]) -> None:
    label_axis(ax, [printable(n, 12) for n in named["key_region"]], along="x", name="looked at")
    label_axis(ax, [printable(n, 12) for n in named["query_region"]], along="y", name="queries of")


def _write(ax: Axes, values: np.ndarray, mesh: QuadMesh, *, signed: bool = False) -> None:
    """The number in each cell, dark on light and light on dark."""
    if max(values.shape) > MOST_WRITTEN:
        return
    shades = mesh.to_rgba(values)[..., :3] @ np.array([0.299, 0.587, 0.114])
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            ink = "black" if shades[row, column] > 0.5 else "white"
            ax.text(
                column, row, _short(value, signed), color=ink, ha="center", va="center", fontsize=5
            )


def _short(value: float, signed: bool) -> str:
    """Two decimals without the leading zero: .14, 1.00, +.05, -.20.

    >>> _short(0.14, False), _short(0.999, False), _short(0.051, True), _short(-0.2, True)
    ('.14', '1.00', '+.05', '−.20')
    >>> _short(0.001, False), _short(-0.001, True)
    ('0', '0')
    """
    text = f"{abs(value):.2f}"
    if text == "0.00":
        return "0"
    sign = "" if not signed else "+" if value > 0 else "−"
    return sign + text.removeprefix("0")
