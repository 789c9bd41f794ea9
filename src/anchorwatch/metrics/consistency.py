"""Whether layers agree about their sinks, at the same step.

Layers are read one at a time; their sink sets are kept as bits until all are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.metrics.cells import Quantity, mean, ratio
from anchorwatch.metrics.passes import each_slab
from anchorwatch.metrics.paths import (
    CHANCE,
    Parts,
    chance,
    compare_with_chance,
    occupancy,
)
from anchorwatch.metrics.reading import LayerSlice, Traces
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.trace.trace import Trace

DIMS = ("layer", "other_layer", "step")


@dataclass(frozen=True, eq=False)
class LayerSinks:
    """What is kept of a layer."""

    bits: np.ndarray
    """[step, byte] keys that are a sink of any head."""
    greatest: np.ndarray
    """[head, step] position of the greatest sink, NaN where there is none."""
    keys: np.ndarray
    """[step] keys that exist; 0 where nothing was measured."""


def layer_consistency(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer", "other_layer"),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Overlap of the sinks of two layers at the same step.

    `jaccard` is of the keys that are a sink of any head, shared over all of both; a layer's with
    itself is 1. `same_greatest` is the chance that a head of one and a head of the other, two
    different ones within a layer, have the same greatest sink, of those that have one. The null
    shuffles the steps of one of them; the column `chance` is for as many sinks anywhere. Steps at
    which neither has a sink are missing. Dims: layer, other_layer, step (or progress).
    """
    rule = rule or rulli()

    def measure(ts: Traces) -> Parts:
        every = each_slab(ts, partial(layer_sinks, rule=rule, group=group))
        return [(trace, consistency_quantities(trace, layers)) for trace, layers in every]

    return compare_with_chance(
        measure,
        traces,
        by,
        about={"metric": "layer_consistency", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def layer_sinks(slab: LayerSlice, rule: Rule, group: str = "all") -> LayerSinks:
    place = slab.sink_top(rule, group).T
    there = slab.measured(group).any(axis=1)
    keys = np.sum(~np.isnan(slab.null(group)[:, 0]), axis=-1) * there
    bits = np.packbits(slab.labels(rule, group).any(axis=1), axis=-1)
    return LayerSinks(bits, np.where(place >= 0, place, np.nan), keys)


def consistency_quantities(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    return [*_set_overlap(trace, layers), *_same_greatest(trace, layers)]


def _set_overlap(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    positions = trace.canvas.shape[1]
    sets = np.stack([np.unpackbits(one.bits, axis=-1, count=positions) for one in layers])
    sets = sets[..., sets.any(axis=(0, 1))].astype(np.float32)  # [layer, step, key]
    keys = np.stack([one.keys for one in layers])
    count, steps = len(layers), keys.shape[1]
    sizes = sets.sum(axis=-1)
    value = np.full((count, count, steps), np.nan)
    null, expected = np.full((count, count), np.nan), value.copy()
    for layer in range(count):
        rest = sets[layer:].reshape((count - layer) * steps, sets.shape[-1])
        shared = (sets[layer] @ rest.T).reshape(
            steps, count - layer, steps
        )  # [step, layer, other step]
        either = sizes[layer][:, None, None] + sizes[layer:] - shared
        both = (keys[layer] > 0)[:, None, None] & (keys[layer:] > 0)
        overlap = np.divide(shared, either, out=np.full(shared.shape, np.nan, np.float32),
                            where=both & (either > 0))  # fmt: skip
        known = np.sum(~np.isnan(overlap), axis=(0, 2))
        mean_overlap = np.nansum(overlap, axis=(0, 2), dtype=np.float64) / np.maximum(known, 1)
        null[layer, layer:] = null[layer:, layer] = np.where(known > 0, mean_overlap, np.nan)
        same = np.diagonal(overlap, axis1=0, axis2=2)
        value[layer, layer:] = value[layer:, layer] = same
        random = _random_overlap(sizes[layer], sizes[layer:], keys[layer])
        expected[layer, layer:] = expected[layer:, layer] = np.where(np.isnan(same), np.nan, random)
    return [mean("jaccard", DIMS, value, null[..., None]), chance("jaccard", DIMS, expected)]


def _random_overlap(one: np.ndarray, other: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Expected shared over expected either of sets of these sizes anywhere among the keys."""
    shared = one * other / np.maximum(keys, 1)
    either = one + other - shared
    return np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)


def _same_greatest(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    positions, count = trace.canvas.shape[1], len(layers)
    heads = np.stack([occupancy(one.greatest.T, positions) for one in layers])  # [layer, step, key]
    heads = np.moveaxis(heads.astype(np.float32), 1, 0)
    itself = np.eye(count)[..., None]
    sizes = heads.sum(axis=-1).T.astype(np.float64)  # [layer, step]
    agree = np.moveaxis(heads @ np.swapaxes(heads, 1, 2), 0, -1) - itself * sizes
    pairs = sizes[:, None] * (sizes - itself)
    held_steps = [occupancy(one.greatest, positions).astype(np.float64) for one in layers]
    over_time = np.stack([one.sum(axis=0) for one in held_steps])  # [layer, key]
    number = over_time.sum(axis=-1)
    own = np.diag([np.sum(one**2) for one in held_steps])
    own_pairs = np.diag([np.sum(one.sum(axis=-1) ** 2) for one in held_steps])
    top, bottom = over_time @ over_time.T - own, np.outer(number, number) - own_pairs
    rate = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)[..., None]
    keys = np.maximum(np.stack([one.keys for one in layers]).max(axis=0), 1)
    return [
        ratio("same_greatest", DIMS, agree, pairs, (rate * pairs, pairs * (bottom > 0)[..., None])),
        ratio(f"{CHANCE}same_greatest", DIMS, pairs / keys, pairs),
    ]
