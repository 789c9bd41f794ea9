"""Figures of sink tables: profiles by layer, head grids, epsilon curves, histograms, doses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    absent_patch,
    grid,
    key,
    limits_of,
    lines,
    require,
    require_quantities,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import COLUMN, PAGE, colours, plain_log, printable, sheet

_UNITS = {
    "count": "sinks per head",
    "incidence": "share of heads",
    "absorbed": "share of attention",
    "greatest": "share of the greatest key",
    "effective_share": "share of keys",
    "gini": "Gini coefficient",
    "normalised_entropy": "entropy / log T",
    "anywhere": "share of heads",
    "retained": "share of keys that are no sinks",
}


@figure(
    Plot("sinks", metric="sinks"),
    Plot("absorption", metric="absorption"),
    Plot("concentration", metric="concentration"),
    Plot("sink-mass", metric="sink_mass"),
)
def profile(
    table: pd.DataFrame,
    *,
    x: str = "layer",
    quantities: Sequence[str] | None = None,
    unit: str | None = None,
) -> Figure:
    """A panel for each quantity over `x`, a line for each model, with bands and nulls.

    For tables split by one number: layer, step or progress.
    """
    require(table, "model", "quantity", x, "value")
    chosen = list(quantities or table["quantity"].drop_duplicates())
    require_quantities(table, *chosen)
    columns = min(len(chosen), 3 if len(chosen) not in (2, 4) else 2)
    rows = -(-len(chosen) // columns)
    drawn, axes = sheet(
        COLUMN if columns == 1 else PAGE, 0.45 + 1.65 * rows, rows=rows, columns=columns
    )
    entries: list[Any] = []
    for ax, quantity in zip(axes, chosen, strict=False):
        part = table[table["quantity"] == quantity]
        label = unit or _UNITS.get(quantity, "share of attention")
        drawn_lines = lines(ax, part, x=x, unit=label, colour_by="model")
        entries = drawn_lines if len(drawn_lines) > len(entries) else entries
        ax.set_title(printable(quantity.replace("_", " "), 40))
        if part["value"].min() >= 0:
            ax.set_ylim(bottom=0)
    for ax in axes[len(chosen) :]:
        ax.set_visible(False)
    key(drawn, entries)
    data = table[table["quantity"].isin(chosen)]
    return Figure.of_table(drawn, data, "profile", {"x": x})


@figure(Plot("head-grid", metric="sinks", by=("layer", "head")))
def head_grid(
    table: pd.DataFrame, *, quantity: str = "greatest", unit: str | None = None
) -> Figure:
    """Layer x head, one panel for each model (Fig. 5): a quantity of a table by layer and head."""
    require(table, "model", "layer", "head", "quantity", "value")
    require_quantities(table, quantity)
    data = table[table["quantity"] == quantity]
    models = list(data["model"].drop_duplicates())
    width = COLUMN if len(models) == 1 else PAGE
    drawn, axes = sheet(
        width,
        0.4 + 2.5 * -(-len(models) // 2),
        rows=-(-len(models) // 2),
        columns=min(len(models), 2),
    )
    limits = limits_of(data["value"].to_numpy(dtype=float))
    for ax, model in zip(axes, models, strict=False):
        label = unit or _UNITS.get(quantity, quantity.replace("_", " "))
        grid(ax, data[data["model"] == model], limits=limits, unit=label)
        ax.set_title(printable(model, 40))
    for ax in axes[len(models) :]:
        ax.set_visible(False)
    key(drawn, [absent_patch()] if data["value"].isna().any() else [])
    return Figure.of_table(drawn, data, "head_grid", {"quantity": quantity})


@figure(Plot("epsilon-curve", metric="epsilon_curve"))
def epsilon_curve(table: pd.DataFrame) -> Figure:
    """Share of keys that are no sinks, over eps, one curve for each model (Fig. 10)."""
    require(table, "model", "eps", "value")
    drawn, (ax,) = sheet(COLUMN, 2.3)
    entries = lines(ax, table, x="eps", unit=_UNITS["retained"], colour_by="model")
    ax.axvline(3, color="black", linewidth=0.5, linestyle=(0, (1, 2)))
    ax.annotate("eps = 3", (3, ax.get_ylim()[0]), (3, 3), textcoords="offset points", fontsize=6)
    ax.set_xlim(0, table["eps"].max())
    key(drawn, entries)
    return Figure.of_table(drawn, table, "epsilon_curve")


@figure(Plot("score-histogram", metric="score_histogram"))
def score_histogram(table: pd.DataFrame) -> Figure:
    """How scores are spread, one outline for each model, on a log scale (Fig. 3)."""
    require(table, "model", "score", "value")
    # 1. Bins as they were measured.
    edges = np.asarray(table.attrs["about"]["edges"], dtype=float)
    if not (table["value"] > 0).any():
        raise SpecError("nothing was measured in these traces: there is no share to draw")
    drawn, (ax,) = sheet(COLUMN, 2.3)
    models = sorted(table["model"].drop_duplicates())
    shades = colours(models)
    entries: list[Any] = []
    # 2. An outline of each model, and a dashed one of its null.
    for model in models:
        rows = table[table["model"] == model].sort_values("score")
        height = rows["value"].to_numpy(dtype=float)
        outline = ax.stairs(height, edges, color=shades[model], label=printable(model, 40))
        entries.append(outline)
        outline = ax.stairs(
            rows["null"].to_numpy(dtype=float),
            edges,
            color=shades[model] if len(models) > 1 else "0.45",
            linestyle=(0, (4, 2)),
            linewidth=0.8,
            label="null" if len(models) == 1 else f"null of {printable(model, 30)}",
        )
        entries.append(outline)
    # 3. On a log scale, from half of the smallest share that occurs.
    least = table["value"][table["value"] > 0].min()
    ax.set(xlabel="column sum (uniform attention: 1)", ylabel="share of keys", yscale="log")
    ax.set(xlim=(edges[0], edges[-1]), ylim=(least / 2, 1.5))
    plain_log(ax.yaxis)
    key(drawn, entries)
    return Figure.of_table(drawn, table, "score_histogram")


@figure()
def dose_response(
    table: pd.DataFrame, *, x: str = "k", unit: str = "effect", colour_by: str = "arm"
) -> Figure:
    """An outcome over the dose, a line for each arm (edited, control), with bands and nulls."""
    require(table, x, colour_by, "value")
    drawn, (ax,) = sheet(COLUMN, 2.3)
    entries = lines(ax, table, x=x, unit=unit, colour_by=colour_by)
    key(drawn, entries)
    return Figure.of_table(drawn, table, "dose_response", {"x": x})
