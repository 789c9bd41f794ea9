"""Sinks of the rows that predict, in which models of both kinds can be compared. No torch here.

Over all rows the greatest key of a causal model is nearly fixed by its mask: old rows never change,
and early keys are seen by most. A row that predicts a token sees every key there is and is made at
its own step, in either kind of model. But a row also reads the text, and gives the words it reads
several times an even share; so a sink is here a key that takes more than Gu's 0.3 of two rows in a
row. His rule is of the queries that see a key, and says the same under both visibilities.
"""

from __future__ import annotations

import numpy as np

from anchorwatch.metrics.layer_slices import require_field
from anchorwatch.metrics.sink_rules import gu
from anchorwatch.trace.trace import Trace


def sink_moves(trace: Trace) -> float:
    """Share of neighbouring pairs of rows with a sink whose sinks are not the same; NaN if none.

    A sink that never stays for two commits is not seen, in either kind of model.
    """
    place = pair_sinks(trace)
    one, other = place[..., :-1], place[..., 1:]
    both = (one >= 0) & (other >= 0)
    return float((both & (one != other)).sum() / both.sum()) if both.any() else np.nan


def pair_sinks(trace: Trace) -> np.ndarray:
    """[layer, head, pair] the key that two rows in a row give most; -1 where there is none.

    Each of the two must give it more than Gu's rule asks for. Rows are in the order of their
    commits, and pairs do not overlap.
    """
    order = np.flatnonzero(trace.committed_at >= 0)
    order = order[np.argsort(trace.committed_at[order], kind="stable")]
    order = order[: len(order) // 2 * 2]
    keys, mass = (
        require_field(trace, f"commit_top_{name}").values[:, :, order].astype(kind)
        for name, kind in (("key", np.int64), ("mass", np.float64))
    )
    sink = (mass > gu().eps) & (keys >= 0)
    one, other = slice(0, None, 2), slice(1, None, 2)
    same = keys[:, :, one, :, None] == keys[:, :, other, None, :]
    same &= sink[:, :, one, :, None] & sink[:, :, other, None, :]
    both = np.where(same, mass[:, :, one, :, None] + mass[:, :, other, None, :], 0.0)
    best = both.max(axis=-1)  # [layer, head, pair, rank of the first row]
    key = np.take_along_axis(keys[:, :, one], best.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    return np.where(best.max(axis=-1) > 0, key, -1)
