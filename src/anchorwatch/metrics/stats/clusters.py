"""Intervals and tests whose unit is the cluster: one prompt, or one training run, is one row.

Heads, layers and steps of one prompt share its text and are never resampled instead: they go into
the other axes, and a prompt with several runs is averaged to one row first. NaN is a cell that a
prompt has no value for: every function takes ragged arrays of cells at once, which is why these
are not scipy's and statsmodels' own (theirs are for one sample, or refuse NaN).

>>> shares = np.array([[0.2, 0.9], [0.3, np.nan], [0.1, 0.8], [0.4, np.nan], [0.2, 0.7]])
>>> found = cluster_bootstrap(shares)
>>> found.value.round(2).tolist(), found.n.tolist(), found.why.tolist()
([0.24, 0.8], [5, 3], ['', '3 prompts, 5 needed'])
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its submodules load when they are first used
from numpy.typing import ArrayLike

from anchorwatch.errors import SpecError

NEEDED = 5
"""Clusters below which there is no interval."""
WORDS = np.array([f"{n} prompt{'s' * (n != 1)}, {NEEDED} needed" for n in range(NEEDED)] + [""])
CHUNK = 2**20
"""Numbers in one array of a chunk of cells: 8 MB."""
ALTERNATIVES = ("two-sided", "greater", "less")
FEWEST_PAIRS = 3
"""Pairs: of two, the interval is twelve standard errors wide and says nothing."""
ROUNDING = 1e-12
"""Two sums of the same values in another order differ by less than this share of their size."""


@dataclass(frozen=True, eq=False)
class ArrayOrFloat:
    """Arrays over the axes that are left; where none is left, numbers."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, value[()] if isinstance(value, np.ndarray) else value)


@dataclass(frozen=True, eq=False)
class Interval(ArrayOrFloat):
    """An estimate and its interval."""

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    n: np.ndarray
    """Clusters (trials, pairs) that have a value; of two unpaired groups the smaller."""
    why: np.ndarray
    """Why there is no interval; empty where there is one."""
    level: float


@dataclass(frozen=True, eq=False)
class Equivalence(Interval):
    """Two one-sided tests (TOST)."""

    p: np.ndarray
    """The larger of the next two."""
    p_above: np.ndarray
    """Of a difference of -margin or less."""
    p_below: np.ndarray
    """Of a difference of margin or more."""
    p_zero: np.ndarray
    """Of a difference of zero, two-sided."""
    verdict: np.ndarray
    """equivalent (p < alpha), else different (p_zero < alpha), else inconclusive; or too few."""
    margin: float


@dataclass(frozen=True, eq=False)
class Contrast(Interval):
    """A difference or ratio with its interval, and the p-value of none."""

    p: np.ndarray


@dataclass(frozen=True, eq=False)
class Permutation(ArrayOrFloat):
    """A difference of means against the same difference under permuted labels."""

    value: np.ndarray
    p: np.ndarray
    n: np.ndarray
    """Pairs, or values of both groups together."""
    null: np.ndarray
    """The mean difference under permutation."""
    exact: np.ndarray
    """Whether every permutation was counted."""


def cluster_bootstrap(
    values: ArrayLike, *, draws: int = 2000, level: float = 0.95, seed: int = 0
) -> Interval:
    """The mean over clusters of `values` [cluster, ...] with its percentile interval.

    Percentiles are narrow when clusters are few (0.95 would cover 0.84 with 5, 0.90 with 10), so
    they are taken further out, as far as Student's t is beyond the normal (Hesterberg 2015).
    """
    return _bootstrap([_clusters("values", values)], lambda mean: mean, draws, level, seed)


def difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """mean(a) - mean(b), bootstrapped over clusters: pairs of rows, or each group on its own.

    Paired rows are the same prompt; one that lacks either value is left out.
    """
    first, second = _two_groups(a, b, paired)
    groups = [first - second] if paired else [first, second]
    return _bootstrap(groups, lambda x, y=0.0: x - y, draws, level, seed)


