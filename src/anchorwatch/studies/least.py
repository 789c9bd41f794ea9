"""The least of several estimates, for claims about "each": every one must hold. No torch here.

All are above a limit only if the least is, so that support takes the largest p (an intersection of
tests needs no correction). One that is below refutes, and for that the smallest p counts as many
times as there are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from anchorwatch.studies.estimates import Estimate


@dataclass(frozen=True)
class Least(Estimate):
    """The estimate with the smallest value, read beside all the others."""

    others: tuple[Estimate, ...] = ()
    """All of them, that one too."""

    @classmethod
    def among(cls, estimates: Sequence[Estimate]) -> Least:
        """Of at least one; an estimate without an interval leaves nothing to be decided.

        >>> low, high = (Estimate.mean([x, x + 1, x + 2], "training seed") for x in (0, 9))
        >>> Least.among([high, low]).value
        1.0
        """
        least = min(estimates, key=lambda one: (not one.why, one.value))
        held = {one.name: getattr(least, one.name) for one in fields(Estimate)}
        return cls(**held, others=tuple(estimates))

    def interval(self, level: float) -> tuple[float, float]:
        each = 1 - (1 - level) / len(self.others)
        lows = [one.interval(level)[0] for one in self.others]
        highs = [one.interval(each)[1] for one in self.others]
        return min(lows), min(highs)

    def p_above(self, limit: float) -> float:
        return max(one.p_above(limit) for one in self.others)

    def p_below(self, limit: float) -> float:
        return min(1.0, len(self.others) * min(one.p_below(limit) for one in self.others))
