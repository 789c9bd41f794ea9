"""How strong sinks are: how many keys, how much attention they absorb, how concentrated it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from anchorwatch.errors import SpecError
from anchorwatch.metrics.layer_slices import LayerSlice, Traces
from anchorwatch.metrics.registry import Reading, custom_metric, metric, read_quantities
from anchorwatch.metrics.sink_rules import (
    RESOLUTION,
    Rule,
    check_rule,
    gu,
    rulli,
    topk,
    zscore,
)
from anchorwatch.metrics.table import (
    ROUNDING,
    Cell,
    Quantity,
    mean,
    ratio,
    split_always,
    total,
)

CELL = ("step", "head")
EPS = tuple(np.arange(0, 10.25, 0.25).tolist())
HEADS = ("each", "mean", "both")
OF_THE_MEAN = "of the head mean"
"""What the quantities of a mean over heads are called beside those of each head."""
SETS = ("first", "top1", "top3", "top5", "top10")
RULES = (rulli(), zscore(), gu(), topk())
EVEN = 1 + 1e-6
"""An even share of T keys, summed up, is 1 on the sum scale, and in the bin that begins there."""


@metric(by=("layer",), default=True)
def sinks(layer: LayerSlice, rule: Rule, *, group: str) -> list[Quantity]:
    """Sinks per head and step: count, incidence (any at all), absorbed share, greatest share.

    The null of a count is what the rule says of uniform attention; of a share, what the same
    keys would receive from it. Dims: step (or progress), layer, head.
    """
    labels, shares, null = layer.labels(rule, group), layer.shares(group), layer.null(group)
    measured = layer.is_measured(group)
    # Adding it turns what was not measured into NaN.
    empty = np.where(measured, 0.0, np.nan)
    count = labels.sum(axis=-1) + empty
    null_count = layer.null_labels(rule, group).sum(axis=-1) + empty
    position, most = layer.top_key(group)
    # What uniform attention gives the key that received most.
    expected = np.take_along_axis(
        np.broadcast_to(null, shares.shape), np.maximum(position, 0)[..., None], axis=-1
    )[..., 0]
    return [
        mean("count", CELL, count, null_count),
        mean("incidence", CELL, (count > 0) + empty, (null_count > 0) + empty),
        mean(
            "absorbed",
            CELL,
            np.sum(shares, axis=-1, where=labels) + empty,
            np.sum(np.broadcast_to(null, shares.shape), axis=-1, where=labels) + empty,
        ),
        mean("greatest", CELL, most, expected),
    ]


@custom_metric(default=True)
def absorption(
    traces: Traces,
    sets: Sequence[str | Rule] = SETS,
    *,
    group: str = "all",
    heads: str = "each",
    by: Sequence[str] = ("layer",),
) -> Reading:
    """Share of attention that a set of keys absorbs: the same sets for every model.

    `first` is position 0, `topK` the K greatest keys, a rule the keys it calls sinks. The null is
    what uniform attention under the same visibility gives the same keys. `heads` "each" finds the
    set in each head and takes the mean, "mean" finds one set in the mean over heads, as 2601.07894
    published it (the quantities are then called `top1 of the head mean`), "both" has both: heads
    whose top keys differ absorb more each than their mean does.
    """
    chosen = {str(keys): _key_set(keys) for keys in sets}
    if isinstance(sets, str) or not chosen:
        raise SpecError(f"sets={sets!r} is not a list: say sets=['first', 'top5', rulli()]")
    if heads not in HEADS:
        raise SpecError(f"heads={heads!r} is unknown: expected one of {', '.join(HEADS)}")
    if heads != "each" and "head" in by:
        raise SpecError("a mean over heads has no head to be split by: leave head out of by")
    kernel = partial(_absorption_of_heads, sets=chosen, group=group, heads=heads)
    about = {"metric": "absorption", "sets": list(chosen), "group": group, "heads": heads}
    return read_quantities(traces, kernel, by, about=about)


def _absorption_of_heads(
    layer: LayerSlice, sets: dict[str, Rule | None], group: str, heads: str
) -> list[Quantity]:
    """Of each head, of the mean over heads, or of both."""
    shares, seen = layer.shares(group), layer.visible_share(group)
    null = layer.null(group)
    quantities = _absorption_cells(shares, null, seen, sets) if heads != "mean" else []
    if heads != "each":
        mean_shares = shares.mean(axis=1, keepdims=True, dtype=np.float64)
        quantities += [
            replace(quantity, name=f"{quantity.name} {OF_THE_MEAN}")
            for quantity in _absorption_cells(mean_shares, null, seen, sets)
        ]
    return quantities


def _absorption_cells(
    shares: np.ndarray, null: np.ndarray, seen: np.ndarray, sets: dict[str, Rule | None]
) -> list[Quantity]:
    """Of shares [step, head, key] and what uniform attention gives, [step, 1, key]."""
    null = np.broadcast_to(null, shares.shape)
    empty = np.where(np.isnan(shares[..., 0]), np.nan, 0.0)
    # All top-k sets come from one partial sort for the largest k.
    counts = [rule.k for rule in sets.values() if isinstance(rule, topk)]
    by_top = _held_by_top(shares, null, max(counts)) if counts else np.zeros(0)
    quantities = []
    for name, rule in sets.items():
        if rule is None:
            quantities.append(mean(name, CELL, shares[..., 0], null[..., 0] + empty))
            continue
        if isinstance(rule, topk):
            value, expected = by_top[..., min(rule.k, by_top.shape[-1]) - 1]
        else:
            labels = check_rule(rule).labels(shares, seen)
            value = np.sum(shares, axis=-1, where=labels)
            expected = np.sum(null, axis=-1, where=labels)
        quantities.append(mean(name, CELL, value + empty, expected + empty))
    return quantities


def _held_by_top(shares: np.ndarray, null: np.ndarray, most: int) -> np.ndarray:
    """[2, step, head, k]: what the k + 1 greatest keys hold together, and what they would."""
    # 1. The greatest keys of each row, in the order of positions.
    best = topk(most).labels(shares)
    count = best.sum(axis=-1)
    width = max(1, int(count.max()))
    places = np.zeros((*count.shape, width), dtype=int)
    used = np.arange(width) < count[..., None]
    places[used] = np.nonzero(best)[-1]  # the found keys of each row, in order
    picked = np.where(used, np.take_along_axis(shares, places, axis=-1), 0)
    # 2. From the greatest down, and added up: the k-th sum is what the top k hold.
    order = np.argsort(-picked, axis=-1, kind="stable")
    expected = np.where(used, np.take_along_axis(null, places, axis=-1), 0)
    both = [np.take_along_axis(array, order, axis=-1) for array in (picked, expected)]
    return np.cumsum(both, axis=-1, dtype=np.float64)


def _key_set(name: str | Rule) -> Rule | None:
    if isinstance(name, Rule):
        return name
    if name == "first":
        return None
    if isinstance(name, str) and name.startswith("top") and name[3:].isdecimal():
        return topk(int(name[3:]))
    raise SpecError(f"no set of keys is called {name!r}: expected first, top1, top5, ... or a rule")


@metric(default=True)
def sink_rate(layer: LayerSlice, eps: float = 0.3, *, group: str) -> list[Quantity]:
    """Share of heads with a key above eps (Gu et al.): anywhere, and at the first position.

    A key's score is its share among the queries that may look at it, fair to causal models.
    """
    labels, null = layer.labels(gu(eps), group), layer.null_labels(gu(eps), group)
    empty = np.where(layer.is_measured(group), 0.0, np.nan)
    return [
        mean("anywhere", CELL, labels.any(axis=-1) + empty, null.any(axis=-1) + empty),
        mean("first", CELL, labels[..., 0] + empty, null[..., 0] + empty),
    ]


@metric(by=("layer",), default=True)
def concentration(layer: LayerSlice, *, group: str) -> list[Quantity]:
    """How unevenly keys share attention: Gini, normalised entropy, effective share of keys.

    The effective number of keys is 1 / sum of squared shares; divided by the number of keys it is
    1 for uniform attention and 1/T for a single column.
    """
    values, nulls = _evenness(layer.shares(group)), _evenness(layer.null(group))
    return [mean(name, CELL, values[name], nulls[name]) for name in values]


def _evenness(shares: np.ndarray) -> dict[str, np.ndarray]:
    """Gini, normalised entropy and effective share of keys of [..., key], NaN where absent."""
    count = np.sum(~np.isnan(shares), axis=-1)
    whole = np.nansum(shares, axis=-1, keepdims=True)
    none = np.where(whole[..., 0] > 0, 0.0, np.nan)  # a sink token may have taken everything
    with np.errstate(invalid="ignore", divide="ignore"):
        # Shares as a distribution over keys, absent ones 0.
        p = np.nan_to_num(shares / whole, nan=0.0)
        squares = np.einsum("...k,...k->...", p, p)
        logs = np.log(p, out=np.zeros_like(p), where=p > 0)
        entropy = -np.einsum("...k,...k->...", p, logs)
        # Absent keys are zeros at the low end: rank r of T existing ones is r + (width - T).
        rank = np.arange(1, p.shape[-1] + 1, dtype=p.dtype)
        ranked = np.sort(p, axis=-1) @ rank - (p.shape[-1] - count)
        gini = 2 * ranked / count - (count + 1) / count
        return {
            "gini": np.where(gini > ROUNDING, gini, 0.0) + none,
            "normalised_entropy": np.where(count > 1, entropy / np.log(count), np.nan) + none,
            "effective_share": 1 / (squares * count) + none,
        }


@custom_metric(default=True)
def epsilon_curve(
    traces: Traces,
    eps: Sequence[float] = EPS,
    *,
    scale: str = "sum",
    group: str = "all",
    by: Sequence[str] = (),
) -> Reading:
    """Share of keys that are no sinks under `rulli(eps, scale)`, for every eps (Fig. 10)."""
    thresholds = _check_ascending("eps", eps, 1)
    for value in thresholds[[0, -1]]:
        rulli(eps=float(value), scale=scale)  # refuses what can never fire
    kernel = partial(_epsilon_cells, eps=thresholds, scale=scale, group=group)
    about = {"metric": "epsilon_curve", "scale": scale, "group": group}
    return read_quantities(traces, kernel, split_always("eps", by), about=about)


def _epsilon_cells(layer: LayerSlice, eps: np.ndarray, scale: str, group: str) -> list[Quantity]:
    above, keys = _count_exceeding(layer.shares(group), eps, scale)
    null_above, null_keys = _count_exceeding(layer.null(group), eps, scale)
    kept, null_kept = keys[..., None] - above, null_keys[..., None] - null_above
    dims, labels = (*CELL, "eps"), {"eps": eps.tolist()}
    bottom = np.broadcast_to(keys[..., None], kept.shape)
    known = (keys > 0)[..., None]
    null = (null_kept * known, np.broadcast_to(null_keys[..., None], null_kept.shape) * known)
    return [ratio("retained", dims, kept, bottom, null, labels)]


def _count_exceeding(
    shares: np.ndarray, eps: np.ndarray, scale: str
) -> tuple[np.ndarray, np.ndarray]:
    """([step, head, eps] keys above each threshold, [step, head] keys)."""
    count = np.sum(~np.isnan(shares), axis=-1)
    safe = np.maximum(count, 1)[..., None]
    unit = {"sum": 1 / safe, "percent": 0.01, "mean": 1.0}[scale]
    with np.errstate(invalid="ignore", divide="ignore"):
        all_keys = np.nansum(shares, axis=-1, keepdims=True)
        # Score minus the mean of the other keys, as `rulli` has it.
        excess = shares * safe - all_keys
        above = excess > RESOLUTION * all_keys
        excess = excess / (unit * (safe - 1))
    # Each key counts for all thresholds below its excess: a histogram, added up from the right.
    rows, width = np.nonzero(above.reshape(-1, above.shape[-1]))[0], len(eps) + 1
    passed = np.searchsorted(eps, excess[above], side="left")  # thresholds strictly below
    size = above[..., 0].size * width
    hits = np.bincount(rows * width + passed, minlength=size).reshape(*above.shape[:-1], width)
    more = hits[..., ::-1].cumsum(axis=-1)[..., ::-1][..., 1:]
    return more.astype(float), count.astype(float)


@custom_metric(default=True)
def score_histogram(
    traces: Traces,
    edges: Sequence[float] = tuple(range(51)),
    *,
    group: str = "all",
    by: Sequence[str] = (),
) -> Reading:
    """Share of keys by score on the sum scale, where uniform attention scores 1 (Fig. 3).

    The last bin also holds what lies above it.
    """
    bounds = _check_ascending("edges", edges, 2)
    if bounds[0] > 0:
        raise SpecError(f"edges begin at {bounds[0]:g}, and keys below are in no bin: begin at 0")
    kernel = partial(_histogram_cells, edges=bounds, group=group)
    about = {"metric": "score_histogram", "edges": bounds.tolist(), "group": group}
    return read_quantities(traces, kernel, split_always("score", by), about=about)


def _histogram_cells(layer: LayerSlice, edges: np.ndarray, group: str) -> list[Quantity]:
    hits, keys = _binned_scores(layer.shares(group), edges)
    null_hits, null_keys = _binned_scores(layer.null(group), edges)
    known = keys > 0
    null = (null_hits * known, np.broadcast_to(null_keys, null_hits.shape) * known)
    labels = {"score": edges[:-1].tolist()}
    return [ratio("share_of_keys", (*CELL, "score"), hits, keys, null, labels)]


def _check_ascending(name: str, values: Sequence[float], least: int) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    good = array.ndim == 1 and len(array) >= least and np.isfinite(array).all()
    if not good or not (np.diff(array) > 0).all():
        raise SpecError(
            f"{name}={values!r:.60}: give a list of at least {least}, from small to large"
        )
    return array


def _binned_scores(shares: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    count = np.sum(~np.isnan(shares), axis=-1, keepdims=True)
    scores = (shares * (count * EVEN)).reshape(-1, shares.shape[-1])
    known, width = ~np.isnan(scores), len(edges)
    bins = np.searchsorted(edges, scores[known], side="right")  # 0 is below every edge
    rows = np.nonzero(known)[0]
    bins = np.minimum(bins, width - 1)
    hits = np.bincount(rows * width + bins, minlength=len(scores) * width)
    return hits.reshape(*shares.shape[:-1], width)[..., 1:], count.astype(float)


@custom_metric(default=True)
def agreement(
    traces: Traces,
    rules: Sequence[Rule] = RULES,
    *,
    given: Rule | None = None,
    group: str = "all",
    by: Sequence[str] = (),
) -> Reading:
    """Cohen's kappa and Jaccard overlap between the labels of every two rules.

    Kappa's null is chance agreement at the same rates, kappa 0; Jaccard's is the same. A rule that
    never fires has no kappa: absent. `given` leaves out heads and steps in which that rule finds no
    sink: `topk` labels a key in every one, and could else not agree with a rule that does not.
    """
    if len(rules) < 2:
        raise SpecError("agreement is between rules: give at least two")
    kernel = partial(_agreement_cells, rules=tuple(rules), given=given, group=group)
    about = {"metric": "agreement", "rules": [str(rule) for rule in rules], "group": group}
    about |= {} if given is None else {"given": str(given)}
    return read_quantities(traces, kernel, split_always("rules", by), finish=_kappa, about=about)


def _agreement_cells(
    layer: LayerSlice, rules: tuple[Rule, ...], given: Rule | None, group: str
) -> list[Quantity]:
    keys = np.sum(~np.isnan(layer.shares(group)), axis=-1)
    # With `given`, only heads and steps in which that rule has a sink count.
    counts = np.ones(keys.shape, dtype=int)
    if given is not None:
        counts = (layer.labels(given, group).sum(axis=-1) > 0).astype(int)
    sums: dict[str, list[np.ndarray]] = {"both": [], "one": [], "other": [], "keys": []}
    for first, second in combinations(rules, 2):
        a, b = layer.labels(first, group), layer.labels(second, group)
        sums["both"].append((a & b).sum(axis=-1) * counts)
        sums["one"].append(a.sum(axis=-1) * counts)
        sums["other"].append(b.sum(axis=-1) * counts)
        sums["keys"].append(keys * counts)
    names = {"rules": [f"{first} ~ {second}" for first, second in combinations(rules, 2)]}
    lost = np.broadcast_to((keys == 0)[..., None], (*keys.shape, len(names["rules"])))
    totals = [
        total(name, (*CELL, "rules"), np.stack(counts, axis=-1), names)
        for name, counts in sums.items()
    ]
    return [replace(first, missing=lost.astype(float)) for first in totals]


def _kappa(cells: dict[str, Cell]) -> dict[str, Cell]:
    both, first, second, keys = (cells[name].value for name in ("both", "one", "other", "keys"))
    with np.errstate(invalid="ignore", divide="ignore"):
        rate_one, rate_other = first / keys, second / keys
        # Kappa = (agreement - chance) / (1 - chance), on keys that are or are not sinks.
        agree = (keys - first - second + 2 * both) / keys
        chance = rate_one * rate_other + (1 - rate_one) * (1 - rate_other)
        fire = (first > 0) & (second > 0)
        kappa = np.where(fire & (chance < 1), (agree - chance) / (1 - chance), np.nan)
        overlap = np.where(first + second > both, both / (first + second - both), np.nan)
        expected = rate_one * rate_other
        null = expected / (rate_one + rate_other - expected)
    missing = cells["both"].missing
    return {
        "kappa": Cell(kappa, np.where(np.isnan(kappa), np.nan, 0.0), missing),
        "jaccard": Cell(overlap, np.where(np.isnan(overlap), np.nan, null), missing),
    }
