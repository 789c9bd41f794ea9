"""Student's t of pairs, for training seeds: few, dear, and each an independent run. No torch here.

>>> found = paired_t([2.50, 2.61, 2.55], [2.60, 2.60, 2.60])
>>> float(found.value.round(4)), int(found.n), bool(found.low < 0 < found.high)
(-0.0467, 3, True)
"""

from __future__ import annotations

import numpy as np
import scipy  # its submodules load when they are first used
from numpy.typing import ArrayLike

from anchorwatch.errors import SpecError
from anchorwatch.metrics.stats.counts import Contrast
from anchorwatch.metrics.stats.resampling import check_inside

FEWEST = 3
"""Pairs: of two, the interval is twelve standard errors wide and says nothing."""


def paired_t(a: ArrayLike, b: ArrayLike, *, level: float = 0.95) -> Contrast:
    """mean(a - b) of [pair, ...] with Student's interval and the two-sided p of no difference.

    For runs that are independent of each other by design, such as training seeds; for prompts use
    `difference`. A pair that lacks either value is left out; under three there is no interval.
    """
    check_inside("level", level, 1)
    one, two = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if one.shape != two.shape or one.ndim == 0:
        raise SpecError(
            f"a has shape {one.shape} and b {two.shape}: pairs are rows of both, give them alike"
        )
    if np.isinf(one).any() or np.isinf(two).any():
        raise SpecError("a or b holds an infinite value: use NaN where a pair has none")
    gaps = one - two
    n = np.sum(~np.isnan(gaps), axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(n > 0, np.nansum(gaps, axis=0) / n, np.nan)
        squares = np.nansum((gaps - value) ** 2, axis=0)
        error = np.where(n >= FEWEST, np.sqrt(squares / (n - 1) / n), np.nan)
        t = np.where(value == 0, 0.0, value / error)
        p = 2 * scipy.special.stdtr(n - 1.0, -np.abs(t))
        reach = scipy.special.stdtrit(n - 1.0, (1 + level) / 2) * error
    p = np.where(n >= FEWEST, p, np.nan)
    words = np.array([f"{count} pairs, {FEWEST} needed" for count in np.ravel(n)], dtype=str)
    why = np.where(n >= FEWEST, "", words.reshape(np.shape(n)))
    return Contrast(value, value - reach, value + reach, n, why, level, p)
