"""Why a sink draws attention: the angle of its key, or its length; and how alike states become.

A head's mean logit at key j is a product: |k_j| times the mean over queries of |q| cos(q, k_j). So
what a sink has over the other keys of its head splits in two without a rest, head by head. Vectors
of different heads are never averaged: they live in unrelated bases.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError
from anchorwatch.metrics.cells import Quantity, mean
from anchorwatch.metrics.columns import SinkColumns, columns
from anchorwatch.metrics.reading import LayerSlice, Traces, check_traces, require_field
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.tables import over_slabs, tabulate
from anchorwatch.trace.trace import ABSENT

ROTARY = {"after": "", "before": "_before_rotary"}


def qk_split(
    traces: Traces,
    rule: Rule | None = None,
    *,
    rotary: str = "after",
    head_size: int | None = None,
    group: str = "all",
    by: Sequence[str] = ("layer",),
) -> pd.DataFrame:
    """A sink's logit advantage over the other keys of its head, split into angle and norm.

    `advantage` is its mean logit less that of the others, and `angle` + `norm` are exactly that:
    the Shapley split of n * c, where n is the mean norm product and c = logit / n the cosine as
    the logit feels it, each query weighted by its norm. A query's norm is common to all keys, so
    the norm is that of the key alone. `angle_share` is angle / (|angle| + |norm|), sums over
    columns first; `angle_of_advantage` may exceed 1 where the norm works against the sink.

    The `plain_` ones split the product of two means, mean cosine (every query alike) times mean
    norm product, as published; with `head_size` they are in logits, and `plain_residual` is the
    part of the advantage that this product leaves out.

    The null is 0: a key like the others has no advantage. Means are over all queries, those that
    may not look at the key among them. Where only peaks were kept, sinks beyond the eight are
    missing, and count among the others; `qk_geometry(keys=True)` keeps every key.
    """
    rule = rule or rulli()
    if rotary not in ROTARY:
        raise SpecError(f"rotary={rotary!r} is unknown: expected 'after' or 'before'")
    if head_size is not None and (not isinstance(head_size, int) or head_size < 1):
        raise SpecError(f"head_size={head_size!r} is not a whole number of at least 1")
    kernel = partial(
        split_cells, rule=rule, suffix=ROTARY[rotary], head_size=head_size, group=group
    )
    about = {"metric": "qk_split", "rule": str(rule), "rotary": rotary, "group": group}
    return tabulate(over_slabs(traces, kernel), by, about=about | {"head_size": head_size})


def split_cells(
    slab: LayerSlice, rule: Rule, suffix: str = "", head_size: int | None = None, group: str = "all"
) -> list[Quantity]:
    logit, product, cosine = (
        columns(slab, f"{name}{suffix}") for name in ("logit", "norm_product", "cosine")
    )
    sinks = SinkColumns(slab, rule, group, logit)
    norms, other_norms = sinks.of(product), sinks.others(product)
    logits, other_logits = sinks.of(logit), sinks.others(logit)
    advantage = logits - other_logits
    with np.errstate(invalid="ignore", divide="ignore"):
        angle, norm = shapley(logits / norms, norms, other_logits / other_norms, other_norms)
    scale = 1.0 if head_size is None else head_size**-0.5
    cosines = sinks.of(cosine), sinks.others(cosine)
    plain_angle, plain_norm = (
        scale * part for part in shapley(cosines[0], norms, cosines[1], other_norms)
    )
    rest = advantage - plain_angle - plain_norm if head_size else np.full(len(norms), np.nan)
    size, plain_size = np.abs(angle) + np.abs(norm), np.abs(plain_angle) + np.abs(plain_norm)
    return [
        sinks.mean("advantage", advantage, 0.0),
        sinks.mean("angle", angle, 0.0),
        sinks.mean("norm", norm, 0.0),
        sinks.ratio("angle_share", angle, size),
        sinks.ratio("norm_share", norm, size),
        sinks.ratio("angle_of_advantage", angle, advantage),
        sinks.mean("plain_angle", plain_angle, 0.0),
        sinks.mean("plain_norm", plain_norm, 0.0),
        sinks.ratio("plain_angle_share", plain_angle, plain_size),
        sinks.mean("plain_residual", rest, 0.0),
    ]


def shapley(
    cosine: np.ndarray, norm: np.ndarray, other_cosine: np.ndarray, other_norm: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(angle, norm): the two-player Shapley split of norm * cosine - other_norm * other_cosine.

    >>> angle, norm = shapley(*(np.array(x) for x in (0.347, 4.73, 0.018, 7.06)))
    >>> float((angle / (angle + norm)).round(2))  # the norm works against this sink
    1.28
    """
    angle = (cosine - other_cosine) * (other_norm + norm) / 2
    return angle, (norm - other_norm) * (other_cosine + cosine) / 2


def mixing(traces: Traces, *, by: Sequence[str] = ("layer",)) -> pd.DataFrame:
    """How alike the states of different positions are before each layer.

    `state_cosine` is the mean cosine of two positions, whose null is 0: unrelated states.
    `effective_rank` is how many directions the states spread over, whose null is the number of
    positions, each going its own way; the lift is the share of that which is left.
    """
    parts = []
    for trace in check_traces(traces):
        cosine = require_field(trace, "state_cosine").values
        rank = require_field(trace, "effective_rank").values
        there = np.sum(trace.role[:-1] != ABSENT, axis=-1)[:, None]
        parts.append(
            (
                trace,
                [
                    mean("state_cosine", ("step", "layer"), cosine, np.zeros(())),
                    mean("effective_rank", ("step", "layer"), rank, there),
                ],
            )
        )
    return tabulate(parts, by, about={"metric": "mixing"})
