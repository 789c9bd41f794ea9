"""How similar attention is: of a head at two steps, of two query groups, of two layers.

Of a head some steps apart (sink sets, received attention, whole maps), of masked and written
queries, and of the sinks of two layers at the same step. `null` is the mean over all pairs of
steps, what a shuffle of the steps would give. Divergences are in bits, 0 to 1; theirs are over a
seeded choice of pairs where there are many. What is said of `received` is not said of maps: two
maps may differ in every row and add up to the same columns. Layers are read one at a time; their
sink sets are kept as bits until all are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.layer_slices import LayerSlice, Traces, check_traces, require_field
from anchorwatch.metrics.movement import occupancy
from anchorwatch.metrics.registry import Reading, custom_metric, read_quantities
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import cosine, jensen_shannon
from anchorwatch.metrics.table import (
    CHANCE,
    Parts,
    Quantity,
    chance,
    compare_with_chance,
    mean,
    ratio,
    split_always,
)
from anchorwatch.trace.trace import Trace

LAGS = (1, 2, 4, 8, 16, 32)
MOST_PAIRS = 128
"""Pairs of steps that a divergence's null is the mean of."""
_TINY = np.float32(1e-37)
"""Makes 0 log 0 zero; shares are far above it."""


@custom_metric(default=True)
def set_jaccard(
    traces: Traces,
    rule: Rule | None = None,
    *,
    lags: Sequence[int] = LAGS,
    group: str = "all",
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Overlap of a head's sinks with its sinks `lag` steps before: shared keys over all of both.

    Two steps without any sink have no overlap: they are missing. Dims: lag (always), step (the
    later one, or progress), layer, head.
    """
    rule, lags = rule or rulli(), check_lags(lags)
    kernel = partial(jaccard_cells, rule=rule, lags=lags, group=group)
    return read_quantities(
        traces,
        kernel,
        split_always("lag", by),
        about={"metric": "set_jaccard", "rule": str(rule), "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def jaccard_cells(
    layer: LayerSlice, rule: Rule, lags: Sequence[int] = LAGS, group: str = "all"
) -> list[Quantity]:
    labels = layer.labels(rule, group)
    steps, heads, _ = labels.shape
    measured = layer.is_measured(group)
    value, null = np.full((heads, steps, len(lags)), np.nan), np.full(heads, np.nan)
    for head in range(heads):
        sets = labels[:, head]
        # Keys that are never a sink of this head only cost time.
        sets = sets[:, sets.any(axis=0)].astype(np.float32)
        overlap = _jaccard(sets, sets)
        overlap[~measured[:, head]] = np.nan
        overlap[:, ~measured[:, head]] = np.nan
        value[head], null[head] = _by_lag(overlap, lags)
    return [_lag_quantity("jaccard", value, null, lags)]


@custom_metric(default=True)
def received_similarity(
    traces: Traces,
    *,
    lags: Sequence[int] = LAGS,
    group: str = "all",
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Likeness of what all keys receive to what they received `lag` steps before, head by head.

    `received_cosine` and `received_jensen_shannon` (bits); keys that did not exist yet received
    nothing. It is no likeness of maps: see `map_similarity`. Dims: lag (always), step (the later
    one, or progress), layer, head.
    """
    kernel = partial(similarity_cells, lags=check_lags(lags), group=group)
    return read_quantities(
        traces,
        kernel,
        split_always("lag", by),
        about={"metric": "received_similarity", "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def similarity_cells(
    layer: LayerSlice, lags: Sequence[int] = LAGS, group: str = "all"
) -> list[Quantity]:
    # 1. [measure, head, step, lag] values, and one null for each head.
    shares = layer.shares(group)
    steps, heads, _ = shares.shape
    values = np.full((2, heads, steps, len(lags)), np.nan)
    nulls = np.full((2, heads), np.nan)
    pairs = choose_pairs(np.flatnonzero(layer.is_measured(group).any(axis=1)))
    for head in range(heads):
        weights = _weights(shares[:, head])
        # 2. Cosines of all pairs of steps at once, from the Gram matrix.
        with np.errstate(invalid="ignore", divide="ignore"):
            gram = weights @ weights.T
            size = np.sqrt(np.diagonal(gram))
            gram = gram / (size[:, None] * size)
        values[0, head], nulls[0, head] = _by_lag(np.minimum(gram, 1.0), lags)
        # 3. Divergences of the wanted lags only, from sums of w ln w: JS = H(mean) - mean H.
        entropy = _plogp(weights)
        for index, lag in enumerate(lags):
            if lag < steps:
                values[1, head, lag:, index] = _divergence(
                    weights[lag:] + weights[:-lag], entropy[lag:] + entropy[:-lag]
                )
        # 4. Their null: the mean over chosen pairs of steps.
        first, second = pairs
        apart = _divergence(weights[first] + weights[second], entropy[first] + entropy[second])
        nulls[1, head] = apart.mean() if len(apart) else np.nan
    names = ("received_cosine", "received_jensen_shannon")
    return [
        _lag_quantity(name, value, null, lags)
        for name, value, null in zip(names, values, nulls, strict=True)
    ]


@custom_metric()
def map_similarity(
    traces: Traces,
    *,
    lags: Sequence[int] = LAGS,
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Likeness of a head's full map to its map `lag` steps before, row by row.

    `map_cosine` and `map_jensen_shannon` (bits) are means over queries, of the keys that exist at
    both steps. Needs `pattern`; steps and heads without a map are missing. Dims: lag (always),
    layer, head.
    """
    lags = check_lags(lags)

    def measure(some: Traces) -> Parts:
        return [(trace, map_quantities(trace, lags)) for trace in check_traces(some)]

    others = {"frozen": frozen, "untrained": untrained}
    return compare_with_chance(
        measure(traces),
        {name: None if other is None else measure(other) for name, other in others.items()},
        split_always("lag", by),
        about={"metric": "map_similarity"},
    )


def map_quantities(trace: Trace, lags: Sequence[int] = LAGS) -> list[Quantity]:
    # 1. Sums and counts of likeness: of pairs at a wanted lag (value), of chosen pairs (null).
    maps = require_field(trace, "pattern")
    step, layer, head = (trace[f"pick_{name}"].values for name in ("step", "layer", "head"))
    model = trace.manifest["model"]
    shape = (model["layers"], model["heads"], len(lags))
    sums = np.zeros((2, 2, *shape))  # [measure, value or null, ...]
    counts = np.zeros((2, *shape))  # [value or null, ...]
    # 2. The maps of one head at a time; each pair is compared once, whatever it is for.
    for cell in sorted(set(zip(layer.tolist(), head.tolist(), strict=True))):
        picks = np.flatnonzero((layer == cell[0]) & (head == cell[1]))
        held_maps = dict(zip(step[picks].tolist(), maps[picks].values, strict=True))
        every = list(combinations(sorted(held_maps), 2))
        drawn = {every[index] for index in _choice(len(every))}
        for pair in every:
            lag = pair[1] - pair[0]
            wanted = [index for index, wanted_lag in enumerate(lags) if wanted_lag == lag]
            if not wanted and pair not in drawn:
                continue
            alike = _alike(*(held_maps[pair_step] for pair_step in pair))
            for kind, places in ((0, wanted), (1, slice(None) if pair in drawn else [])):
                sums[:, kind, cell[0], cell[1], places] += alike[:, None]
                counts[kind, cell[0], cell[1], places] += 1
    # 3. Without two maps of a head there is no likeness at all.
    if not counts[1].any():
        raise TraceError(
            "the trace has maps of one step only, and a likeness needs two: measure more with "
            "aw.replay(model, trace, probes=[aw.probes.pattern(steps=[0, 1, 2, ...])])"
        )
    # 4. The null is over the cells that have a value.
    names, labels = ("map_cosine", "map_jensen_shannon"), {"lag": list(lags)}
    dims = ("layer", "head", "lag")
    known = counts[0] > 0
    return [
        ratio(name, dims, top[0], counts[0], (top[1] * known, counts[1] * known), labels)
        for name, top in zip(names, sums, strict=True)
    ]


def _alike(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Mean cosine and divergence over the rows that exist in both maps."""
    rows = ~(np.isnan(first).all(axis=1) | np.isnan(second).all(axis=1))
    return np.array(
        [measure(first[rows], second[rows]).mean() for measure in (cosine, jensen_shannon)]
    )


@custom_metric(default=True)
def split_index(
    traces: Traces,
    rule: Rule | None = None,
    *,
    groups: tuple[str, str] = ("masked", "written"),
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Whether two groups of queries, masked and written ones, have different greatest sinks.

    `split` is the share of steps at which both have a sink and not the same, `split_given_both` of
    the steps at which both have one; `split_jensen_shannon` (bits) is between what keys receive
    from either. The null pairs one group with the other's shuffled steps: a lasting split has a
    null as large as itself. A step at which a group has no queries is missing. Dims: step (or
    progress), layer, head.
    """
    rule = rule or rulli()
    if isinstance(groups, str) or len(groups) != 2:
        raise SpecError(f"groups={groups!r} is not a pair: say groups=('masked', 'written')")
    kernel = partial(split_cells, rule=rule, groups=groups)
    return read_quantities(
        traces,
        kernel,
        by,
        about={"metric": "split_index", "rule": str(rule), "groups": list(groups)},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def split_cells(
    layer: LayerSlice, rule: Rule, groups: tuple[str, str] = ("masked", "written")
) -> list[Quantity]:
    measured = (layer.is_measured(groups[0]) & layer.is_measured(groups[1])).T  # [head, step]
    first, second = (np.where(measured, layer.sink_path(rule, group), np.nan) for group in groups)
    # Steps at which both groups have a sink.
    both = ~np.isnan(first) & ~np.isnan(second)
    apart = np.where(both, first != second, np.nan)
    split = np.where(measured, both & (first != second), np.nan)
    dims, positions = ("head", "step"), layer.trace.canvas.shape[1]
    steps = np.maximum(measured.sum(axis=1, keepdims=True), 1)
    null = _elsewhere(first, second, positions) / steps
    given = np.where(both, first, np.nan), np.where(both, second, np.nan)
    null_given = _elsewhere(*given, positions) / np.maximum(both.sum(axis=1, keepdims=True), 1)
    value, expected = _divergence_between_groups(layer, groups, measured)
    return [
        mean("split", dims, split, null),
        mean("split_given_both", dims, apart, null_given),
        mean("split_jensen_shannon", dims, value, expected),
    ]


def _elsewhere(path: np.ndarray, other: np.ndarray, positions: int) -> np.ndarray:
    """[head, step] steps at which `other` is, and not where `one` is at this step."""
    steps_at = occupancy(other, positions)
    # Steps at which the other path is here; all its steps less these are elsewhere.
    here = np.take_along_axis(steps_at, np.nan_to_num(path).astype(int), axis=1)
    return np.where(np.isnan(path), 0, steps_at.sum(axis=1, keepdims=True) - here)


def _divergence_between_groups(
    layer: LayerSlice, groups: tuple[str, str], measured: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """[head, step] divergence between groups, and with the second one's steps shuffled."""
    value, null = np.full(measured.shape, np.nan), np.full(measured.shape, np.nan)
    steps = np.flatnonzero(measured.any(axis=0))
    # Seeded: the same trace gives the same null.
    order = np.random.default_rng(0).permutation(len(steps))
    for head in range(len(measured)):
        a, b = (_weights(layer.shares(group)[steps, head]) for group in groups)
        ha, hb = _plogp(a), _plogp(b)
        value[head, steps] = _divergence(a + b, ha + hb)
        null[head, steps] = _divergence(a + b[order], ha + hb[order])
    return value, null


def check_lags(lags: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers of at least 1, each once."""
    if isinstance(lags, int) or not len(lags):
        raise SpecError(f"lags={lags!r} is not a list of steps: say lags=[1, 2, 4]")
    if any(not isinstance(lag, int | np.integer) or lag < 1 for lag in lags):
        raise SpecError(f"lags={list(lags)}: a lag is a whole number of at least 1")
    return tuple(int(lag) for lag in dict.fromkeys(lags))


def choose_pairs(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of steps, or a seeded choice of them where there are many."""
    first, second = np.triu_indices(len(steps), 1)
    kept = _choice(len(first))
    return steps[first[kept]], steps[second[kept]]


def _choice(count: int) -> np.ndarray:
    if count <= MOST_PAIRS:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, MOST_PAIRS, replace=False)


def _lag_quantity(name: str, value: np.ndarray, null: np.ndarray, lags: Sequence[int]) -> Quantity:
    """A quantity of [head, step, lag] values; steps without one so far before are not missing."""
    labels = {"lag": list(lags)}
    quantity = mean(name, ("head", "step", "lag"), value, null[:, None, None], labels)
    assert quantity.missing is not None
    possible = np.arange(value.shape[1])[:, None] >= np.asarray(lags)
    return replace(quantity, missing=quantity.missing * possible)


def _by_lag(square: np.ndarray, lags: Sequence[int]) -> tuple[np.ndarray, float]:
    """([step, lag] values at the later step, mean over all pairs) of [step, step] values."""
    steps = len(square)
    value = np.full((steps, len(lags)), np.nan)
    for index, lag in enumerate(lags):
        if lag < steps:
            # The lag-th diagonal holds all pairs so far apart, by their later step.
            value[lag:, index] = np.diagonal(square, lag)
    pairs = square[np.triu_indices(steps, 1)]
    pairs = pairs[~np.isnan(pairs)]
    return value, float(pairs.mean()) if len(pairs) else np.nan


def _jaccard(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[row of one, row of other] of float 0-1 sets [row, key]; NaN where both are empty."""
    shared = (first @ second.T).astype(np.float64)
    either = first.sum(axis=1)[:, None] + second.sum(axis=1) - shared
    return np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)


def _weights(shares: np.ndarray) -> np.ndarray:
    """[step, key] scaled to sum to one, absent keys 0; NaN where a step is absent."""
    filled = np.nan_to_num(shares)
    with np.errstate(invalid="ignore"):
        return filled / filled.sum(axis=-1, keepdims=True)


def _plogp(weights: np.ndarray) -> np.ndarray:
    """[step] sum of w ln w."""
    return np.einsum("sk,sk->s", weights, np.log(weights + _TINY))


def _divergence(both: np.ndarray, plogp: np.ndarray) -> np.ndarray:
    """Jensen-Shannon in bits of p and q from p + q and the sum of their sums of w ln w."""
    return np.clip((plogp - _plogp(both)) / (2 * np.log(2)) + 1, 0, 1)


DIMS = ("layer", "other_layer", "step")


@dataclass(frozen=True, eq=False)
class LayerSinks:
    """What is kept of a layer: its sink sets, its top sinks, how many keys it has."""

    bits: np.ndarray
    """[step, byte] keys that are a sink of any head."""
    greatest: np.ndarray
    """[head, step] position of the greatest sink, NaN where there is none."""
    keys: np.ndarray
    """[step] keys that exist; 0 where nothing was measured."""


@custom_metric(default=True)
def layer_consistency(
    traces: Traces,
    rule: Rule | None = None,
    *,
    group: str = "all",
    by: Sequence[str] = ("layer", "other_layer"),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> Reading:
    """Overlap of the sinks of two layers at the same step.

    `jaccard` is of the keys that are a sink of any head, shared over all of both; a layer's with
    itself is 1. `same_greatest` is the chance that a head of one and a head of the other, two
    different ones within a layer, have the same greatest sink, of those that have one. The null
    shuffles the steps of one of them; the column `chance` is for as many sinks anywhere. Steps at
    which neither has a sink are missing. Dims: layer, other_layer, step (or progress).
    """
    rule = rule or rulli()

    return read_quantities(
        traces,
        partial(layer_sinks, rule=rule, group=group),
        by,
        combine=consistency_quantities,
        about={"metric": "layer_consistency", "rule": str(rule), "group": group},
        baselines={"frozen": frozen, "untrained": untrained},
    )


def layer_sinks(layer: LayerSlice, rule: Rule, group: str = "all") -> LayerSinks:
    position = layer.top_sink(rule, group).T
    measured = layer.is_measured(group).any(axis=1)
    keys = np.sum(~np.isnan(layer.null(group)[:, 0]), axis=-1) * measured
    bits = np.packbits(layer.labels(rule, group).any(axis=1), axis=-1)
    return LayerSinks(bits, np.where(position >= 0, position, np.nan), keys)


def consistency_quantities(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    return [*_set_overlap(trace, layers), *_same_greatest(trace, layers)]


def _set_overlap(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    # 1. Sink sets of every layer and step, unpacked, without keys that never are one.
    positions = trace.canvas.shape[1]
    sets = np.stack([np.unpackbits(kept.bits, axis=-1, count=positions) for kept in layers])
    sets = sets[..., sets.any(axis=(0, 1))].astype(np.float32)  # [layer, step, key]
    keys = np.stack([kept.keys for kept in layers])
    count, steps = len(layers), keys.shape[1]
    sizes = sets.sum(axis=-1)
    value = np.full((count, count, steps), np.nan)
    null, expected = np.full((count, count), np.nan), value.copy()
    # 2. A layer against itself and all later ones, every step against every step.
    for layer in range(count):
        rest = sets[layer:].reshape((count - layer) * steps, sets.shape[-1])
        shared = (sets[layer] @ rest.T).reshape(
            steps, count - layer, steps
        )  # [step, layer, other step]
        either = sizes[layer][:, None, None] + sizes[layer:] - shared
        both = (keys[layer] > 0)[:, None, None] & (keys[layer:] > 0)
        overlap = np.divide(shared, either, out=np.full(shared.shape, np.nan, np.float32),
                            where=both & (either > 0))  # fmt: skip
        # 3. The mean over all pairs of steps is the null, the diagonal (same step) the value.
        known = np.sum(~np.isnan(overlap), axis=(0, 2))
        mean_overlap = np.nansum(overlap, axis=(0, 2), dtype=np.float64) / np.maximum(known, 1)
        null[layer, layer:] = null[layer:, layer] = np.where(known > 0, mean_overlap, np.nan)
        same = np.diagonal(overlap, axis1=0, axis2=2)
        value[layer, layer:] = value[layer:, layer] = same
        # 4. Chance: as many sinks anywhere.
        random = _random_overlap(sizes[layer], sizes[layer:], keys[layer])
        expected[layer, layer:] = expected[layer:, layer] = np.where(np.isnan(same), np.nan, random)
    return [mean("jaccard", DIMS, value, null[..., None]), chance("jaccard", DIMS, expected)]


def _random_overlap(first: np.ndarray, second: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Expected shared over expected either of sets of these sizes anywhere among the keys."""
    shared = first * second / np.maximum(keys, 1)
    either = first + second - shared
    return np.divide(shared, either, out=np.full(shared.shape, np.nan), where=either > 0)


def _same_greatest(trace: Trace, layers: Sequence[LayerSinks]) -> list[Quantity]:
    positions, count = trace.canvas.shape[1], len(layers)
    heads = np.stack(
        [occupancy(kept.greatest.T, positions) for kept in layers]
    )  # [layer, step, key]
    heads = np.moveaxis(heads.astype(np.float32), 1, 0)
    itself = np.eye(count)[..., None]
    sizes = heads.sum(axis=-1).T.astype(np.float64)  # [layer, step]
    # 1. Pairs of heads with the same top sink at a step; within a layer no head with itself.
    agree = np.moveaxis(heads @ np.swapaxes(heads, 1, 2), 0, -1) - itself * sizes
    pairs = sizes[:, None] * (sizes - itself)
    # 2. The null pairs a head at one step with another at any step, itself left out.
    held_steps = [occupancy(kept.greatest, positions).astype(np.float64) for kept in layers]
    over_time = np.stack([kept.sum(axis=0) for kept in held_steps])  # [layer, key]
    number = over_time.sum(axis=-1)
    own = np.diag([np.sum(kept**2) for kept in held_steps])
    own_pairs = np.diag([np.sum(kept.sum(axis=-1) ** 2) for kept in held_steps])
    top, bottom = over_time @ over_time.T - own, np.outer(number, number) - own_pairs
    rate = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)[..., None]
    keys = np.maximum(np.stack([kept.keys for kept in layers]).max(axis=0), 1)
    return [
        ratio("same_greatest", DIMS, agree, pairs, (rate * pairs, pairs * (bottom > 0)[..., None])),
        ratio(f"{CHANCE}same_greatest", DIMS, pairs / keys, pairs),
    ]
