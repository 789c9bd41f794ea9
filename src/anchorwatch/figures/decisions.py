"""The figure of margins: how near the decisions of a run were."""

from __future__ import annotations

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.marks import key, require
from anchorwatch.figures.registry import Plot, figure
from anchorwatch.figures.style import COLUMN, colours, printable, sheet


@figure(Plot("commit-margins", metric="commit_margins"))
def commit_margins(table: pd.DataFrame) -> Figure:
    """Share of commits by margin, one outline for each model; the bins are drawn equally wide."""
    require(table, "model", "margin", "value")
    if table["value"].isna().all():
        raise SpecError("nothing was committed in these traces: there is no share to draw")
    # 1. The bin of drawn and forced tokens is shown only where there are any.
    edges = [-np.inf, *table.attrs["about"]["edges"]]
    drawn_below = bool((table.loc[table["margin"] < 0, "value"] > 0).any())
    lower = edges if drawn_below else edges[1:]
    bounds = np.arange(len(lower) + 1)
    # 2. An outline for each model.
    drawn, (ax,) = sheet(COLUMN, 2.3)
    models = sorted(table["model"].drop_duplicates())
    shades = colours(models)
    entries = []
    for model in models:
        shares = table[table["model"] == model].set_index("margin")["value"]
        height = shares.reindex(lower).to_numpy(dtype=float)
        label = printable(model, 40)
        entries.append(ax.stairs(height, bounds, color=shades[model], label=label))
    # 3. Ticks at the edges of the bins; the last bin is open.
    ax.set_xticks(bounds[:-1], [_edge_label(edge) for edge in lower])
    ax.set(xlabel="margin over the best other token (nats)", ylabel="share of commits")
    ax.set(xlim=(0, len(lower)), ylim=(0, None))
    key(drawn, entries)
    return Figure.of_table(drawn, table, "commit_margins")


def _edge_label(edge: float) -> str:
    return "< 0" if edge < 0 else f"{edge:g}".replace("e-0", "e-")
