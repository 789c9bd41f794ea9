"""An effect over units with all that its interval takes, at any level; the unit is stated with it.

Student's form: the mean over units (prompts, items, training seeds) and its standard error. From
these follow intervals, one-sided p-values and power, so that a verdict needs nothing else. Where no
two units differ there is no error to speak of: a statistic with bounds then has an exact interval
(n alike units leave at most a share 1 - a^(1/n) of others, anywhere within the bounds), one without
bounds has none.

`Least` and `Greatest` are for claims about each or any of several estimates, `mean_score` for
scores that take few values, `Correlation` for correlations (Student's on Fisher's scale),
`Bootstrap` for statistics of mean rows that jump, such as the place of a change.

>>> effect = Estimate.mean([0.2, 0.3, 0.1, 0.4, 0.2], "prompt")
>>> [round(bound, 3) for bound in effect.interval(0.95)]
[0.098, 0.382]
>>> Estimate.mean([1.0] * 50, "prompt", bounds=(0, 1)).interval(0.95)[0].__round__(3)
0.929
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import scipy  # its submodules load when they are first used
from numpy.typing import ArrayLike

from anchorwatch.errors import SpecError

PROMPT, ITEM, SEED = "prompt", "item", "training seed"
UNITS = {PROMPT: 5, ITEM: 5, SEED: 3}
"""What may be resampled, and how many are needed for an interval."""
POWER = 0.8
_ALIKE = 1e-12
"""Units that differ by less, as a share of their size, are alike."""


@dataclass(frozen=True)
class Estimate:
    """One effect over units."""

    value: float
    error: float
    """Standard error of the mean over units; NaN where there is none."""
    freedom: float
    n: int
    """Units that have a value."""
    unit: str
    missing: int = 0
    """Units that have none."""
    centre: float = math.nan
    """Where the interval lies: the value, or what pseudo-counts make of it."""
    bounds: tuple[float, float] | None = None
    """Between which the statistic of a unit must lie, where that is known."""
    alike: bool = False
    """Whether no two units differ."""
    why: str = ""
    """Why there is no interval; empty where there is one."""
    values: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Of each unit, for pictures; empty where the statistic is none of single units."""

    @classmethod
    def mean(
        cls, values: ArrayLike, unit: str, bounds: tuple[float, float] | None = None
    ) -> Estimate:
        """The mean of one number for each unit; NaN is a unit without one."""
        every = _check_values(values, unit)
        present = every[~np.isnan(every)]
        n, few = len(present), _few(len(present), unit)
        value = float(present.mean()) if n else math.nan
        alike = n > 1 and np.ptp(present) <= _ALIKE * max(np.abs(present).max(), 1e-300)
        error = float(present.std(ddof=1) / math.sqrt(n)) if n > 1 and not alike else math.nan
        why = few or (f"no two {unit}s differ" if alike and bounds is None else "")
        each = tuple(present.tolist())
        rest = len(every) - n, value, bounds, bool(alike), why, each
        return cls(value, error, n - 1, n, unit, *rest)

    @classmethod
    def pairs(cls, a: ArrayLike, b: ArrayLike, unit: str) -> Estimate:
        """mean(a - b) of right-or-wrong answers to the same items: Bonett and Price (2012).

        A pseudo-count on either side keeps the error honest where hardly a pair differs; it moves
        the centre of the interval, not the value.
        """
        gaps = _check_values(np.asarray(a, dtype=float) - np.asarray(b, dtype=float), unit)
        present = gaps[~np.isnan(gaps)]
        if not np.isin(present, (-1, 0, 1)).all():
            raise SpecError(
                "pairs() is of answers that are right (1) or wrong (0): use mean(a - b)"
            )
        n = len(present)
        up, down = ((present == 1).sum() + 1) / (n + 2), ((present == -1).sum() + 1) / (n + 2)
        centre = float(up - down)
        error = math.sqrt((up + down - centre**2) / (n + 2))
        value = float(present.mean()) if n else math.nan
        missing, why, each = len(gaps) - n, _few(n, unit), tuple(present.tolist())
        rest = missing, centre, (-1.0, 1.0), False, why, each
        return cls(value, error, math.inf, n, unit, *rest)

    @classmethod
    def jackknife(cls, rows: ArrayLike, of: Callable[[np.ndarray], float], unit: str) -> Estimate:
        """A smooth function of mean rows [unit, cell]: a ratio of means.

        Units that lack a cell are left out of all. What has ends, as a correlation has, is taken
        on a scale without: `Correlation.jackknifed`.
        """
        every = np.asarray(rows, dtype=float)
        complete = every[~np.isnan(every).any(axis=1)]
        n = len(complete)
        if n < 2:
            return cls.mean(np.full(len(every), np.nan), unit)
        total, whole = complete.sum(axis=0), float(of(complete.mean(axis=0)))
        without = np.array([of((total - row) / (n - 1)) for row in complete])
        pseudo = n * whole - (n - 1) * without
        if not np.isfinite(pseudo).all():
            return cls(whole, math.nan, n - 1, n, unit, len(every) - n, whole, why="it has a pole")
        pseudo_mean = cls.mean(pseudo, unit)
        kept = {name: getattr(pseudo_mean, name) for name in ("error", "freedom", "alike", "why")}
        return cls(whole, n=n, unit=unit, missing=len(every) - n, centre=pseudo_mean.value, **kept)

    def interval(self, level: float) -> tuple[float, float]:
        """Two-sided; NaN where there is none."""
        tail = (1 - level) / 2
        if self.why:
            return math.nan, math.nan
        if self.alike:
            low, high = self.bounds or (math.nan, math.nan)
            others = 1 - tail ** (1 / self.n)
            return self.value - others * (self.value - low), self.value + others * (
                high - self.value
            )
        reach = _quantile(self.freedom, 1 - tail) * self.error
        low, high = self.centre - reach, self.centre + reach
        if self.bounds:
            low, high = max(low, self.bounds[0]), min(high, self.bounds[1])
        return low, high

    def p_above(self, limit: float) -> float:
        """One-sided p of a truth of at most `limit`: small where the truth is above it."""
        return self._tail(limit, 1.0)

    def p_below(self, limit: float) -> float:
        """One-sided p of a truth of at least `limit`: small where the truth is below it."""
        return self._tail(limit, -1.0)

    def reach(self, tail: float, power: float = POWER) -> float:
        """How far beyond a limit the truth must lie to be told from it with this power."""
        if self.why or self.alike:
            return math.nan
        return (_quantile(self.freedom, 1 - tail) + _quantile(self.freedom, power)) * self.error

    def beyond(self, limit: float, side: float, tail: float) -> float:
        """The value nearest to a limit, above (1) or below it (-1), that would be told from it."""
        return limit + side * self.reach(tail)

    def units_needed(self, limit: float, side: float, tail: float) -> int | None:
        """Where all units are alike: how many such units tell their value from a limit.

        Above it for side 1, below it for side -1; None where they differ, or where none would.
        """
        if self.why or not self.alike or self.bounds is None:
            return None
        if side * (self.value - limit) <= 0:
            return None
        end = self.bounds[0] if side > 0 else self.bounds[1]
        left, room = side * (limit - end), side * (self.value - end)
        # No other unit can lie beyond the bound; a limit may also be so near it that 0 is left.
        if left <= 0 or (share := left / room) == 0:
            return 1
        # A value that hardly differs from its limit may leave a share of 1 after rounding.
        return None if share >= 1 else math.ceil(math.log(tail) / math.log(share))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def _tail(self, limit: float, side: float) -> float:
        """Absent evidence is none: p = 1."""
        if self.why or math.isnan(self.value):
            return 1.0
        if self.alike:
            assert self.bounds is not None
            if side * (self.value - limit) <= 0:
                return 1.0
            end = self.bounds[0] if side > 0 else self.bounds[1]
            left, room = side * (limit - end), side * (self.value - end)
            # Nothing lies beyond a bound: where the limit is there, room may be zero too.
            return 0.0 if left <= 0 else float((left / room) ** self.n)
        t = side * (self.centre - limit) / self.error
        return float(_below(self.freedom, -t))


