"""A correlation with an interval that stays within -1 and 1: Student's on Fisher's scale.

A correlation near its ends varies to one side only, and little; its inverse hyperbolic tangent
varies to both alike, and about as much wherever it lies. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from anchorwatch.studies.estimates import Estimate

WHOLE = 1 - 1e-12
"""What counts as a correlation of 1, whose scale has no end."""


@dataclass(frozen=True)
class Correlation(Estimate):
    """Read through `on_scale`, its inverse hyperbolic tangent."""

    on_scale: Estimate = field(kw_only=True)

    @classmethod
    def jackknifed(
        cls, rows: ArrayLike, of: Callable[[np.ndarray], float], unit: str
    ) -> Correlation:
        """A correlation that is a smooth function of mean rows [unit, cell]."""

        def scaled(means: np.ndarray) -> float:
            value = of(means)
            return math.atanh(value) if abs(value) < WHOLE else math.nan

        held = Estimate.jackknife(rows, scaled, unit)
        return cls(
            math.tanh(held.value),
            math.nan,
            held.freedom,
            held.n,
            unit,
            missing=held.missing,
            centre=math.tanh(held.centre),
            bounds=(-1.0, 1.0),
            alike=held.alike,
            why=held.why,
            on_scale=held,
        )

    def interval(self, level: float) -> tuple[float, float]:
        low, high = self.on_scale.interval(level)
        return math.tanh(low), math.tanh(high)

    def p_above(self, limit: float) -> float:
        return self.on_scale.p_above(math.atanh(limit))

    def p_below(self, limit: float) -> float:
        return self.on_scale.p_below(math.atanh(limit))

    def beyond(self, limit: float, side: float, tail: float) -> float:
        return math.tanh(self.on_scale.beyond(math.atanh(limit), side, tail))
