"""The loss curve of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from anchorwatch.figures.figure import Figure
from anchorwatch.figures.style import COLUMN, PALETTE, look, sheet
from anchorwatch.training.log import Line
from anchorwatch.training.spec import Spec

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