def _quantile(freedom: float, share: float) -> float:
    if math.isinf(freedom):
        return float(scipy.special.ndtri(share))
    return float(scipy.special.stdtrit(freedom, share))


def _below(freedom: float, t: float) -> float:
    if math.isinf(freedom):
        return float(scipy.special.ndtr(t))
    return float(scipy.special.stdtr(freedom, t))


def _few(n: int, unit: str) -> str:
    needed = UNITS[unit]
    return "" if n >= needed else f"{n} {unit}{'s' * (n != 1)}, {needed} needed"


def _check_values(values: ArrayLike, unit: str) -> np.ndarray:
    if unit not in UNITS:
        raise SpecError(f"no unit is called {unit!r}: expected one of {', '.join(UNITS)}")
    array = np.asarray(values, dtype=float)
    if array.ndim != 1:
        raise SpecError(f"values have shape {array.shape}: give one number for each {unit}")
    if np.isinf(array).any():
        raise SpecError(f"a {unit} has an infinite value: use NaN where it has none")
    return array


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
        least = min(
            estimates, key=lambda estimate: (not estimate.why, _or(estimate.value, -math.inf))
        )
        return cls(**_fields(least), others=tuple(estimates))

    def interval(self, level: float) -> tuple[float, float]:
        """From the smallest low end; without one, every value is possible below."""
        each = 1 - (1 - level) / len(self.others)
        lows = [estimate.interval(level)[0] for estimate in self.others]
        highs = [estimate.interval(each)[1] for estimate in self.others]
        if any(map(math.isnan, lows)):
            return math.nan, math.nan
        return min(lows), min(highs)

    def units_needed(self, limit: float, side: float, tail: float) -> int | None:
        """Below, any of them is enough: the level is shared among them."""
        share = tail / len(self.others) if side < 0 else tail
        return super().units_needed(limit, side, share)

    def p_above(self, limit: float) -> float:
        return max(estimate.p_above(limit) for estimate in self.others)

    def p_below(self, limit: float) -> float:
        return min(1.0, len(self.others) * min(estimate.p_below(limit) for estimate in self.others))


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
        most = max(
            estimates, key=lambda estimate: (bool(estimate.why), _or(estimate.value, math.inf))
        )
        return cls(**_fields(most), others=tuple(estimates))

    def interval(self, level: float) -> tuple[float, float]:
        """To the largest high end; without one, every value is possible above."""
        each = 1 - (1 - level) / len(self.others)
        lows = [estimate.interval(each)[0] for estimate in self.others]
        highs = [estimate.interval(level)[1] for estimate in self.others]
        if any(map(math.isnan, highs)):
            return math.nan, math.nan
        return max(lows), max(highs)

    def beyond(self, limit: float, side: float, tail: float) -> float:
        """Any of them is enough above, and of those the nearest; below, all are needed."""
        if side > 0:
            return min(
                estimate.beyond(limit, side, tail / len(self.others)) for estimate in self.others
            )
        return min(estimate.beyond(limit, side, tail) for estimate in self.others)

    def units_needed(self, limit: float, side: float, tail: float) -> int | None:
        """Above, any of them is enough: the level is shared among them."""
        share = tail / len(self.others) if side > 0 else tail
        return super().units_needed(limit, side, share)

    def p_above(self, limit: float) -> float:
        return min(1.0, len(self.others) * min(estimate.p_above(limit) for estimate in self.others))

    def p_below(self, limit: float) -> float:
        return max(estimate.p_below(limit) for estimate in self.others)


