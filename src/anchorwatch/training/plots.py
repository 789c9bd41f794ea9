"""Figures of training: the loss curve of a run, and the comparison of variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from anchorwatch.errors import TraceError
from anchorwatch.figures.figure import Figure
from anchorwatch.figures.style import COLUMN, NULL, PAGE, PALETTE, look, sheet
from anchorwatch.training.log import Line
from anchorwatch.training.spec import Spec
from anchorwatch.training.variants import QUANTITIES, differences, per_seed

_SMOOTH = 50
"""Windows of a curve: each update's loss is noise around its mean."""


@look()
def loss_curve(lines: Sequence[Line], spec: Spec) -> Figure:
    """Loss by tokens read: every update, and a running mean."""
    table = pd.DataFrame([asdict(line) for line in lines])
    window = max(1, len(table) // _SMOOTH)
    table["mean"] = table["loss"].rolling(window, min_periods=1).mean()
    drawn, (axes,) = sheet(COLUMN, 2.0)
    axes.plot(table["tokens"], table["loss"], color=PALETTE[4], linewidth=0.5, alpha=0.6)
    axes.plot(table["tokens"], table["mean"], color=PALETTE[0])
    axes.set_xlabel("tokens read")
    axes.set_ylabel("loss (nats per scored token)")
    axes.set_title(spec.name)
    settings = {"spec": spec.digest, "window": window}
    return Figure(drawn, table, name="loss-curve", settings=settings, traces=[])


SHOWN = (
    "bound.all",
    "bound.t.0.0-0.2.masked",
    "answers.gold",
    "text.incidence.ratio",
    "text.switch_all",
    "noisy.t.0.05.mask_share_visible",
)
TITLES = {
    "bound.all": "held-out nats per token",
    "bound.t.0.0-0.2.masked": "nats per masked token, t < 0.2",
    "answers.gold": "exact match, gold passage",
    "text.incidence.ratio": "heads with a sink (10 times even)",
    "text.switch_all": "greatest key moves",
    "noisy.t.0.05.mask_share_visible": "attention on masks, t 0.05",
}


@look()
def variant_differences(table: pd.DataFrame, quantities: Sequence[str] = SHOWN) -> Figure:
    """A panel for each quantity: dots are seeds, bars Student's intervals over them."""
    names = [name for name in quantities if name in table.columns]
    if not names:
        raise TraceError(f"the table has none of {', '.join(quantities)}: name its columns")
    gaps = differences(table, names)
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    arms = list(gaps["arm"].unique())
    drawn, axes = sheet(PAGE, 0.4 + rows * (0.75 + 0.16 * len(arms)), rows=rows, columns=columns)
    for panel, (ax, name) in enumerate(zip(axes, names, strict=False)):
        mine = gaps[gaps["quantity"] == name].set_index("arm")
        for height, arm in enumerate(arms):
            row = mine.loc[arm]
            ax.plot([row["low"], row["high"]], [height, height], color=PALETTE[0], linewidth=1.4)
        dots = per_seed(table, name)
        heights = [arms.index(arm) for arm in dots["arm"]]
        ax.plot(dots["difference"], heights, "o", color=PALETTE[1], markersize=2.2)
        ax.axvline(0.0, color=NULL, linewidth=0.6, linestyle="--")
        ax.set_yticks(range(len(arms)), arms if panel % columns == 0 else [""] * len(arms))
        ax.invert_yaxis()
        ax.set_title(TITLES.get(name, QUANTITIES.get(name, name)))
    for ax in axes[len(names) :]:
        ax.set_visible(False)
    settings = {"quantities": names, "seeds": sorted(int(seed) for seed in set(table["seed"]))}
    return Figure(drawn, gaps, name="variant-differences", settings=settings, traces=[])
