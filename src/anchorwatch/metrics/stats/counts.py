"""Proportions, paired answers and 2 x 2 tables, from counts.

>>> found = mcnemar(9, 1, both=20, neither=10)
>>> round(float(found.p), 4), float(found.value)
(0.0215, 0.2)
"""

from __future__ import annotations

import numpy as np
import scipy  # its submodules load when they are first used
from numpy.typing import ArrayLike

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats.clusters import Contrast, Interval, check_inside
from anchorwatch.metrics.stats.ranks import last_axes


def wilson(successes: ArrayLike, n: ArrayLike, *, level: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval, for arrays of counts."""
    check_inside("level", level, 1)
    hits, trials = np.broadcast_arrays(_whole("successes", successes), _whole("n", n))
    if (hits > trials).any():
        raise SpecError("successes exceed n: give the successes among n trials")
    z = scipy.special.ndtri((1 + level) / 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = hits / trials
        # Score interval: its centre is the share, shrunk towards 1/2.
        middle = (hits + z**2 / 2) / (trials + z**2)
        reach = z / (trials + z**2) * np.sqrt(share * (trials - hits) + z**2 / 4)
    low = np.where(hits == 0, 0.0, middle - reach)  # exactly, not 1e-17
    high = np.where(hits == trials, 1.0, middle + reach)
    low, high = (np.where(trials > 0, bound, np.nan) for bound in (low, high))
    why = np.where(trials > 0, "", "0 trials, 1 needed")
    return Interval(share, low, high, trials.astype(int), why, level)


def mcnemar(
    a_only: int,
    b_only: int,
    *,
    both: int | None = None,
    neither: int | None = None,
    level: float = 0.95,
) -> Contrast:
    """McNemar's exact test of pairs in which only a, or only b, succeeded.

    With the agreeing pairs also share(a) - share(b), with Newcombe's interval for paired
    proportions (1998, method 10).
    """
    check_inside("level", level, 1)
    counts = _whole("a_only and b_only", [a_only, b_only])
    apart = int(counts.sum())
    p = scipy.stats.binomtest(int(a_only), apart, 0.5).pvalue if apart else 1.0
    if both is None or neither is None:
        estimate, n, why = np.full(3, np.nan), apart, "both and neither are not given"
    else:
        n = apart + int(_whole("both and neither", [both, neither]).sum())
        estimate = _newcombe([both, a_only, b_only, neither], level) if n else np.full(3, np.nan)
        why = "" if n else "0 pairs, 1 needed"
    value, low, high = estimate
    return Contrast(value, low, high, np.array(n), np.array(why), level, np.array(p))


def mcnemar_of(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> Contrast:
    """`mcnemar` of two boolean arrays, a pair at each place."""
    table = _cross_tabulate(np.ravel(a), np.ravel(b))
    (both, a_only), (b_only, neither) = table.tolist()
    return mcnemar(a_only, b_only, both=both, neither=neither, level=level)


def odds_ratio(table: ArrayLike, *, haldane: bool = True, level: float = 0.95) -> Contrast:
    """The odds ratio of [..., 2, 2] counts, with Woolf's log interval and Fisher's exact p.

    `haldane` adds a half to each cell of a table that has an empty one; without it such a table has
    no interval.
    """
    check_inside("level", level, 1)
    counts = _tables(table)
    empty = (counts == 0).any(axis=(-2, -1))
    cells = counts + 0.5 * (empty & haldane)[..., None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # Woolf: the logarithm has standard error sqrt(1/a + 1/b + 1/c + 1/d).
        value = cells[..., 0, 0] * cells[..., 1, 1] / (cells[..., 0, 1] * cells[..., 1, 0])
        error = np.sqrt(np.sum(1 / cells, axis=(-2, -1)))
        reach = np.exp(scipy.special.ndtri((1 + level) / 2) * error)
        low, high = value / reach, value * reach
    none = empty & (not haldane)
    low, high = np.where(none, np.nan, low), np.where(none, np.nan, high)
    flat = counts.reshape(-1, 2, 2).astype(int)
    p = np.array([scipy.stats.fisher_exact(cell).pvalue for cell in flat]).reshape(empty.shape)
    why = np.where(none, "an empty cell, haldane=True needed", "")
    n = counts.sum(axis=(-2, -1)).astype(int)
    return Contrast(value, low, high, n, why, level, p)


def cohens_kappa(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Agreement beyond chance of two boolean arrays along the last axis."""
    return cohens_kappa_of(_cross_tabulate(a, b))


def cohens_kappa_of(table: ArrayLike) -> np.ndarray:
    """Of [..., 2, 2] counts, a in rows; NaN where both say the same one thing of everything."""
    counts = _tables(table)
    n = counts.sum(axis=(-2, -1))
    agreed = counts[..., 0, 0] + counts[..., 1, 1]
    by_chance = np.sum(counts.sum(axis=-1) * counts.sum(axis=-2), axis=-1)
    with np.errstate(invalid="ignore"):
        return ((n * agreed - by_chance) / (n**2 - by_chance))[()]


def _newcombe(table: list[int], level: float) -> np.ndarray:
    """The difference, low and high from counts of both, a only, b only, neither."""
    both, a_only, b_only, neither = (int(count) for count in table)
    n = both + a_only + b_only + neither
    # Wilson's limits of both shares, combined with the correlation phi of the pairs.
    rows = wilson([both + a_only, both + b_only], n, level=level)
    (down_a, down_b), (up_a, up_b) = rows.value - rows.low, rows.high - rows.value
    margins = (both + a_only) * (b_only + neither) * (both + b_only) * (a_only + neither)
    surplus = both * neither - a_only * b_only
    joint = max(surplus - n / 2, 0) if surplus > 0 else surplus  # continuity, only towards zero
    phi = joint / np.sqrt(float(margins)) if margins else 0.0
    value = (a_only - b_only) / n
    low = value - np.sqrt(down_a**2 - 2 * phi * down_a * up_b + up_b**2)
    high = value + np.sqrt(up_a**2 - 2 * phi * up_a * down_b + down_b**2)
    return np.array([value, low, high])


def _cross_tabulate(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """[..., 2, 2] how often a (row: true, false) met b (column) along the last axis."""
    first, second = np.asarray(a), np.asarray(b)
    if first.dtype != bool or second.dtype != bool:
        raise SpecError(f"a is {first.dtype} and b {second.dtype}: give boolean arrays")
    first, second = (array == 1 for array in last_axes(("a", first), ("b", second)))
    pairs = [[first & second, first & ~second], [~first & second, ~first & ~second]]
    return np.moveaxis(np.sum(pairs, axis=-1), (0, 1), (-2, -1))


def _tables(table: ArrayLike) -> np.ndarray:
    counts = _whole("table", table)
    if counts.shape[-2:] != (2, 2):
        raise SpecError(f"table has shape {counts.shape}: give counts [..., 2, 2]")
    return counts


def _whole(name: str, counts: ArrayLike) -> np.ndarray:
    values = np.asarray(counts, dtype=float)
    if not (np.isfinite(values).all() and (values >= 0).all() and (values % 1 == 0).all()):
        raise SpecError(f"{name}: a count is not a whole number of at least 0")
    return values