def _or(value: float, instead: float) -> float:
    """Comparison with NaN depends on the order: it gets a place of its own."""
    return instead if math.isnan(value) else value


def _fields(estimate: Estimate) -> dict[str, Any]:
    return {item.name: getattr(estimate, item.name) for item in fields(Estimate)}


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


WHOLE = 1 - 1e-12
"""What counts as a correlation of 1, whose scale has no end."""


@dataclass(frozen=True)
class Correlation(Estimate):
    """Read through `on_scale`, its inverse hyperbolic tangent."""

    on_scale: Estimate = field(kw_only=True)

    @classmethod
    def jackknife(
        cls, rows: ArrayLike, of: Callable[[np.ndarray], float], unit: str
    ) -> Correlation:
        """A correlation that is a smooth function of mean rows [unit, cell]."""

        def to_fisher_scale(means: np.ndarray) -> float:
            value = of(means)
            return math.atanh(value) if abs(value) < WHOLE else math.nan

        on_scale = Estimate.jackknife(rows, to_fisher_scale, unit)
        return cls(
            math.tanh(on_scale.value),
            math.nan,
            on_scale.freedom,
            on_scale.n,
            unit,
            missing=on_scale.missing,
            centre=math.tanh(on_scale.centre),
            bounds=(-1.0, 1.0),
            alike=on_scale.alike,
            why=on_scale.why,
            on_scale=on_scale,
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


DRAWS = 9999
"""Bootstrap samples: the smallest p is 1e-4, below any level that Holm's test reads."""


@dataclass(frozen=True)
class Bootstrap(Estimate):
    """A statistic of mean rows that is no smooth function of them, by resampling units."""

    replicates: tuple[float, ...] = field(default=(), repr=False, compare=False)
    """Of each sample, in order of size."""

    @classmethod
    def over_units(
        cls, rows: ArrayLike, of: Callable[[np.ndarray], np.ndarray], unit: str
    ) -> Bootstrap:
        """`of` takes mean rows [sample, cell] and gives a value for each sample.

        Units that lack a cell are left out.
        """
        every = np.asarray(rows, dtype=float)
        complete = every[~np.isnan(every).any(axis=1)]
        n, missing = len(complete), len(every) - len(complete)
        why = _few(n, unit)
        if why:
            return cls(math.nan, math.nan, math.inf, n, unit, missing, why=why)
        value = float(of(complete.mean(axis=0)[None])[0])
        counts = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS)
        replicates = np.sort(of(counts @ complete / n))
        spread, each = float(replicates.std(ddof=1)), tuple(replicates.tolist())
        return cls(value, spread, math.inf, n, unit, missing, value, replicates=each)

    def interval(self, level: float) -> tuple[float, float]:
        if self.why:
            return math.nan, math.nan
        tail = (1 - level) / 2
        low, high = np.quantile(self.replicates, [tail, 1 - tail])
        return float(low), float(high)

    def p_above(self, limit: float) -> float:
        return self._share(np.asarray(self.replicates) <= limit)

    def p_below(self, limit: float) -> float:
        return self._share(np.asarray(self.replicates) >= limit)

    def _share(self, contrary: np.ndarray) -> float:
        """Samples that say the contrary; the one that was observed counts as one more."""
        return 1.0 if self.why else float((contrary.sum() + 1) / (contrary.size + 1))
