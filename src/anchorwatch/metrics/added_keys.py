"""What additions such as a sink token take: their share of attention, and the norm of their values.

A sink token stands before the canvas and is no position of it. Its share is kept apart
(`sink_received`), so that `received` of the canvas sums to one less this share.
"""

from __future__ import annotations

import numpy as np

from anchorwatch.errors import TraceError
from anchorwatch.metrics.layer_slices import LayerSlice, require_field
from anchorwatch.metrics.null import count_extra_keys
from anchorwatch.metrics.registry import metric
from anchorwatch.metrics.table import Quantity, mean, ratio

CELL = ("step", "head")


@metric(by=("layer",))
def sink_mass(layer: LayerSlice, *, group: str) -> list[Quantity]:
    """Share of attention that added keys receive, beside their share of uniform attention.

    For traces of a model with a sink token, or of runs that added one. Dims: step (or progress),
    layer, head.
    """
    _require_added_keys(layer)
    received = require_field(layer.trace, "sink_received")
    shares = layer.shares(group)  # refuses a group that was not measured
    value = received.sel(group=group)[:, layer.index].values  # [step, head]
    # Uniform attention gives the canvas what the null says, and the added keys the rest.
    null = layer.null(group)
    known = ~np.isnan(null).all(axis=-1)
    expected = np.where(known, 1.0 - np.nansum(null, axis=-1), np.nan)  # [step, 1]
    return [mean("sink_mass", CELL, value, np.broadcast_to(expected, shares.shape[:2]))]


@metric(by=("layer",))
def sink_value_norms(layer: LayerSlice) -> list[Quantity]:
    """Norm of the added keys' values over the mean norm of the canvas's values, head by head.

    `norm` is the norm itself, its null that of the canvas; `ratio` the one over the other (null 1).
    Needs `norms(sink=True)`.
    """
    _require_added_keys(layer)
    mine = require_field(layer.trace, "sink_value_norm")[:, layer.index].values.astype(float)
    others = require_field(layer.trace, "value_norm")[:, layer.index].values.astype(float)
    known = ~np.isnan(mine) & ~np.isnan(others)
    one = known.astype(float)
    top, below = np.where(known, mine, 0.0), np.where(known, others, 0.0)
    return [mean("norm", CELL, mine, others), ratio("ratio", CELL, top, below, (one, one))]


def _require_added_keys(layer: LayerSlice) -> None:
    if not count_extra_keys(layer.trace, layer.index).any():
        source = layer.trace.manifest["model"]["source"]
        raise TraceError(
            f"{source} adds no keys to layer {layer.index}: run a model with a sink token, such as "
            "lab/toy-sink, or add one, edits=[aw.edits.sink_token()]"
        )
