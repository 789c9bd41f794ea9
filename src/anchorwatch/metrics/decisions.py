"""How near the decisions were: by how much a committed token was likelier than the best other one.

In half precision logits near 20 are 1/8 apart (bfloat16) or 1/64 (float16): margins below that are
ties or may be, and another batch, machine or kernel can turn them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.layer_slices import Traces, check_traces
from anchorwatch.metrics.registry import custom_metric
from anchorwatch.metrics.table import Quantity, ratio, split_always, tabulate
from anchorwatch.trace.trace import Trace

EDGES = (0.0, 1e-5, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Nats. The first bin holds ties, and what `narrow` counts of the choice of tokens."""


@custom_metric()
def commit_margins(
    traces: Traces, edges: Sequence[float] = EDGES, *, by: Sequence[str] = ()
) -> pd.DataFrame:
    """Share of commits by margin, a histogram: how near were the decisions?

    The margin is the log-probability of the committed token minus that of the best other token, in
    nats, when it was committed. `margin` is the lower edge of a bin. The bin of 0 holds ties, that
    of -inf commits for which another token was likelier (it was drawn or forced), and the last one
    all above it. There is no null: nothing is said of what indifferent decisions would be.
    """
    bounds = _check_edges(edges)
    parts = [(trace, [_count(trace, bounds)]) for trace in check_traces(traces)]
    about = {"metric": "commit_margins", "edges": bounds.tolist()}
    return tabulate(parts, split_always("margin", by), about=about)


def _check_edges(edges: Sequence[float]) -> np.ndarray:
    bounds = np.asarray(edges, dtype=float)
    rising = bounds.ndim == 1 and len(bounds) > 1 and bool((np.diff(bounds) > 0).all())
    if not rising or not np.isfinite(bounds).all() or bounds[0] != 0:
        raise SpecError(f"edges={edges!r:.60}: give a list of at least 2, from 0 upwards")
    return bounds


def _count(trace: Trace, edges: np.ndarray) -> Quantity:
    """Commits by step and bin, over all commits of the step."""
    if "margin" not in trace:
        raise TraceError(
            f"trace {trace.digest()[:12]} has no margins, since it was written before they were "
            "kept: aw.replay(model, trace) measures it again with them"
        )
    # 1. Bin 0 is below every edge; the last one has no upper edge.
    positions = np.flatnonzero(trace.committed_at >= 0)
    margins = trace["margin"].values[positions]
    steps = trace.committed_at[positions]
    known = ~np.isnan(margins)
    bins = np.searchsorted(edges, margins[known], side="right")
    # 2. Count by step and bin. Commits of unknown margin are in no bin: every bin lacks them.
    counts = np.zeros((trace.num_steps, len(edges) + 1))
    np.add.at(counts, (steps[known], bins), 1)
    unknown = np.bincount(steps[~known], minlength=trace.num_steps)[:, None]
    shares = ratio(
        "share_of_commits",
        ("step", "margin"),
        counts,
        counts.sum(axis=1, keepdims=True),
        labels={"margin": [-np.inf, *edges.tolist()]},
    )
    return replace(shares, missing=np.broadcast_to(unknown, counts.shape).astype(float))
