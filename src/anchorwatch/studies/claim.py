"""A claim of a paper as a value: the sentence, its source, how it is tested, and on what evidence.

What would support a claim is stated in its criteria, before a study runs: a statistic, the null
and the control it is compared with, a direction and a margin with its reason. The function of a
claim only measures: it returns one estimate for each criterion, and the verdict follows from those
criteria that decide. Others are *also measured*: shown beside, and no part of the verdict.

A claim says whose it is (`origin`), of which models it was said (`scope`), and what a model must
have for the claim to be tested on it at all (`preconditions`, measured first). `changes` is the log
of what was changed in its test, and why.

`register_claim` is how a claim is added: decorate the function that measures it. The list of
claims, `anchorwatch study`, the report and the tables of the docs follow.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from anchorwatch.errors import SpecError
from anchorwatch.studies.estimate import UNITS, Estimate
from anchorwatch.studies.evidence import Evidence, EvidenceSpec, ModelIdentity

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

GREATER, LESS, EQUAL = "greater", "less", "equal"
DIRECTIONS = (GREATER, LESS, EQUAL)
PAPER, NEIGHBOUR, CODE, OURS = "paper", "neighbour", "code", "ours"
ORIGINS: Mapping[str, str] = {
    PAPER: "sentences of the paper",
    NEIGHBOUR: "sentences of a neighbouring paper",
    CODE: "statements about the published code",
    OURS: "questions of ours",
}
"""Whose claim it is, and how a count of such claims is named."""
FAMILIES_OF_ROLE = "mdm"
"""The role whose family a scope is compared with."""
_ID = re.compile(r"[a-z][a-z0-9_]*/H[1-9][0-9]?")
"""The name of a paper, and the number of the claim in it."""


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
    published: Mapping[str, float] = field(default_factory=dict, hash=False)
    """The paper's own numbers, by what they are of; only where its statistic is this one."""
    decides: bool = True
    """False: also measured. It has an interval and a null, and no part in the verdict."""

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


@dataclass(frozen=True)
class Precondition:
    """What a model or its evidence must have for a claim to be tested on it."""

    name: str
    """What is lacking where it fails, as a noun phrase: "a sink in most heads"."""
    statistic: str
    """What is measured, in words."""
    minimum: float
    reason: str
    """Why this minimum."""
    measure: Callable[[Evidence], float]
    needs: tuple[EvidenceSpec, ...] = ()
    """Evidence that it reads; it becomes evidence of the claim."""

    def __post_init__(self) -> None:
        if not self.reason or not math.isfinite(self.minimum):
            raise SpecError(f"{self.name!r} needs a minimum that is a number, and a reason for it")

    def check(self, evidence: Evidence) -> CheckedPrecondition:
        """Measure it; once for all claims that have it."""
        value = evidence.once(("precondition", self), lambda: float(self.measure(evidence)))
        return CheckedPrecondition(self, value)


@dataclass(frozen=True)
class CheckedPrecondition:
    """A precondition and what was measured."""

    precondition: Precondition
    value: float

    @property
    def holds(self) -> bool:
        """A value that cannot be measured does not hold."""
        return self.value >= self.precondition.minimum

    def __str__(self) -> str:
        stated = self.precondition
        here = "cannot be measured here" if math.isnan(self.value) else f"is {self.value:.3g}"
        return f"{stated.name} ({stated.statistic} {here}, at least {stated.minimum:.3g} is needed)"

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        stated = self.precondition
        return {
            "name": stated.name,
            "statistic": stated.statistic,
            "minimum": stated.minimum,
            "reason": stated.reason,
            "value": self.value,
            "holds": self.holds,
        }


@dataclass(frozen=True)
class Change:
    """One entry of a claim's log: what was changed in its test."""

    what: str
    why: str
    """Argued from the text of the paper, not from the verdict."""
    before: str
    """What the old test asked for, and what it said."""

    def __post_init__(self) -> None:
        if not (self.what and self.why and self.before):
            raise SpecError("a change says what was changed, why, and what was there before")


