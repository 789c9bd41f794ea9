"""Means of scores that take few values, such as differences of right and wrong. No torch here.

Where hardly an item differs from the others, the spread of the items says little of the chance that
one does: Student's interval is then too narrow. As for pairs of answers (Bonett and Price, 2012), a
pseudo-item at either bound keeps the error honest; it moves the centre of the interval, not the
value.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from anchorwatch.studies.estimates import Estimate


def mean_score(values: ArrayLike, unit: str, bounds: tuple[float, float]) -> Estimate:
    """The mean of one score for each unit, between bounds; NaN is a unit without one.

    >>> found = mean_score([0.0] * 46 + [1.0] * 2, "item", (-1.0, 1.0))
    >>> round(found.value, 3), [round(end, 3) for end in found.interval(0.95)]
    (0.042, [-0.04, 0.12])
    """
    plain = Estimate.mean(values, unit, bounds)
    if plain.why:
        return plain
    padded = np.array([*plain.values, *bounds])
    error = float(padded.std(ddof=1) / math.sqrt(len(padded)))
    centre = float(padded.mean())
    return replace(plain, error=error, freedom=plain.n + 1, centre=centre, alike=False)
