"""The least of several estimates, for claims about "each", the greatest for claims about "any".

All are above a limit only if the least is, so that support takes the largest p (an intersection of
tests needs no correction). One that is below refutes, and for that the smallest p counts as many
times as there are estimates. Of the greatest it is the other way round. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from anchorwatch.studies.estimates import Estimate


@dataclass(frozen=True)
class Least(Estimate):
    """The estimate with the smallest value, read beside all the others."""

    others: tuple[Estimate, ...] = ()
    """All of them, that one too."""

    @classmethod
    def among(cls, estimates: Sequence[Estimate]) -> Least:
        """Of at least one; one without a value leaves the least unknown, and that one is shown.

        >>> low, high = (Estimate.mean([x, x + 1, x + 2], "training seed") for x in (0, 9))
        >>> Least.among([high, low]).value
        1.0
        """
        least = min(estimates, key=lambda one: (not one.why, _or(one.value, -math.inf)))
        return cls(**_fields(least), others=tuple(estimates))

    def interval(self, level: float) -> tuple[float, float]:
        """From the smallest low end; without one, every value is possible below."""
        each = 1 - (1 - level) / len(self.others)
        lows = [one.interval(level)[0] for one in self.others]
        highs = [one.interval(each)[1] for one in self.others]
        if any(map(math.isnan, lows)):
            return math.nan, math.nan
        return min(lows), min(highs)

    def p_above(self, limit: float) -> float:
        return max(one.p_above(limit) for one in self.others)

    def p_below(self, limit: float) -> float:
        return min(1.0, len(self.others) * min(one.p_below(limit) for one in self.others))


@dataclass(frozen=True)
class Greatest(Estimate):
    """The estimate with the largest value, read beside all the others."""

    others: tuple[Estimate, ...] = ()
    """All of them, that one too."""

    @classmethod
    def among(cls, estimates: Sequence[Estimate]) -> Greatest:
        """Of at least one; one without a value leaves the greatest unknown, and that one is shown.

        >>> low, high = (Estimate.mean([x, x + 1, x + 2], "training seed") for x in (0, 9))
        >>> Greatest.among([high, low]).value
        10.0
        """
        most = max(estimates, key=lambda one: (bool(one.why), _or(one.value, math.inf)))
        return cls(**_fields(most), others=tuple(estimates))

    def interval(self, level: float) -> tuple[float, float]:
        """To the largest high end; without one, every value is possible above."""
        each = 1 - (1 - level) / len(self.others)
        lows = [one.interval(each)[0] for one in self.others]
        highs = [one.interval(level)[1] for one in self.others]
        if any(map(math.isnan, highs)):
            return math.nan, math.nan
        return max(lows), max(highs)

    def beyond(self, limit: float, side: float, tail: float) -> float:
        """Any of them is enough above, and of those the nearest; below, all are needed."""
        if side > 0:
            return min(one.beyond(limit, side, tail / len(self.others)) for one in self.others)
        return min(one.beyond(limit, side, tail) for one in self.others)

    def p_above(self, limit: float) -> float:
        return min(1.0, len(self.others) * min(one.p_above(limit) for one in self.others))

    def p_below(self, limit: float) -> float:
        return max(one.p_below(limit) for one in self.others)


def _or(value: float, instead: float) -> float:
    """Comparison with NaN depends on the order: it gets a place of its own."""
    return instead if math.isnan(value) else value


def _fields(estimate: Estimate) -> dict[str, Any]:
    return {one.name: getattr(estimate, one.name) for one in fields(Estimate)}
