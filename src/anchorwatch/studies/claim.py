"""A claim as a value: the sentence, where it stands, how it is tested, and on what evidence.

What would support a claim is said before anything is run, in its criteria: a statistic, the null
and the control it is held against, a direction and a margin with its reason. `judge` only measures;
it returns one estimate for each criterion and cannot say more. No torch here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.estimates import UNITS, Estimate
from anchorwatch.studies.needs import Need

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

GREATER, LESS, EQUAL = "greater", "less", "equal"
DIRECTIONS = (GREATER, LESS, EQUAL)
_ID = re.compile(r"(floating|sinks|sink_token)/H[1-9][0-9]?")


@dataclass(frozen=True)
class Criterion:
    """What is measured, and where it must lie for the claim to hold."""

    name: str
    statistic: str
    """In words."""
    direction: str
    """greater or less than the margin, or equal: within the margin of `about`."""
    margin: float
    reason: str
    """Why this margin."""
    null: str = ""
    """In words: what indifference, chance or an edit that does nothing would give."""
    control: str = ""
    about: float = 0.0

    def __post_init__(self) -> None:
        if self.direction not in DIRECTIONS:
            raise SpecError(
                f"{self.name}: direction={self.direction!r}: expected {', '.join(DIRECTIONS)}"
            )
        if not math.isfinite(self.margin) or (self.direction == EQUAL and self.margin <= 0):
            raise SpecError(f"{self.name}: margin={self.margin!r}: say a number, above 0 if equal")
        if not self.reason:
            raise SpecError(f"{self.name} does not say why its margin is {self.margin}: reason=")

    @property
    def region(self) -> tuple[float, float]:
        """Where the truth lies if the claim holds: an open interval."""
        if self.direction == GREATER:
            return self.margin, math.inf
        if self.direction == LESS:
            return -math.inf, self.margin
        return self.about - self.margin, self.about + self.margin


@dataclass(frozen=True)
class Measured:
    """What one criterion found; null and control are in its units, NaN where there is none."""

    estimate: Estimate
    null: float = math.nan
    control: float = math.nan


@dataclass(frozen=True)
class Finding:
    """What the criteria of a claim found, by name, and what else is worth saying."""

    measured: Mapping[str, Measured]
    also: Mapping[str, float | str] = field(default_factory=dict)
    """Numbers that decide nothing: the same on another scale, the ratio behind a difference."""


class Evidence:
    """What was gathered, by need; made or read when it is first asked for, and kept.

    >>> from anchorwatch.studies.needs import Seeds
    >>> Evidence.of({Seeds(("bound.all",)): 3})[Seeds(("bound.all",))]
    3
    """

    def __init__(self, make: Callable[[Need], Any]) -> None:
        self._make = make
        self._kept: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, held: Mapping[Need, Any]) -> Evidence:
        """Evidence that is there already: planted, or read."""
        return cls(lambda need: held[need])

    def __getitem__(self, need: Need) -> Any:
        return self.once(need, lambda: self._make(need))

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once for all claims that ask under this key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]


Judge = Callable[[Evidence], Finding]
Draw = Callable[[Evidence], "Figure | None"]


@dataclass(frozen=True)
class Claim:
    """One hypothesis of a paper."""

    id: str
    """study/H3."""
    sentence: str
    """What is claimed, in our words."""
    source: str
    """Paper, section, figure or table."""
    reported: str
    """The number or words given there; "not reported" where there is none."""
    unit: str
    """Of analysis: prompt, item or training seed."""
    needs: tuple[Need, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    """All must hold; a table of claims shows the one that binds, the least sure of them."""
    judge: Judge | None = None
    draw: Draw | None = None
    """A figure of the evidence, where there is one to draw."""
    defect: str = ""
    """Known of the published code."""
    caveat: str = ""
    """What a verdict here does not say."""
    lacks: str = ""
    """What there would have to be for it to be tested; only of a claim without a judge."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise SpecError(f"{self.id!r} is no claim's id: say floating/H3")
        if self.unit not in UNITS:
            raise SpecError(f"{self.id}: unit={self.unit!r}: expected one of {', '.join(UNITS)}")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) != len(names):
            raise SpecError(f"{self.id} has two criteria of one name: {', '.join(names)}")
        if (self.judge is None) != (not self.criteria) or bool(self.criteria) != bool(self.needs):
            raise SpecError(
                f"{self.id}: criteria, needs and judge belong together, give all or none"
            )
        if self.lacks and self.judge is not None:
            raise SpecError(f"{self.id} has a judge: what its needs lack is theirs to say")

    @property
    def study(self) -> str:
        return self.id.partition("/")[0]

    @property
    def number(self) -> int:
        return int(self.id.rpartition("H")[2])

    @property
    def written(self) -> bool:
        """Whether it can be tested at all."""
        return self.judge is not None

    def find(self, evidence: Evidence) -> Finding:
        """Measure, and hold the result to what the claim announced."""
        assert self.judge is not None
        found = self.judge(evidence)
        announced = [criterion.name for criterion in self.criteria]
        if list(found.measured) != announced:
            raise SpecError(f"{self.id} announced {announced} and measured {list(found.measured)}")
        for name, one in found.measured.items():
            if one.estimate.unit != self.unit:
                raise SpecError(
                    f"{self.id} is about the {self.unit}, and {name} is over {one.estimate.unit}s"
                )
        return found
