"""From estimates to verdicts: supported, refuted or undecided.

A criterion says where the truth must lie. A claim is **supported** if the interval of each of its
criteria lies inside that region, **refuted** if the interval of one lies wholly outside, and else
**undecided**. The level of the intervals is Holm's: of the m claims of a study that were run, the
one with the smallest p is read at level 1 - alpha/m, the next at 1 - alpha/(m - 1), and so on until
one cannot be decided; that one and all after it are undecided. A claim of J criteria has J chances
to be refuted, so that a refuting interval is wider: where a claim is supported at 1 - a, it is
refuted at 1 - a/J, and a refuted claim shows its intervals at that level. So the chance that a
study says "supported" or "refuted" of any claim for which the contrary is true is at most alpha:
whatever claims have in common if all lie on their margins, and else if they are independent
(Shaffer, 1980); claims that share prompts are simulated in the tests. Nothing but direction, margin
and estimate is looked at.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorwatch.errors import AnchorwatchError, EvidenceError
from anchorwatch.metrics import stats
from anchorwatch.studies.claim import EQUAL, GREATER, Claim, Criterion, Finding
from anchorwatch.studies.estimate import POWER, Estimate
from anchorwatch.studies.evidence import Evidence, skipped_units, to_json_value

ALPHA = 0.05
SUPPORTED, REFUTED, UNDECIDED, LACKING = "supported", "refuted", "undecided", "lacking"
VERDICTS = (SUPPORTED, REFUTED, UNDECIDED, LACKING)


@dataclass(frozen=True)
class Verdict:
    """What one claim came to, among the claims of its study."""

    says: str
    p: float
    """Two-sided, of the decision that is nearer."""
    p_holm: float
    level: float
    """Of the intervals, after Holm; of a refuted claim, shared among its criteria too."""
    intervals: Mapping[str, tuple[float, float]]
    """By criterion."""
    detectable: Mapping[str, float]
    """Where undecided: the value that would have been told from the margin four times in five;
    infinite where no value that the statistic can have would have been."""


def verdicts(
    findings: Sequence[tuple[Sequence[Criterion], Finding]], *, alpha: float = ALPHA
) -> list[Verdict]:
    """The verdicts of all claims of a study that were run, together."""
    each = [_sides(criteria, finding) for criteria, finding in findings]
    p = np.array([min(1.0, 2 * min(sides)) for sides in each])
    adjusted, levels = stats.holm(p), _levels(p, alpha)
    return [
        _verdict(
            criteria,
            finding,
            sides,
            (float(p[index]), float(adjusted[index]), levels[index], alpha),
        )
        for index, ((criteria, finding), sides) in enumerate(zip(findings, each, strict=True))
    ]


def p_supports(estimate: Estimate, criterion: Criterion) -> float:
    """One-sided p of a truth outside the region: small where it is inside."""
    low, high = criterion.region
    above = 0.0 if math.isinf(low) else estimate.p_above(low)
    below = 0.0 if math.isinf(high) else estimate.p_below(high)
    return max(above, below)


def p_refutes(estimate: Estimate, criterion: Criterion) -> float:
    """One-sided p of a truth inside the region: small where it is outside."""
    low, high = criterion.region
    below = 1.0 if math.isinf(low) else estimate.p_below(low)
    above = 1.0 if math.isinf(high) else estimate.p_above(high)
    return min(below, above)


def _sides(criteria: Sequence[Criterion], finding: Finding) -> tuple[float, float]:
    """p of all criteria inside, and of any outside."""
    pairs = [(finding.measured[criterion.name].estimate, criterion) for criterion in criteria]
    supports = max(p_supports(*pair) for pair in pairs)
    refutes = min(1.0, len(pairs) * min(p_refutes(*pair) for pair in pairs))
    return supports, refutes


def _levels(p: np.ndarray, alpha: float) -> list[float]:
    """Of each claim's interval: Holm's step, and where it stops, that of the stop."""
    levels, stopped, count = [0.0] * len(p), None, len(p)
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        share = stopped or alpha / (count - rank)
        if stopped is None and not p[index] < share:
            stopped = share
        levels[index] = 1 - share
    return levels


def _verdict(
    criteria: Sequence[Criterion],
    finding: Finding,
    sides: tuple[float, float],
    numbers: tuple[float, float, float, float],
) -> Verdict:
    p, adjusted, level, alpha = numbers
    supports, refutes = sides
    says = UNDECIDED
    if adjusted < alpha:
        says = SUPPORTED if supports < refutes else REFUTED
    if says == REFUTED:  # any of the criteria could have done it
        level = 1 - (1 - level) / len(criteria)
    measured = {criterion.name: finding.measured[criterion.name].estimate for criterion in criteria}
    intervals = {name: estimate.interval(level) for name, estimate in measured.items()}
    shown = {}
    if says == UNDECIDED:
        shown = {
            criterion.name: detectable(measured[criterion.name], criterion, level)
            for criterion in criteria
        }
    return Verdict(says, p, adjusted, level, intervals, shown)


def detectable(estimate: Estimate, criterion: Criterion, level: float) -> float:
    """The value nearest to the margin that these units would have shown with power 0.8.

    For equality it is the margin that an effect of exactly `about` would have been shown within.
    Infinite where that value is beyond the statistic's bounds.
    """
    tail = (1 - level) / 2
    if criterion.direction == EQUAL:
        return estimate.reach(tail, (1 + POWER) / 2)
    sign = 1.0 if criterion.direction == GREATER else -1.0
    shown = estimate.beyond(criterion.margin, sign, tail)
    low, high = estimate.bounds or (-math.inf, math.inf)
    return sign * math.inf if shown < low or shown > high else shown


@dataclass(frozen=True)
class JudgedClaim:
    """One claim after a study: measured and judged, or with what it lacks."""

    claim: Claim
    finding: Finding | None = None
    verdict: Verdict | None = None
    lacking: str = ""
    unfit: tuple[str, ...] = ()
    """What evidence went without, in words: prompts that are too long for a model."""

    @property
    def says(self) -> str:
        return LACKING if self.verdict is None else self.verdict.says

    @property
    def binding_criterion(self) -> Criterion | None:
        """The criterion that decides: the furthest outside if refuted, else the least inside."""
        if self.finding is None:
            return None

        estimates = {name: measured.estimate for name, measured in self.finding.measured.items()}
        if self.says == REFUTED:
            return min(self.claim.criteria, key=lambda c: p_refutes(estimates[c.name], c))
        return max(self.claim.criteria, key=lambda c: p_supports(estimates[c.name], c))

    @property
    def binding(self) -> Criterion | None:
        """The old name of `binding_criterion`."""
        message = "JudgedClaim.binding is now JudgedClaim.binding_criterion"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.binding_criterion

    def criterion_row(self, criterion: Criterion) -> dict[str, Any]:
        """What a criterion said and what was found."""
        assert self.finding is not None
        assert self.verdict is not None
        measured = self.finding.measured[criterion.name]
        low, high = self.verdict.intervals[criterion.name]
        shown = self.verdict.detectable.get(criterion.name, math.nan)
        return {
            "criterion": criterion.name,
            "statistic": criterion.statistic,
            "direction": criterion.direction,
            "margin": criterion.margin,
            "about": criterion.about,
            "reason": criterion.reason,
            "null_is": criterion.null,
            "control_is": criterion.control,
            "n": measured.estimate.n,
            "missing": measured.estimate.missing,
            "effect": measured.estimate.value,
            "low": low,
            "high": high,
            "level": self.verdict.level,
            "null": measured.null,
            "control": measured.control,
            "detectable": math.nan if math.isinf(shown) else shown,
            "out_of_reach": math.isinf(shown),
            "why": measured.estimate.why,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it, as claims.json has it; an absent number is null."""
        claim = self.claim
        record: dict[str, Any] = {
            "id": claim.id,
            "study": claim.study,
            "verdict": self.says,
            "lacking": self.lacking,
            "sentence": claim.sentence,
            "source": claim.source,
            "reported": claim.reported,
            "unit": claim.unit,
            "defect": claim.defect,
            "caveat": claim.caveat,
            "needs": [str(spec) for spec in claim.needs],
        }
        if self.verdict is not None and self.finding is not None:
            binding = self.binding_criterion
            assert binding is not None
            record |= {"p": self.verdict.p, "p_holm": self.verdict.p_holm}
            record |= {"binding": binding.name, "also": dict(self.finding.also)}
            record["unfit"] = list(self.unfit)
            record["criteria"] = [self.criterion_row(criterion) for criterion in claim.criteria]
        return to_json_value(record)


