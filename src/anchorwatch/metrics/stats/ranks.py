"""Ranks, trends, lifetimes and likeness along the last axis, of many series.

Series go into the other axes, and a place that is NaN in either array is left out of both. There
are no p-values: the steps of one run are not independent, so test the values of many prompts.

>>> kendall(np.arange(4), [[1, 2, 3, 4], [1, 3, 2, np.nan], [5, 5, 5, 5]]).round(3).tolist()
[1.0, 0.333, nan]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # its submodules load when they are first used
from numpy.typing import ArrayLike

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats.clusters import (
    CHUNK,
    NEEDED,
    WORDS,
    ArrayOrFloat,
    Interval,
    check_options,
    draw_clusters,
    quantiles,
    tail_share,
)


@dataclass(frozen=True, eq=False)
class Trend(ArrayOrFloat):
    """A line through each series."""

    value: np.ndarray
    """The slope."""
    intercept: np.ndarray
    n: np.ndarray


@dataclass(frozen=True, eq=False)
class Survival(ArrayOrFloat):
    """The share of runs that last longer than each duration."""

    value: np.ndarray
    """[..., duration]; NaN once nobody is left whose end could be seen."""
    error: np.ndarray
    """[..., duration] Greenwood's standard error; NaN where the share is 0."""
    median: np.ndarray
    """The first duration that half of the runs or fewer outlast; NaN if more always do."""
    at_risk: np.ndarray
    """[..., duration] how many lasted at least so long."""
    n: np.ndarray


