"""Figures of retrieval heads: layer x head, and beside it the mean of each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import (
    MOST_MARKED,
    absent_patch,
    even_limits_of,
    grid,
    key,
    limits_of,
    null_line,
    require,
    whole_ticks,
)
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import NULL, PAGE, PALETTE, printable, sheet
from anchorwatch.metrics.retrieval import CONTRAST

_UNITS = {
    "copy": "copy score",
    "evidence_mass": "attention to gold",
    "evidence_in_top": "attention to gold on kept keys",
    "lift": "lift of gold over its length",
    "lift_without_sinks": "lift of gold without sinks",
    "hit": "share of rows that look at gold most",
    "auroc": "AUROC of gold",
}


@figure(Plot("retrieval-map", metric="retrieval_heads"))
def retrieval_map(table: pd.DataFrame, *, quantity: str | None = None) -> Figure:
    """A score of `retrieval_heads` for every layer and head, a row of panels for each model.

    Beside it the mean over the heads of each layer, and its null, what uniform rows score.
    Without a `quantity`, the evidence mass where it was captured, else what of it was kept.
    """
    return _map(table, quantity or _evidence(table), "magnitude")


@figure(Plot("retrieval-contrast", metric="retrieval_heads"))
def retrieval_contrast(table: pd.DataFrame, *, quantity: str | None = None) -> Figure:
    """Gold minus distractors for every layer and head: red where a head prefers the evidence."""
    return _map(table, (quantity or _evidence(table)) + CONTRAST, "difference")


def _evidence(table: pd.DataFrame) -> str:
    require(table, "quantity", "value")
    exact = table[table["quantity"] == "evidence_mass"]
    return "evidence_mass" if exact["value"].notna().any() else "evidence_in_top"


def _map(table: pd.DataFrame, quantity: str, kind: Any) -> Figure:
    data = _part(table, quantity)
    models = list(data["model"].drop_duplicates())
    values = data["value"].to_numpy(dtype=float)
    limits = limits_of(values) if kind == "magnitude" else even_limits_of(values)
    tall = max(2.3, min(3.2, 0.09 * (data["layer"].max() + 1) + 0.6))
    drawn, axes = sheet(
        0.72 * PAGE, 0.25 + tall * len(models), rows=len(models), columns=2, ratios=[1, 4]
    )
    plain = quantity.removesuffix(CONTRAST)
    unit = _UNITS.get(plain, plain.replace("_", " "))
    unit += "\nminus distractors'" if kind == "difference" else ""
    for row, model in enumerate(models):
        beside, ax = axes[2 * row : 2 * row + 2]
        part = data[data["model"] == model]
        grid(ax, part, limits=limits, unit=unit, kind=kind)
        ax.set_title(printable(model, 40))
        ax.tick_params(axis="y", labelleft=False)
        ax.set_ylabel("")
        _means(beside, part, ax.get_ylim())
    entries = [absent_patch()] if np.isnan(values).any() else []
    key(drawn, [*_null_entry(data), *entries])
    name = "retrieval_map" if kind == "magnitude" else "retrieval_contrast"
    return Figure.of_table(drawn, data, name, {"quantity": quantity}, table)


def _means(ax: Axes, part: pd.DataFrame, rows: tuple[float, float]) -> None:
    """The mean of each layer, drawn sideways in the rows of the map."""
    means = part.groupby("layer")[["value", "null"]].mean()
    layers = means.index.to_numpy(dtype=np.float64)
    null_line(ax, means["null"].to_numpy(dtype=np.float64), layers)
    marked = "o" if len(layers) <= MOST_MARKED else ""
    ax.plot(means["value"], layers, color=PALETTE[0], marker=marked, clip_on=False)
    ax.set(ylim=rows, xlabel="mean over heads", ylabel="layer")
    least, most = ax.get_xlim()
    ax.set_xlim(min(0.0, least), max(0.0, most))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=2))
    whole_ticks(ax, x=False)


def _null_entry(data: pd.DataFrame) -> list[Any]:
    if data["null"].isna().all():
        return []
    return [Line2D([], [], color=NULL, linestyle=(0, (4, 2)), linewidth=0.8, label="null")]


def _part(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    require(table, "model", "layer", "head", "quantity", "value", "null")
    known = list(map(str, table["quantity"].drop_duplicates()))
    if quantity not in known:
        more = (
            ": retrieval_heads(..., distractors=[...]) adds it"
            if quantity.endswith(CONTRAST)
            else f": it has {', '.join(known)}"
        )
        raise SpecError(f"the table has no quantity {quantity!r}{more}")
    data = table[table["quantity"] == quantity]
    if data["value"].isna().all():
        raise SpecError(f"{quantity} is absent in every cell: choose another of {', '.join(known)}")
    return data
