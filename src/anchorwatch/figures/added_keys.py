"""Figures of what added keys receive: a sink token's share of attention by layer and step."""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import absent_patch, heat, key, limits_of, null_line, whole_ticks
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import NULL, PAGE, PALETTE, printable, sheet


@figure(Plot("sink-mass-steps", metric="sink_mass", by=("layer", "step")))
def sink_mass_steps(table: pd.DataFrame) -> Figure:
    """Share of attention that added keys receive: layer by step, and by layer beside its null.

    For a table of `sink_mass` by layer and step; a row of panels for each model. At the right the
    mean over steps, dashed what uniform attention would give.
    """
    models = sorted(table["model"].drop_duplicates())
    drawn, axes = sheet(
        PAGE, 0.45 + 1.9 * len(models), rows=len(models), columns=2, ratios=[1.7, 1]
    )
    limits = limits_of(table["value"].to_numpy(dtype=float))
    for row, model in enumerate(models):
        left, right = axes[2 * row : 2 * row + 2]
        part = table[table["model"] == model]
        # 1. Left: layer by step.
        wide = part.pivot(index="layer", columns="step", values="value").sort_index()
        heat(left, wide.to_numpy(dtype=float), limits=limits, unit="share of attention")
        left.set(xlabel="step", ylabel="layer", title=printable(model, 40))
        whole_ticks(left)
        # 2. Right: the mean over steps by layer, and the null.
        by_layer = part.groupby("layer")[["value", "null"]].mean()
        layers = by_layer.index.to_numpy(dtype=float)
        right.plot(layers, by_layer["value"], color=PALETTE[0], marker="o")
        null = null_line(right, layers, by_layer["null"].to_numpy(dtype=float), colour=NULL)
        right.set(xlabel="layer", ylabel="share of attention, mean of steps")
        right.set_ylim(0, 1.08 * max(by_layer["value"].max(), by_layer["null"].max()))
        whole_ticks(right, y=False)
    null.set_label("uniform attention")
    missing = [absent_patch("not measured")] if np.isnan(table["value"]).any() else []
    key(drawn, [null, *missing])
    return Figure.of_table(drawn, table, "sink_mass_steps")
