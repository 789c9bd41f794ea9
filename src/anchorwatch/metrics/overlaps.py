"""How alike attention is: of one head some steps apart, of two groups of queries, of two layers.

`null` is the mean over all pairs of steps, what a shuffle of the steps would give. Divergences are
in bits, 0 to 1; theirs are over a seeded choice of pairs where there are many. What is said of
`received` is not said of maps: two maps may differ in every row and add up to the same columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pandas as pd

from anchorwatch.errors import SpecError, TraceError
from anchorwatch.metrics.cells import Quantity, mean, ratio
from anchorwatch.metrics.paths import (
    LAGS,
    Parts,
    along,
    compare_with_chance,
    occupancy,
    sink_path,
)
from anchorwatch.metrics.reading import LayerSlice, Traces, check_traces, require_field
from anchorwatch.metrics.sink_rules import Rule, rulli
from anchorwatch.metrics.stats.ranks import cosine, jensen_shannon
from anchorwatch.metrics.tables import over_slabs
from anchorwatch.trace.trace import Trace

MOST_PAIRS = 128
"""Pairs of steps that a divergence's null is the mean of."""
_TINY = np.float32(1e-37)
"""Makes 0 log 0 zero; shares are far above it."""


def set_jaccard(
    traces: Traces,
    rule: Rule | None = None,
    *,
    lags: Sequence[int] = LAGS,
    group: str = "all",
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Overlap of a head's sinks with its sinks `lag` steps before: shared keys over all of both.

    Two steps without any sink have no overlap: they are missing. Dims: lag (always), step (the
    later one, or progress), layer, head.
    """
    rule, lags = rule or rulli(), checked_lags(lags)
    kernel = partial(jaccard_cells, rule=rule, lags=lags, group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        along("lag", by),
        about={"metric": "set_jaccard", "rule": str(rule), "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def jaccard_cells(
    slab: LayerSlice, rule: Rule, lags: Sequence[int] = LAGS, group: str = "all"
) -> list[Quantity]:
    labels = slab.labels(rule, group)
    steps, heads, _ = labels.shape
    there = slab.measured(group)
    value, null = np.full((heads, steps, len(lags)), np.nan), np.full(heads, np.nan)
    for head in range(heads):
        sets = labels[:, head]
        sets = sets[:, sets.any(axis=0)].astype(np.float32)
        overlap = _jaccard(sets, sets)
        overlap[~there[:, head]] = np.nan
        overlap[:, ~there[:, head]] = np.nan
        value[head], null[head] = _by_lag(overlap, lags)
    return [_lag_quantity("jaccard", value, null, lags)]


def received_similarity(
    traces: Traces,
    *,
    lags: Sequence[int] = LAGS,
    group: str = "all",
    by: Sequence[str] = (),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
    """Likeness of what all keys receive to what they received `lag` steps before, head by head.

    `received_cosine` and `received_jensen_shannon` (bits); keys that did not exist yet received
    nothing. It is no likeness of maps: see `map_similarity`. Dims: lag (always), step (the later
    one, or progress), layer, head.
    """
    kernel = partial(similarity_cells, lags=checked_lags(lags), group=group)
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        along("lag", by),
        about={"metric": "received_similarity", "group": group},
        others={"frozen": frozen, "untrained": untrained},
    )


def similarity_cells(
    slab: LayerSlice, lags: Sequence[int] = LAGS, group: str = "all"
) -> list[Quantity]:
    shares = slab.shares(group)
    steps, heads, _ = shares.shape
    values = np.full((2, heads, steps, len(lags)), np.nan)
    nulls = np.full((2, heads), np.nan)
    pairs = chosen_pairs(np.flatnonzero(slab.measured(group).any(axis=1)))
    for head in range(heads):
        weights = _weights(shares[:, head])
        with np.errstate(invalid="ignore", divide="ignore"):
            gram = weights @ weights.T
            size = np.sqrt(np.diagonal(gram))
            gram = gram / (size[:, None] * size)
        values[0, head], nulls[0, head] = _by_lag(np.minimum(gram, 1.0), lags)
        entropy = _plogp(weights)
        for index, lag in enumerate(lags):
            if lag < steps:
                values[1, head, lag:, index] = _divergence(
                    weights[lag:] + weights[:-lag], entropy[lag:] + entropy[:-lag]
                )
        one, other = pairs
        apart = _divergence(weights[one] + weights[other], entropy[one] + entropy[other])
        nulls[1, head] = apart.mean() if len(apart) else np.nan
    names = ("received_cosine", "received_jensen_shannon")
    return [
        _lag_quantity(name, value, null, lags)
        for name, value, null in zip(names, values, nulls, strict=True)
    ]


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
    lags = checked_lags(lags)

    def measure(ts: Traces) -> Parts:
        return [(trace, map_quantities(trace, lags)) for trace in check_traces(ts)]

    return compare_with_chance(
        measure,
        traces,
        along("lag", by),
        about={"metric": "map_similarity"},
        others={"frozen": frozen, "untrained": untrained},
    )


def map_quantities(trace: Trace, lags: Sequence[int] = LAGS) -> list[Quantity]:
    maps = require_field(trace, "pattern")
    step, layer, head = (trace[f"pick_{name}"].values for name in ("step", "layer", "head"))
    model = trace.manifest["model"]
    shape = (model["layers"], model["heads"], len(lags))
    sums = np.zeros((2, 2, *shape))  # [measure, value or null, ...]
    counts = np.zeros((2, *shape))  # [value or null, ...]
    for cell in sorted(set(zip(layer.tolist(), head.tolist(), strict=True))):
        picks = np.flatnonzero((layer == cell[0]) & (head == cell[1]))
        held_maps = dict(zip(step[picks].tolist(), maps[picks].values, strict=True))
        every = list(combinations(sorted(held_maps), 2))
        drawn = {every[index] for index in _choice(len(every))}
        for pair in every:
            lag = pair[1] - pair[0]
            wanted = [index for index, one in enumerate(lags) if one == lag]
            if not wanted and pair not in drawn:
                continue
            alike = _alike(*(held_maps[at] for at in pair))
            for kind, places in ((0, wanted), (1, slice(None) if pair in drawn else [])):
                sums[:, kind, cell[0], cell[1], places] += alike[:, None]
                counts[kind, cell[0], cell[1], places] += 1
    if not counts[1].any():
        raise TraceError(
            "the trace has maps of one step only, and a likeness needs two: measure more with "
            "aw.replay(model, trace, probes=[aw.probes.pattern(steps=[0, 1, 2, ...])])"
        )
    names, labels = ("map_cosine", "map_jensen_shannon"), {"lag": list(lags)}
    dims = ("layer", "head", "lag")
    there = counts[0] > 0
    return [
        ratio(name, dims, top[0], counts[0], (top[1] * there, counts[1] * there), labels)
        for name, top in zip(names, sums, strict=True)
    ]


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Mean cosine and divergence over the rows that exist in both maps."""
    rows = ~(np.isnan(one).all(axis=1) | np.isnan(other).all(axis=1))
    return np.array(
        [measure(one[rows], other[rows]).mean() for measure in (cosine, jensen_shannon)]
    )


def split_index(
    traces: Traces,
    rule: Rule | None = None,
    *,
    groups: tuple[str, str] = ("masked", "written"),
    by: Sequence[str] = ("layer",),
    frozen: Traces | None = None,
    untrained: Traces | None = None,
) -> pd.DataFrame:
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
    return compare_with_chance(
        lambda ts: over_slabs(ts, kernel),
        traces,
        by,
        about={"metric": "split_index", "rule": str(rule), "groups": list(groups)},
        others={"frozen": frozen, "untrained": untrained},
    )


def split_cells(
    slab: LayerSlice, rule: Rule, groups: tuple[str, str] = ("masked", "written")
) -> list[Quantity]:
    there = (slab.measured(groups[0]) & slab.measured(groups[1])).T  # [head, step]
    one, other = (np.where(there, sink_path(slab, rule, group), np.nan) for group in groups)
    both = ~np.isnan(one) & ~np.isnan(other)
    apart = np.where(both, one != other, np.nan)
    split = np.where(there, both & (one != other), np.nan)
    dims, positions = ("head", "step"), slab.trace.canvas.shape[1]
    steps = np.maximum(there.sum(axis=1, keepdims=True), 1)
    null = _elsewhere(one, other, positions) / steps
    given = np.where(both, one, np.nan), np.where(both, other, np.nan)
    null_given = _elsewhere(*given, positions) / np.maximum(both.sum(axis=1, keepdims=True), 1)
    value, expected = _divergence_between_groups(slab, groups, there)
    return [
        mean("split", dims, split, null),
        mean("split_given_both", dims, apart, null_given),
        mean("split_jensen_shannon", dims, value, expected),
    ]


def _elsewhere(one: np.ndarray, other: np.ndarray, positions: int) -> np.ndarray:
    """[head, step] steps at which `other` is, and not where `one` is at this step."""
    steps_at = occupancy(other, positions)
    here = np.take_along_axis(steps_at, np.nan_to_num(one).astype(int), axis=1)
    return np.where(np.isnan(one), 0, steps_at.sum(axis=1, keepdims=True) - here)


def _divergence_between_groups(
    slab: LayerSlice, groups: tuple[str, str], there: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """[head, step] divergence between groups, and with the second one's steps shuffled."""
    value, null = np.full(there.shape, np.nan), np.full(there.shape, np.nan)
    steps = np.flatnonzero(there.any(axis=0))
    order = np.random.default_rng(0).permutation(len(steps))
    for head in range(len(there)):
        a, b = (_weights(slab.shares(group)[steps, head]) for group in groups)
        ha, hb = _plogp(a), _plogp(b)
        value[head, steps] = _divergence(a + b, ha + hb)
        null[head, steps] = _divergence(a + b[order], ha + hb[order])
    return value, null


def checked_lags(lags: Sequence[int]) -> tuple[int, ...]:
    """Whole numbers of at least 1, each once."""
    if isinstance(lags, int) or not len(lags):
        raise SpecError(f"lags={lags!r} is not a list of steps: say lags=[1, 2, 4]")
    if any(not isinstance(lag, int | np.integer) or lag < 1 for lag in lags):
        raise SpecError(f"lags={list(lags)}: a lag is a whole number of at least 1")
    return tuple(int(lag) for lag in dict.fromkeys(lags))


def chosen_pairs(steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of steps, or a seeded choice of them where there are many."""
    one, other = np.triu_indices(len(steps), 1)
    kept = _choice(len(one))
    return steps[one[kept]], steps[other[kept]]


def _choice(count: int) -> np.ndarray:
    if count <= MOST_PAIRS:
        return np.arange(count)
    return np.random.default_rng(0).choice(count, MOST_PAIRS, replace=False)


def _lag_quantity(name: str, value: np.ndarray, null: np.ndarray, lags: Sequence[int]) -> Quantity:
    """A quantity of [head, step, lag] values; steps without one so far before are not missing."""
    labels = {"lag": list(lags)}
    found = mean(name, ("head", "step", "lag"), value, null[:, None, None], labels)
    assert found.missing is not None
    possible = np.arange(value.shape[1])[:, None] >= np.asarray(lags)
    return replace(found, missing=found.missing * possible)


def _by_lag(square: np.ndarray, lags: Sequence[int]) -> tuple[np.ndarray, float]:
    """([step, lag] values at the later step, mean over all pairs) of [step, step] values."""
    steps = len(square)
    value = np.full((steps, len(lags)), np.nan)
    for index, lag in enumerate(lags):
        if lag < steps:
            value[lag:, index] = np.diagonal(square, lag)
    pairs = square[np.triu_indices(steps, 1)]
    pairs = pairs[~np.isnan(pairs)]
    return value, float(pairs.mean()) if len(pairs) else np.nan


def _jaccard(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """[row of one, row of other] of float 0-1 sets [row, key]; NaN where both are empty."""
    shared = (one @ other.T).astype(np.float64)
    either = one.sum(axis=1)[:, None] + other.sum(axis=1) - shared
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