Measure = Callable[[Evidence], Finding]
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
    needs: tuple[EvidenceSpec, ...] = ()
    criteria: tuple[Criterion, ...] = ()
    """All must hold; a table of claims shows the one that binds, the least sure of them."""
    measure: Measure | None = None
    draw: Draw | None = None
    """A figure of the evidence, where there is one to draw."""
    defect: str = ""
    """Known of the published code."""
    caveat: str = ""
    """What a verdict here does not say."""
    lacks: str = ""
    """What there would have to be for it to be tested; only of a claim that is not measured."""
    origin: str = PAPER
    """Whose claim it is: paper, neighbour (`source` names which), code or ours."""
    scope: tuple[str, ...] = ()
    """Families of masked diffusion models that it was said of; empty: of any."""
    preconditions: tuple[Precondition, ...] = ()
    contradiction: str = ""
    """Where the paper's own numbers contradict its sentence."""
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise SpecError(f"{self.id!r} is no claim's id: say floating/H3")
        if self.unit not in UNITS:
            raise SpecError(f"{self.id}: unit={self.unit!r}: expected one of {', '.join(UNITS)}")
        names = [criterion.name for criterion in self.criteria]
        if len(set(names)) != len(names):
            raise SpecError(f"{self.id} has two criteria of one name: {', '.join(names)}")
        if (self.measure is None) != (not self.criteria) or bool(self.criteria) != bool(self.needs):
            raise SpecError(
                f"{self.id}: criteria, needs and measure belong together, give all or none"
            )
        if self.lacks and self.measure is not None:
            raise SpecError(f"{self.id} has a measure: what its needs lack is theirs to say")
        if self.origin not in ORIGINS:
            raise SpecError(f"{self.id}: origin={self.origin!r}: expected {', '.join(ORIGINS)}")
        if self.criteria and not self.deciding:
            raise SpecError(f"{self.id} has no criterion that decides: leave out decides=False")
        if lost := [
            spec for item in self.preconditions for spec in item.needs if spec not in self.needs
        ]:
            raise SpecError(f"{self.id}: a precondition reads {lost[0]}: name it in needs=, too")

    @property
    def judge(self) -> Measure | None:
        """The old name of `measure`."""
        warnings.warn("Claim.judge is now Claim.measure", DeprecationWarning, stacklevel=2)
        return self.measure

    @property
    def study(self) -> str:
        return self.id.partition("/")[0]

    @property
    def number(self) -> int:
        return int(self.id.rpartition("H")[2])

    @property
    def deciding(self) -> tuple[Criterion, ...]:
        """The criteria that the verdict rests on."""
        return tuple(criterion for criterion in self.criteria if criterion.decides)

    def not_about(self, models: Mapping[str, ModelIdentity]) -> str:
        """Of which models it was said, where the model in `models` is of another family."""
        model = models.get(FAMILIES_OF_ROLE)
        if not self.scope or model is None or not model.family or model.family in self.scope:
            return ""
        return f"it was said of {', '.join(self.scope)}, and {model.source} is {model.family}"

    @property
    def is_testable(self) -> bool:
        """Whether it can be tested at all."""
        return self.measure is not None

    def find(self, evidence: Evidence) -> Finding:
        """Measure, and hold the result to what the claim announced."""
        assert self.measure is not None
        finding = self.measure(evidence)
        announced = [criterion.name for criterion in self.criteria]
        if list(finding.measured) != announced:
            raise SpecError(
                f"{self.id} announced {announced} and measured {list(finding.measured)}"
            )
        for name, measured in finding.measured.items():
            if measured.estimate.unit != self.unit:
                raise SpecError(
                    f"{self.id} is about the {self.unit}, "
                    f"and {name} is over {measured.estimate.unit}s"
                )
        return finding


@dataclass(frozen=True)
class Paper:
    """One paper whose claims are run."""

    title: str
    authors: str
    arxiv: str
    summary: str
    """In a sentence, for who has not read it."""

    @property
    def citation(self) -> str:
        """As a list of references has it; an address as text, nothing to follow."""
        return f"{self.authors}. {self.title}. arXiv {self.arxiv} (https://arxiv.org/abs/{self.arxiv})."


PAPERS: dict[str, Paper] = {}
"""Registered papers by the name that stands before the slash in a claim's id."""
CLAIMS: dict[str, Claim] = {}
"""Registered claims by id."""


def register_paper(name: str, paper: Paper) -> Paper:
    """Make a paper known, so that claims of it can be registered and reported."""
    PAPERS[name] = paper
    return paper


def register_claim(  # noqa: PLR0913 (the fields of a claim, by name)
    id: str,
    sentence: str,
    *,
    source: str,
    reported: str,
    unit: str,
    needs: tuple[EvidenceSpec, ...],
    criteria: tuple[Criterion, ...],
    draw: Draw | None = None,
    defect: str = "",
    caveat: str = "",
    origin: str = PAPER,
    scope: tuple[str, ...] = (),
    preconditions: tuple[Precondition, ...] = (),
    contradiction: str = "",
    changes: tuple[Change, ...] = (),
) -> Callable[[Measure], Measure]:
    """A decorator: the function measures this claim. The arguments are the fields of `Claim`.

    What the preconditions read is added to `needs`.
    """
    read = (spec for condition in preconditions for spec in condition.needs)
    every = tuple(dict.fromkeys((*needs, *read)))

    def register(measure: Measure) -> Measure:
        stated = Claim(id, sentence, source, reported, unit, every, criteria, measure, draw)
        stated = replace(stated, defect=defect, caveat=caveat, origin=origin, scope=scope)
        stated = replace(stated, preconditions=preconditions, contradiction=contradiction)
        _add(replace(stated, changes=changes))
        return measure

    return register


def register_untested_claim(  # noqa: PLR0913 (the fields of a claim, by name)
    id: str,
    sentence: str,
    *,
    source: str,
    reported: str,
    unit: str,
    lacks: str,
    defect: str = "",
    caveat: str = "",
    origin: str = PAPER,
    scope: tuple[str, ...] = (),
    changes: tuple[Change, ...] = (),
) -> None:
    """A claim of a paper that cannot be tested yet, and what there would have to be for it."""
    stated = Claim(id, sentence, source, reported, unit, defect=defect, caveat=caveat, lacks=lacks)
    _add(replace(stated, origin=origin, scope=scope, changes=changes))


def _add(claim: Claim) -> None:
    """Keep a claim; one id has one claim, which the same function may state again (a notebook)."""
    if claim.study not in PAPERS:
        raise SpecError(
            f"{claim.id}: no paper is called {claim.study!r}: register_paper({claim.study!r}, ...)"
        )
    known = CLAIMS.get(claim.id)
    if known is not None and _function(known) != _function(claim):
        raise SpecError(f"{claim.id} is registered twice: give one of them another number")
    CLAIMS[claim.id] = claim


def _function(claim: Claim) -> tuple[str, str]:
    return getattr(claim.measure, "__module__", ""), getattr(claim.measure, "__qualname__", "")