def judge_claims(
    claims: Sequence[Claim], evidence: Evidence, lacking: Mapping[str, str]
) -> tuple[JudgedClaim, ...]:
    """Measure all claims that can be, and judge those of each study together."""
    findings: dict[str, Finding] = {}
    lost = dict(lacking)
    for claim in claims:
        if claim.id not in lost:
            try:
                findings[claim.id] = _measure_claim(claim, evidence)
            except AnchorwatchError as error:  # what is at hand cannot be measured so: it is said
                lost[claim.id] = str(error)
    judgements: dict[str, Verdict] = {}
    for study in dict.fromkeys(claim.study for claim in claims):
        mine = [claim for claim in claims if claim.study == study and claim.id in findings]
        each = verdicts([(claim.criteria, findings[claim.id]) for claim in mine])
        judgements |= {claim.id: verdict for claim, verdict in zip(mine, each, strict=True)}
    return tuple(
        JudgedClaim(
            claim,
            findings.get(claim.id),
            judgements.get(claim.id),
            lost.get(claim.id, ""),
            _describe_skipped(claim, evidence) if claim.id in findings else (),
        )
        for claim in claims
    )


def _measure_claim(claim: Claim, evidence: Evidence) -> Finding:
    """What a claim measured; one that measured nothing lacks it, which is not to be undecided."""
    finding = claim.find(evidence)
    estimates = [estimate.estimate for estimate in finding.measured.values()]
    if any(estimate.n for estimate in estimates):
        return finding
    lost = "; ".join(_describe_skipped(claim, evidence))
    why = f"did not fit: {lost}" if lost else "all could be run, and it never came up in them"
    count = max(estimate.missing for estimate in estimates)
    raise EvidenceError(
        f"{claim.unit}s with a value of every statistic: none of {count} has one ({why})"
    )


def _describe_skipped(claim: Claim, evidence: Evidence) -> tuple[str, ...]:
    """A clause for each need that lost units: how many, of what, and why the first one."""
    lost = {spec: skipped_units(evidence[spec]) for spec in claim.needs}
    return tuple(
        f"{len(whys)} of the units of {spec} ({next(iter(whys.values()))})"
        for spec, whys in lost.items()
        if whys
    )