def auroc(scores: ArrayLike, labels: ArrayLike) -> np.ndarray:
    """The chance that a true place scores above a false one, ties half; NaN if a class is empty."""
    values, true = _check_scores(scores, labels)
    known = ~np.isnan(values)
    ranks = _ranks(values)
    hits, misses = np.sum(known & true, axis=-1), np.sum(known & ~true, axis=-1)
    # Mann-Whitney U from ranks: rank sum of the true ones less its least value.
    above = np.nansum(np.where(true, ranks, 0.0), axis=-1) - hits * (hits + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return (above / (hits * misses))[()]


def auroc_interval(
    scores: ArrayLike,
    labels: ArrayLike,
    clusters: ArrayLike,
    *,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """The AUROC of [n] scores with a percentile interval over `clusters`, the prompt of each."""
    check_options(draws, seed, level)
    values, true = _check_scores(scores, labels)
    prompts = np.asarray(clusters)
    if values.ndim != 1 or prompts.shape != values.shape:
        raise SpecError(
            f"scores have shape {values.shape} and clusters {prompts.shape}: give one series, "
            "and the prompt of each score"
        )
    # 1. Pairs that each prompt's true scores win against each prompt's false ones.
    known = ~np.isnan(values)
    names, which = np.unique(prompts[known], return_inverse=True)
    won, pairs = _won_pairs(values[known], true[known], which, len(names))
    n, bounds = len(names), np.full(2, np.nan)
    why = str(WORDS[min(n, NEEDED)]) if pairs.sum() else "one class is empty"
    if not why:
        # 2. A draw of prompts weighs both sides of a pair.
        weights = draw_clusters(n, draws, np.random.default_rng(seed))
        with np.errstate(invalid="ignore"):  # a draw without one of the classes is left out
            drawn = np.sum(weights @ won * weights, axis=1) / np.sum(
                weights @ pairs * weights, axis=1
            )
        tail = float(tail_share(level, np.array(n)))
        bounds = quantiles(drawn, (tail, 1 - tail))
    low, high = bounds
    return Interval(auroc(values, true), low, high, np.array(n), np.array(why), level)


def kaplan_meier(ended: ArrayLike, censored: ArrayLike) -> Survival:
    """Survival from [..., duration] counts of runs that ended, or were last seen, at 1, 2, ...

    A run last seen at a duration was still at risk there.
    """
    over, lost = last_axes(("ended", ended), ("censored", censored))
    for counts in (over, lost):
        if not counts.shape[-1] or not ((counts >= 0) & (counts % 1 == 0)).all():
            raise SpecError(
                "runs are counted at durations 1, 2, ...: give whole numbers, 0 for none"
            )
    # At risk at a duration: runs that end or are last seen there or later.
    left = np.flip(np.cumsum(np.flip(over + lost, axis=-1), axis=-1), axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        kept = np.where(left > 0, 1 - over / left, 1.0)
        share = np.cumprod(kept, axis=-1)
        # Greenwood's formula.
        terms = np.where(left > 0, over / (left * (left - over)), 0.0)
        error = share * np.sqrt(np.cumsum(terms, axis=-1))  # 0 * inf = NaN at the last end
    seen = (left > 0) | (share == 0)
    share, error = np.where(seen, share, np.nan), np.where(seen, error, np.nan)
    half = share <= 0.5 + 1e-12
    median = np.where(half.any(axis=-1), half.argmax(axis=-1) + 1.0, np.nan)
    at_risk = left.astype(int)
    return Survival(share, error, median, at_risk, at_risk[..., 0])


def kendall(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """Kendall's tau-b; NaN where a series is constant."""
    first, second, shape = _series(x, y)
    agree, moved_one, moved_two = (np.zeros(len(first)) for _ in range(3))
    for lag in range(1, first.shape[1]):
        a, b = _turn(first, lag), _turn(second, lag)
        agree += np.sum(a * b, axis=1, dtype=np.int32)
        moved_one += np.count_nonzero(a, axis=1)
        moved_two += np.count_nonzero(b, axis=1)
    with np.errstate(invalid="ignore"):
        return (agree / np.sqrt(moved_one * moved_two)).reshape(shape)[()]


def theil_sen(x: ArrayLike, y: ArrayLike) -> Trend:
    """The median slope of all pairs with different x, and median(y) - slope * median(x)."""
    first, second, shape = _series(x, y)
    if np.isinf(first).any() or np.isinf(second).any():
        raise SpecError("a series holds an infinite value: use NaN where there is none")
    pairs = math.comb(first.shape[1], 2)
    slope, intercept = np.full((2, len(first)), np.nan)
    size = max(1, 4 * CHUNK // max(pairs, 1))
    # All pairs of a series are many: some series at a time.
    for start in range(0, len(first) if pairs else 0, size):
        part = slice(start, start + size)
        slope[part] = quantiles(_slopes(first[part], second[part]), (0.5,))[0]
    n = np.sum(~np.isnan(first), axis=1)
    if pairs:  # quantiles sorts both, so it comes last
        intercept = quantiles(second, (0.5,))[0] - slope * quantiles(first, (0.5,))[0]
    return Trend(slope.reshape(shape), intercept.reshape(shape), n.reshape(shape))


def spearman(x: ArrayLike, y: ArrayLike) -> np.ndarray:
    """The correlation of ranks; NaN where a series is constant."""
    first, second, shape = _series(x, y)
    ranks = [_ranks(series) for series in (first, second)]
    count = np.sum(~np.isnan(first), axis=1, keepdims=True)
    middle = (count + 1) / 2  # of any ranks, tied or not
    return cosine(*(rank - middle for rank in ranks)).reshape(shape)[()]


def cosine(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """The cosine of two vectors; NaN where one is zero."""
    first, second, shape = _series(a, b)
    with np.errstate(invalid="ignore"):
        dot = np.nansum(first * second, axis=1)
        size = np.sqrt(np.nansum(first**2, axis=1)) * np.sqrt(np.nansum(second**2, axis=1))
        return np.clip(dot / size, -1, 1).reshape(shape)[()]


def jensen_shannon(p: ArrayLike, q: ArrayLike) -> np.ndarray:
    """The Jensen-Shannon divergence in bits, 0 to 1, of weights that are scaled to sum to one."""
    first, second, shape = _series(p, q)
    for weights in (first, second):
        if (weights < 0).any() or np.isinf(weights).any():
            raise SpecError("a weight is negative or infinite: give shares or counts")
        weights[np.isnan(weights)] = 0
    empty = (first.sum(axis=1) == 0) | (second.sum(axis=1) == 0)
    with np.errstate(invalid="ignore"):
        first, second = (part / part.sum(axis=1, keepdims=True) for part in (first, second))
    middle = (first + second) / 2
    # JS = (KL(p || m) + KL(q || m)) / 2 with m their mean, in bits.
    parts = scipy.special.rel_entr(first, middle) + scipy.special.rel_entr(second, middle)
    bits = np.clip(parts.sum(axis=1) / (2 * math.log(2)), 0, 1)
    return np.where(empty, np.nan, bits).reshape(shape)[()]


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1, ties in the middle, NaN stays NaN."""
    return scipy.stats.rankdata(values, axis=-1, nan_policy="omit")


def _turn(series: np.ndarray, lag: int) -> np.ndarray:
    """[series, pair] int8: 1 up, -1 down, 0 level or unknown."""
    before, after = series[:, :-lag], series[:, lag:]
    return (after > before).view(np.int8) - (after < before).view(np.int8)


def _slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """[series, pair], NaN where x is the same; lag by lag, since fancy indices are slow."""
    slopes = []
    for lag in range(1, x.shape[1]):
        run = x[:, lag:] - x[:, :-lag]
        slopes.append((y[:, lag:] - y[:, :-lag]) / np.where(run == 0, np.nan, run))
    return np.concatenate(slopes, axis=1)


def _won_pairs(
    values: np.ndarray, true: np.ndarray, which: np.ndarray, clusters: int
) -> tuple[np.ndarray, np.ndarray]:
    """[cluster, cluster] pairs that the row's true scores win of the column's false ones, and all.

    A draw of clusters then is two products, however many scores there are.
    """
    hits, owner = values[true], which[true]
    won = np.zeros((clusters, clusters))
    for column in range(clusters):
        rest = np.sort(values[~true & (which == column)])
        # Ties count half: twice the wins is left rank plus right rank.
        wins = np.searchsorted(rest, hits, "left") + np.searchsorted(rest, hits, "right")
        won[:, column] = np.bincount(owner, wins / 2, minlength=clusters)
    sizes = [np.bincount(which[part], minlength=clusters) for part in (true, ~true)]
    return won, np.outer(*sizes)


def _check_scores(scores: ArrayLike, labels: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    true = np.asarray(labels)
    if true.dtype != bool:
        raise SpecError(f"labels are {true.dtype}: give a boolean array, NaN goes into the scores")
    values, flags = last_axes(("scores", scores), ("labels", true))
    return values, flags == 1


def _series(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Two new arrays [series, place], NaN in both where it is in either, and the leading shape."""
    first, second = last_axes(("the first", x), ("the second", y))
    lost = np.isnan(first) | np.isnan(second)
    shape, flat = first.shape[:-1], (math.prod(first.shape[:-1]), first.shape[-1])
    return (
        np.where(lost, np.nan, first).reshape(flat),
        np.where(lost, np.nan, second).reshape(flat),
        shape,
    )


def last_axes(*named: tuple[str, ArrayLike]) -> list[np.ndarray]:
    """Floats of one shape, their last axes alike from the start."""
    arrays = [np.asarray(values, dtype=float) for _, values in named]
    try:
        if len({array.shape[-1:] for array in arrays}) == 1 and arrays[0].ndim:
            return list(np.broadcast_arrays(*arrays))
    except ValueError:
        pass
    shapes = " and ".join(
        f"{name} has shape {a.shape}" for (name, _), a in zip(named, arrays, strict=True)
    )
    raise SpecError(f"{shapes}: the last axes must be alike, the others must broadcast")
