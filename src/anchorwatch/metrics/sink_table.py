"""Which keys the sinks are: position, token, how often and how strong."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import LayerSlice, Traces
from anchorwatch.metrics.registry import Reading, custom_metric, read_rows
from anchorwatch.metrics.sink_rules import Rule, rulli


@custom_metric()
def sink_keys(
    traces: Traces, rule: Rule | None = None, *, group: str = "all", most: int = 5
) -> Reading:
    """The keys that are sinks in each layer, by position and token, most frequent first: rows.

    `frequency` is the share of the layer's heads and steps at which the rule calls the key a sink
    while this token stands there (a masked position is another row than the word it becomes).
    `share` is the mean attention that it receives there, `null` what uniform attention gives it,
    `lift` their ratio. At most `most` rows a layer; a layer without sinks has none.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise SpecError(f"most={most!r} is not a whole number above 0")
    rule = rule or rulli()
    about = {"metric": "sink_keys", "rule": str(rule), "group": group, "most": most}
    return read_rows(traces, partial(key_rows, rule=rule, group=group, most=most), about)


def key_rows(layer: LayerSlice, rule: Rule, group: str, most: int) -> dict[str, Any]:
    """The columns of one layer's rows."""
    trace, shares = layer.trace, layer.shares(group)
    # 1. Every sink as (step, head, key), and the pair (position, token) that it belongs to.
    step, head, key = np.nonzero(layer.labels(rule, group))
    pairs = np.stack([key, trace.canvas[step, key]], axis=1)
    known, which = np.unique(pairs, axis=0, return_inverse=True)
    which = which.ravel()
    count = np.bincount(which, minlength=len(known))
    # 2. Mean share of each pair, and what uniform attention gives the same cells.
    null = np.broadcast_to(layer.null(group), shares.shape)[step, head, key]
    received = np.bincount(which, shares[step, head, key], len(known)) / np.maximum(count, 1)
    expected = np.bincount(which, null, len(known)) / np.maximum(count, 1)
    # 3. The most frequent pairs; of equal ones the first position.
    order = np.argsort(-count, kind="stable")[:most]
    cells = max(int(layer.is_measured(group).sum()), 1)
    return {
        "layer": np.full(len(order), layer.index),
        "position": known[order, 0],
        "token": [trace.token(int(token)) for token in known[order, 1]],
        "frequency": count[order] / cells,
        "share": received[order],
        "null": expected[order],
        "lift": received[order] / expected[order],
    }