def ratio(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """mean(a) / mean(b), a lift over a base of at least 0; clusters as in `difference`.

    A draw in which the base is 0 counts as infinite; one in which both are 0 is left out.
    """
    first, second = _two_groups(a, b, paired)
    if (second < 0).any():
        raise SpecError(
            "b holds a negative value: a ratio needs a base of at least 0, or use difference"
        )
    if paired:
        lost = np.isnan(first + second)
        first, second = np.where(lost, np.nan, first), np.where(lost, np.nan, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        result = _bootstrap([first, second], np.divide, draws, level, seed, shared=paired)
    none = np.isinf(result.value) | (np.isnan(result.value) & (result.n > 0))  # x / 0, 0 / 0
    low, high = np.where(none, np.nan, result.low), np.where(none, np.nan, result.high)
    why = np.where(none & (result.n >= NEEDED), "the base is 0", result.why)
    return replace(result, value=np.where(none, np.nan, result.value), low=low, high=high, why=why)


def permutation_test(
    a: ArrayLike,
    b: ArrayLike,
    *,
    paired: bool,
    alternative: str = "two-sided",
    draws: int = 9999,
    seed: int = 0,
) -> Permutation:
    """mean(a) - mean(b) of [cluster, ...] groups under swapped pairs or permuted labels.

    All permutations if there are at most `draws`; else a random choice, and the observed one is
    counted among them (+1). Two-sided is twice the smaller side, as in scipy.
    """
    check_options(draws, seed)
    if alternative not in ALTERNATIVES:
        raise SpecError(f"alternative={alternative!r} is unknown: use {', '.join(ALTERNATIVES)}")
    # 1. Pairs become differences whose sign is swapped; groups are pooled and labels permuted.
    first, second = _two_groups(a, b, paired)
    shape = first.shape[1:]
    rows = _flat(first - second if paired else np.concatenate([first, second]))
    in_a = np.repeat([True, False], [len(first), 0 if paired else len(second)])
    results = np.full((4, rows.shape[1]), np.nan)  # value, p, null, exact
    known = ~np.isnan(rows)
    # cells that lack the same prompts are permuted alike
    patterns, which = np.unique(known, axis=1, return_inverse=True)
    for pattern, kept in enumerate(patterns.T):
        labels = in_a[kept]
        if not labels.any() or (labels.all() and not paired):
            continue
        # 2. The observed contrast and the permuted ones, as weights of the rows.
        observed, null, exact = _contrasts(labels, draws, seed)
        for cells in _chunks(np.flatnonzero(which.ravel() == pattern), len(null)):
            values = rows[np.ix_(kept, cells)]
            results[:3, cells] = _tail(values, observed, null, alternative, added=int(not exact))
            results[3, cells] = exact
    # 3. Back into the shape of the cells.
    value, p, centre, whole = results.reshape(4, *shape)
    return Permutation(value, p, known.sum(axis=0).reshape(shape), centre, whole == 1)


def benjamini_hochberg(p: ArrayLike) -> np.ndarray:
    """p-values adjusted for the false discovery rate over the whole array; NaN passes through."""
    return _adjust_p_values(p, scipy.stats.false_discovery_control)


def holm(p: ArrayLike) -> np.ndarray:
    """p-values adjusted for the chance of any false one, over the whole array; NaN passes."""

    def adjust(known: np.ndarray) -> np.ndarray:
        # p(i) * (m - i), never smaller than the one before, at most 1.
        order = np.argsort(known)
        steps = np.maximum.accumulate(known[order] * np.arange(len(known), 0, -1))
        adjusted = np.empty_like(known)
        adjusted[order] = np.minimum(steps, 1)
        return adjusted

    return _adjust_p_values(p, adjust)


def equivalence(
    a: ArrayLike, b: ArrayLike, margin: float, *, paired: bool, alpha: float = 0.05
) -> Equivalence:
    """Whether the means of [cluster, ...] groups differ by less than `margin`: TOST with t tests.

    Paired, or Welch's for two groups; `b` may be one number. The interval has level 1 - 2 alpha and
    lies inside the margin exactly when the verdict is equivalent.
    """
    check_inside("alpha", alpha, 0.5)
    if not (np.isfinite(margin) and margin > 0):
        raise SpecError(f"margin={margin!r} is not a finite number above 0")
    # 1. Mean difference, its standard error and degrees of freedom.
    first = _clusters("a", a)
    first, second = _two_groups(first, np.full_like(first, b) if np.ndim(b) == 0 else b, paired)
    groups = [first - second] if paired else [first, second]
    n, value, error, freedom = _welch(groups)
    enough = n >= NEEDED

    def below(gap: np.ndarray) -> np.ndarray:
        """P(T <= gap / error); without spread the sign of the gap decides."""
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(gap == 0, 0.0, gap / error)
        return np.where(enough, scipy.special.stdtr(freedom, t), np.nan)

    # 2. Two one-sided tests against the margin, and one of no difference.
    above, under, zero = below(-margin - value), below(value - margin), 2 * below(-np.abs(value))
    p = np.maximum(above, under)
    # 3. The interval that agrees with them, and the verdict.
    reach = np.where(enough, scipy.special.stdtrit(freedom, 1 - alpha) * error, np.nan)
    verdict = np.select(
        [~enough, p < alpha, zero < alpha], ["too few", "equivalent", "different"], "inconclusive"
    )
    low, high, why, level = value - reach, value + reach, _why(n), 1 - 2 * alpha
    return Equivalence(value, low, high, n, why, level, p, above, under, zero, verdict, margin)


def paired_t(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> Contrast:
    """mean(a - b) of [pair, ...] with Student's interval and the two-sided p of no difference.

    >>> result = paired_t([2.50, 2.61, 2.55], [2.60, 2.60, 2.60])
    >>> float(result.value.round(4)), int(result.n), bool(result.low < 0 < result.high)
    (-0.0467, 3, True)

    For runs that are independent of each other by design, such as training seeds; for prompts use
    `difference`. A pair that lacks either value is left out; under three there is no interval.
    """
    check_inside("level", level, 1)
    first, second = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if first.shape != second.shape or first.ndim == 0:
        raise SpecError(
            f"a has shape {first.shape} and b {second.shape}: "
            "pairs are rows of both, give them alike"
        )
    if np.isinf(first).any() or np.isinf(second).any():
        raise SpecError("a or b holds an infinite value: use NaN where a pair has none")
    # 1. Differences of pairs that have both.
    gaps = first - second
    n = np.sum(~np.isnan(gaps), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(n > 0, np.nansum(gaps, axis=0) / n, np.nan)
        squares = np.nansum((gaps - value) ** 2, axis=0)
        error = np.where(n >= FEWEST_PAIRS, np.sqrt(squares / (n - 1) / n), np.nan)
        # 2. Equal pairs have no spread: t of a zero difference is 0, not 0 / 0.
        t = np.where(value == 0, 0.0, value / error)
        p = 2 * scipy.special.stdtr(n - 1.0, -np.abs(t))
        reach = scipy.special.stdtrit(n - 1.0, (1 + level) / 2) * error
    p = np.where(n >= FEWEST_PAIRS, p, np.nan)
    words = np.array([f"{count} pairs, {FEWEST_PAIRS} needed" for count in np.ravel(n)], dtype=str)
    why = np.where(n >= FEWEST_PAIRS, "", words.reshape(np.shape(n)))
    return Contrast(value, value - reach, value + reach, n, why, level, p)


def _bootstrap(
    groups: list[np.ndarray],
    combine: Callable[..., np.ndarray],
    draws: int,
    level: float,
    seed: int,
    *,
    shared: bool = False,
) -> Interval:
    """`shared`: one draw of clusters for all groups, for they are the same prompts."""
    check_options(draws, seed, level)
    # 1. The estimate itself, from all clusters.
    shape, flat = groups[0].shape[1:], [_flat(group) for group in groups]
    n = np.min([np.sum(~np.isnan(group), axis=0) for group in flat], axis=0)
    value = combine(*(_means(group, np.ones((1, len(group)))) for group in flat))[:, 0]
    # 2. How often each draw takes each cluster; the same clusters for groups that share them.
    rng = np.random.default_rng(seed)
    weights = [draw_clusters(len(flat[0]), draws, rng)]
    weights += [
        weights[0] if shared else draw_clusters(len(group), draws, rng) for group in flat[1:]
    ]
    # 3. Quantiles of the draws, as many cells at a time as fit into memory.
    bounds = np.full((2, len(n)), np.nan)
    for cells in _chunks(np.flatnonzero(n >= NEEDED), draws):
        parts = zip(flat, weights, strict=True)
        drawn = combine(*(_means(group[:, cells], weight) for group, weight in parts))
        tail = tail_share(level, n[cells])[:, None]
        bounds[:, cells] = quantiles(drawn, (tail, 1 - tail))
    value, low, high, n = (array.reshape(shape) for array in (value, *bounds, n))
    return Interval(value, low, high, n, _why(n), level)


def _why(n: np.ndarray) -> np.ndarray:
    return WORDS[np.minimum(n, NEEDED)]


def _means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[cell, draw] of values [cluster, cell] under weights [draw, cluster]."""
    known = ~np.isnan(values)
    if known.all() and len(values):
        return values.T @ weights.T / len(values)
    total = np.where(known, values, 0.0).T @ weights.T
    count = known.T.astype(float) @ weights.T
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _contrasts(in_a: np.ndarray, draws: int, seed: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Weights [row] and [draw, row] that turn values into a difference, and whether these are all.

    All rows in a: they are differences of pairs, and swapping a pair turns its sign.
    """
    rng, n, size = np.random.default_rng(seed), len(in_a), int(in_a.sum())
    # All 2^n sign patterns if there are few enough, else random ones.
    if size == n:
        exact = 2**n <= draws
        every = (np.arange(2**n)[:, None] >> np.arange(n)) & 1 if exact else None
        swapped = rng.integers(0, 2, (draws, n)) if every is None else every
        return np.full(n, 1 / n), (1 - 2.0 * swapped) / n, exact
    exact = math.comb(n, size) <= draws
    if exact:
        chosen = np.zeros((math.comb(n, size), n), dtype=bool)
        np.put_along_axis(chosen, np.array(list(itertools.combinations(range(n), size))), True, 1)
    else:
        chosen = rng.permuted(np.tile(in_a, (draws, 1)), axis=1)
    into, out = 1 / size, -1 / (n - size)
    return np.where(in_a, into, out), np.where(chosen, into, out), exact


def _tail(
    values: np.ndarray, observed: np.ndarray, null: np.ndarray, alternative: str, *, added: int
) -> np.ndarray:
    """[value p null, cell] of values [row, cell]."""
    value, drawn = observed @ values, null @ values
    slack = ROUNDING * (np.abs(observed) @ np.abs(values))  # ties must stay ties
    total = len(null) + added
    greater = (np.sum(drawn >= value - slack, axis=0) + added) / total
    less = (np.sum(drawn <= value + slack, axis=0) + added) / total
    both = np.minimum(2 * np.minimum(greater, less), 1)
    p = {"two-sided": both, "greater": greater, "less": less}[alternative]
    return np.array([value, p, drawn.mean(axis=0)])


def _adjust_p_values(p: ArrayLike, adjust: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    values = np.array(p, dtype=float)
    known = ~np.isnan(values)
    if ((values < 0) | (values > 1)).any():
        raise SpecError("a p-value lies outside 0 to 1: use NaN where there is none")
    if known.any():
        values[known] = adjust(values[known])
    return values


def _welch(groups: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Smaller n, difference of means, its standard error and degrees of freedom, NaN left out."""
    counts = [np.sum(~np.isnan(group), axis=0) for group in groups]
    means, errors = [], []
    with np.errstate(divide="ignore", invalid="ignore"):
        for group, n in zip(groups, counts, strict=True):
            means.append(np.nansum(group, axis=0) / n)
            errors.append(np.nansum((group - means[-1]) ** 2, axis=0) / (n - 1) / n)
        total = np.sum(errors, axis=0)
        each = [error**2 / (n - 1) for error, n in zip(errors, counts, strict=True)]
        # Welch-Satterthwaite.
        freedom = total**2 / np.sum(each, axis=0)
    n = np.min(counts, axis=0)
    value = means[0] - sum(means[1:])
    return n, value, np.sqrt(total), np.where(total > 0, freedom, np.maximum(n - 1, 1))


def _clusters(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim == 0:
        raise SpecError(f"{name} is one number: give one row for each prompt")
    if np.isinf(array).any():
        raise SpecError(f"{name} holds an infinite value: use NaN where a prompt has none")
    return array


def _two_groups(a: ArrayLike, b: ArrayLike, paired: bool) -> tuple[np.ndarray, np.ndarray]:
    first, second = _clusters("a", a), _clusters("b", b)
    if first.shape[1:] != second.shape[1:]:
        raise SpecError(f"a has cells {first.shape[1:]} and b {second.shape[1:]}: give them alike")
    if paired and len(first) != len(second):
        sizes = f"paired rows are the same prompts, but a has {len(first)} and b {len(second)}"
        raise SpecError(f"{sizes}: give each prompt twice, NaN if missing, or use paired=False")
    return first, second


def _flat(rows: np.ndarray) -> np.ndarray:
    """[cluster, cell]"""
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _chunks(cells: np.ndarray, draws: int) -> list[np.ndarray]:
    size = max(1, CHUNK // draws)
    return [cells[start : start + size] for start in range(0, len(cells), size)]


def tail_share(level: float, n: np.ndarray) -> np.ndarray:
    """The share of draws that an interval from `n` clusters leaves out on either side."""
    # Percentiles are too narrow for few clusters: widen by t and by sqrt(n / (n - 1)).
    reach = scipy.special.stdtrit(n - 1, (1 + level) / 2) * np.sqrt(n / (n - 1))
    return scipy.special.ndtr(-reach)


def quantiles(values: np.ndarray, levels: tuple[float | np.ndarray, ...]) -> np.ndarray:
    """[level, ...] along the last axis, linear, NaN left out; sorts `values` in place."""
    # Linear interpolation between order statistics, as numpy's default.
    values.sort(axis=-1)  # NaN last
    last = np.maximum(np.sum(~np.isnan(values), axis=-1, keepdims=True) - 1, 0)
    results = []
    for level in levels:
        rank = level * last
        left = np.take_along_axis(values, np.floor(rank).astype(int), axis=-1)
        right = np.take_along_axis(values, np.ceil(rank).astype(int), axis=-1)
        with np.errstate(invalid="ignore"):  # inf - inf where both are infinite
            results.append(
                np.where(left == right, left, left + (right - left) * (rank % 1))[..., 0]
            )
    return np.array(results)


def draw_clusters(clusters: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """[draw, cluster] how often each cluster was drawn."""
    faces = max(clusters, 1)  # a die needs one
    thrown = rng.multinomial(clusters, np.full(faces, 1 / faces), size=draws)
    return thrown[:, :clusters].astype(float)


def check_options(draws: int, seed: int, level: float = 0.5) -> None:
    """What every resampling takes."""
    for name, value, least in (("draws", draws, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise SpecError(f"{name}={value!r} is not a whole number of at least {least}")
    check_inside("level", level, 1)


def check_inside(name: str, value: float, top: float) -> None:
    """A level that may be neither nothing nor all."""
    if not 0 < value < top:
        raise SpecError(f"{name}={value!r} is not above 0 and below {top:g}")
