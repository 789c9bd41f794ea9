"""What a picture of one criterion shows, and on which axis: the same marks for page and PDF.

The axis holds effect, interval, margin and null, and the values of units. Control and the paper's
numbers stand on it where they are near enough not to squeeze the rest; else they are named as off
the axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anchorwatch.studies.claim import Criterion
from anchorwatch.studies.verdict import REFUTED, SUPPORTED, UNDECIDED, JudgedClaim

MOST_UNITS = 200
"""Units that are drawn as points each."""
FEWEST_KINDS = 4
"""Values that take fewer (right or wrong, less the same) make no picture as points."""
_PAD = 0.06


@dataclass(frozen=True)
class Marks:
    """One criterion, as marks on an axis from `low` to `high`."""

    low: float
    high: float
    effect: float
    interval: tuple[float, float]
    """NaN where there is none."""
    region: tuple[float, float]
    """Where the claim holds, within the axis."""
    limits: tuple[float, ...]
    """Ends of the region that are margins."""
    named: tuple[tuple[str, float], ...]
    """null, control and the paper's numbers that are on the axis."""
    off: tuple[tuple[str, float], ...]
    """Those that are not."""
    values: tuple[float, ...]
    """Of units."""

    @property
    def lies(self) -> str:
        """Where the interval is: supported, refuted or undecided, were this criterion alone."""
        (low, high), (bottom, top) = self.interval, self.region
        if math.isnan(low):
            return UNDECIDED
        inside_low = low > bottom or bottom not in self.limits
        inside_high = high < top or top not in self.limits
        if inside_low and inside_high:
            return SUPPORTED
        beyond = (high <= bottom and bottom in self.limits) or (low >= top and top in self.limits)
        return REFUTED if beyond else UNDECIDED

    def at(self, value: float) -> float:
        """Where a value is on the axis: 0 to 1."""
        return (value - self.low) / (self.high - self.low)


def marks(one: JudgedClaim, criterion: Criterion) -> Marks:
    """From what a criterion announced and what was found."""
    row = one.criterion_row(criterion)
    limits = tuple(bound for bound in criterion.region if math.isfinite(bound))
    interval = (float(row["low"]), float(row["high"]))
    values = _points(one, criterion)
    core = _finite([row["effect"], *interval, *limits, *values])
    named = [("null", row["null"]), ("control", row["control"])]
    named += [(f"paper, {who}", value) for who, value in criterion.published.items()]
    low, high, kept, off = min(core), max(core), [], []
    reach = {"null": 4.0, "control": 1.0}
    for name, value in named:
        if not math.isfinite(value):
            continue
        span = (high - low) or abs(high) or 1.0
        room = reach.get(name, 2.0) * span
        if low - room <= value <= high + room:
            kept.append((name, float(value)))
            low, high = min(low, value), max(high, value)
        else:
            off.append((name, float(value)))
    pad = _PAD * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad
    inside = (max(low, criterion.region[0]), min(high, criterion.region[1]))
    found = tuple(kept), tuple(off), values
    return Marks(low, high, float(row["effect"]), interval, inside, limits, *found)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers between two, at least two and at most `most`.

    >>> ticks(-0.03, 0.41)
    [0.0, 0.1, 0.2, 0.3, 0.4]
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * by for by in (1, 2, 5, 10, 20) if _count(low, high, size * by) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round((first + at) * step, 12) + 0.0 for at in range(_count(low, high, step))]


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _points(one: JudgedClaim, criterion: Criterion) -> tuple[float, ...]:
    assert one.finding is not None
    values = one.finding.measured[criterion.name].estimate.values
    few = len(np.unique(np.round(values, 12))) < FEWEST_KINDS
    return () if few or len(values) > MOST_UNITS else values


def _finite(values: Sequence[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]
