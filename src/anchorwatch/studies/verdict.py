"""From estimates to verdicts: supported, below the margin, refuted, undecided, and two for claims
that were not judged: not testable, not about this model.

A criterion says where the truth must lie. A claim is **supported** if the interval of each of its
deciding criteria lies inside that region, **refuted** if the interval of one lies wholly outside,
and else **undecided**. A claim that is refuted only because its effect is too small is **below the
margin**: each of its criteria lies on the claimed side of its null, and one short of its margin.
Criteria with `decides=False` are also measured: they have intervals and no part in any of this.

The level of the intervals is by Shaffer's step-down test (1986), which is Holm's with a divisor
that knows which statements can be false together. Of each claim there are two: one about the
margin, and where it is refuted one about the null. Only one of them can be false at a time, so that
m claims count m and not 2 m. The claim with the smallest p is read at level 1 - alpha/m; one that
is supported, or of which both statements are settled, is counted no more, and the next is read at
1 - alpha/(m - 1), and so on until one cannot be decided; that one and all after it are undecided. A
claim of J criteria has J chances to be refuted, so that a refuting interval is wider: where a claim
is supported at 1 - a, it is refuted at 1 - a/J, and shows its intervals at that level. So the
chance that a study says "supported", "refuted" or "below the margin" of any claim for which the
contrary is true is at most alpha: whatever claims have in common if all lie on their margins, and
else if they are independent (Shaffer, 1980); claims that share prompts are simulated in the tests.
A null is taken as known. Nothing but direction, margin, null and estimate is looked at.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anchorwatch.errors import AnchorwatchError, EvidenceError
from anchorwatch.studies.claim import (
    EQUAL,
    GREATER,
    CheckedPrecondition,
    Claim,
    Criterion,
    Finding,
    Measured,
)
from anchorwatch.studies.estimate import POWER, Estimate
from anchorwatch.studies.evidence import Evidence, skipped_units, to_json_value

ALPHA = 0.05
SUPPORTED, BELOW_MARGIN, REFUTED = "supported", "below the margin", "refuted"
UNDECIDED, NOT_TESTABLE, NOT_ABOUT = "undecided", "not testable", "not about this model"
VERDICTS = (SUPPORTED, BELOW_MARGIN, REFUTED, UNDECIDED, NOT_TESTABLE, NOT_ABOUT)


@dataclass(frozen=True)
class Verdict:
    """What one claim came to, among the claims of its study."""

    says: str
    p: float
    """Two-sided, of the decision that is nearer."""
    p_holm: float
    """Adjusted for all claims that were judged together."""
    level: float
    """Of the intervals, after the step-down; of a refuted claim, shared among its criteria too."""
    intervals: Mapping[str, tuple[float, float]]
    """By criterion, those that do not decide among them."""
    detectable: Mapping[str, float]
    """Where not supported: the value that there was 80 % power to tell from the margin; infinite
    where there was for no value that the statistic can have."""


def verdicts(
    findings: Sequence[tuple[Sequence[Criterion], Finding]], *, alpha: float = ALPHA
) -> list[Verdict]:
    """The verdicts of all claims of a study that were run, together."""
    each = [_sides(criteria, finding) for criteria, finding in findings]
    steps = _step_down(each, alpha)
    return [
        _verdict(criteria, finding, sides, step)
        for (criteria, finding), sides, step in zip(findings, each, steps, strict=True)
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


def p_in_direction(measured: Measured, criterion: Criterion) -> float:
    """One-sided p of a truth that is not on the claimed side of the null: small where it is.

    A criterion without a null outside its region (an equality, for instance) has no such side: it
    must hold.
    """
    if not _has_direction(measured, criterion):
        return p_supports(measured.estimate, criterion)
    if criterion.direction == GREATER:
        return measured.estimate.p_above(measured.null)
    return measured.estimate.p_below(measured.null)


def _has_direction(measured: Measured, criterion: Criterion) -> bool:
    """Whether there is a way between null and margin; NaN is no null."""
    if criterion.direction == EQUAL:
        return False
    if criterion.direction == GREATER:
        return measured.null < criterion.margin
    return measured.null > criterion.margin


@dataclass(frozen=True)
class _Sides:
    """p-values of a claim's statements."""

    supports: float
    """All criteria inside."""
    refutes: float
    """Any outside, of J."""
    direction: float
    """Not all on the claimed side of their nulls, two-sided and of J; NaN where there is none."""

    @property
    def p(self) -> float:
        return min(1.0, 2 * min(self.supports, self.refutes))

    @property
    def is_refuting(self) -> bool:
        return not self.supports < self.refutes


def _sides(criteria: Sequence[Criterion], finding: Finding) -> _Sides:
    pairs = [(finding.measured[item.name], item) for item in criteria if item.decides]
    supports = max(p_supports(measured.estimate, item) for measured, item in pairs)
    refutes = min(p_refutes(measured.estimate, item) for measured, item in pairs)
    direction = math.nan
    if any(_has_direction(*pair) for pair in pairs):
        direction = min(1.0, 2 * len(pairs) * max(p_in_direction(*pair) for pair in pairs))
    return _Sides(supports, min(1.0, len(pairs) * refutes), direction)


@dataclass(frozen=True)
class _Step:
    """What the step-down says of a claim."""

    adjusted: float
    level: float
    is_decided: bool
    is_below_margin: bool


def _step_down(each: Sequence[_Sides], alpha: float) -> list[_Step]:
    """Shaffer's (1986) over all claims, from the smallest p to the largest."""
    unread, refuted = set(range(len(each))), set[int]()
    adjusted, shares = [1.0] * len(each), [0.0] * len(each)
    decided, below = set[int](), set[int]()
    stopped, largest = 0.0, 0.0
    while unread:
        # 1. the smallest p of a statement that is not settled, and its share of alpha
        count = len(unread | refuted)
        statements = [(each[index].p, 0, index) for index in unread]
        statements += [(each[index].direction, 1, index) for index in refuted]
        p, about_null, index = min(statements)
        share = stopped or alpha / count
        if not stopped and not p < share:
            stopped = share
        largest = max(largest, min(1.0, p * count))
        # 2. settle it; a refuted claim still counts while its other statement is open
        if about_null:
            refuted.remove(index)
        else:
            unread.remove(index)
            adjusted[index], shares[index] = largest, share
            if each[index].is_refuting and not math.isnan(each[index].direction):
                refuted.add(index)
        # 3. nothing after the first that cannot be decided is
        if not stopped:
            (below if about_null else decided).add(index)
            shares[index] = share
    # 4. statements about nulls that come after the last claim
    while refuted and not stopped:
        index = min(refuted, key=lambda item: each[item].direction)
        share = alpha / len(refuted)
        if not each[index].direction < share:
            break
        refuted.remove(index)
        below.add(index)
        shares[index] = share
    return [
        _Step(adjusted[index], 1 - shares[index], index in decided, index in below)
        for index in range(len(each))
    ]


def _verdict(
    criteria: Sequence[Criterion], finding: Finding, sides: _Sides, step: _Step
) -> Verdict:
    says, level = UNDECIDED, step.level
    if step.is_decided:
        says = REFUTED if sides.is_refuting else SUPPORTED
    if step.is_below_margin:
        says = BELOW_MARGIN
    if says in (REFUTED, BELOW_MARGIN):  # any of the criteria could have done it
        level = 1 - (1 - level) / sum(criterion.decides for criterion in criteria)
    measured = {criterion.name: finding.measured[criterion.name].estimate for criterion in criteria}
    intervals = {name: estimate.interval(level) for name, estimate in measured.items()}
    shown = {}
    for criterion in criteria:
        holds = says == SUPPORTED
        if not criterion.decides:
            holds = p_supports(measured[criterion.name], criterion) < (1 - level) / 2
        if not holds:
            shown[criterion.name] = detectable(measured[criterion.name], criterion, level)
    return Verdict(says, sides.p, step.adjusted, level, intervals, shown)


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
    preconditions: tuple[CheckedPrecondition, ...] = ()
    """What was measured of the claim's preconditions; empty where nothing was."""
    not_about: str = ""
    """Of which models it was said, where these are others."""

    @property
    def says(self) -> str:
        if self.verdict is not None:
            return self.verdict.says
        return NOT_ABOUT if self.not_about else NOT_TESTABLE

    @property
    def binding_criterion(self) -> Criterion | None:
        """The criterion that binds: the furthest outside if refuted, else the least inside."""
        if self.finding is None:
            return None

        estimates = {name: measured.estimate for name, measured in self.finding.measured.items()}
        if self.says in (REFUTED, BELOW_MARGIN):
            return min(self.claim.deciding, key=lambda c: p_refutes(estimates[c.name], c))
        return max(self.claim.deciding, key=lambda c: p_supports(estimates[c.name], c))

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
            "decides": criterion.decides,
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
            "units_needed": self._units_needed(criterion),
            "units_refuting": self._units_refuting(criterion),
            "why": measured.estimate.why,
        }

    def _units_needed(self, criterion: Criterion) -> int | None:
        """How many units decide for a criterion that is open, where all of them are alike."""
        assert self.finding is not None
        assert self.verdict is not None
        if criterion.name not in self.verdict.detectable or criterion.direction == EQUAL:
            return None
        side = 1.0 if criterion.direction == GREATER else -1.0
        estimate = self.finding.measured[criterion.name].estimate
        return estimate.units_needed(criterion.margin, side, (1 - self.verdict.level) / 2)

    def _units_refuting(self, criterion: Criterion) -> int | None:
        """How many units refute a claim that is undecided, where all are alike and outside."""
        assert self.finding is not None
        assert self.verdict is not None
        if self.verdict.says != UNDECIDED or not criterion.decides:
            return None
        tail = (1 - self.verdict.level) / 2 / len(self.claim.deciding)  # any of them may refute
        estimate, (low, high) = self.finding.measured[criterion.name].estimate, criterion.region
        needed = (estimate.units_needed(low, -1.0, tail), estimate.units_needed(high, 1.0, tail))
        return needed[0] or needed[1]

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
            "origin": claim.origin,
            "scope": list(claim.scope),
            "not_about": self.not_about,
            "contradiction": claim.contradiction,
            "preconditions": [checked.as_dict() for checked in self.preconditions],
            "changes": [asdict(change) for change in claim.changes],
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
    claims: Sequence[Claim],
    evidence: Evidence,
    lacking: Mapping[str, str],
    not_testable: Mapping[str, tuple[CheckedPrecondition, ...]] | None = None,
) -> tuple[JudgedClaim, ...]:
    """Measure all claims that can be, and judge those of each study together.

    `not_testable` has claims with a precondition that is known to fail, whose other evidence need
    not be there.
    """
    # 1. claims that are about these models, and whose preconditions hold
    others = {claim.id: reason for claim in claims if (reason := claim.not_about(evidence.models))}
    findings: dict[str, Finding] = {}
    checked: dict[str, tuple[CheckedPrecondition, ...]] = dict(not_testable or {})
    lost = {name: reason for name, reason in lacking.items() if name not in others}
    for claim in claims:
        if claim.id in lost or claim.id in others:
            continue
        try:
            if claim.id not in checked:
                checked[claim.id] = tuple(item.check(evidence) for item in claim.preconditions)
            if failed := [str(item) for item in checked[claim.id] if not item.holds]:
                lost[claim.id] = "; ".join(failed)
            else:
                findings[claim.id] = _measure_claim(claim, evidence)
        except AnchorwatchError as error:  # what is at hand cannot be measured so: it is said
            lost[claim.id] = str(error)
    # 2. the claims of a paper share an error rate
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
            checked.get(claim.id, ()),
            others.get(claim.id, ""),
        )
        for claim in claims
    )


def _measure_claim(claim: Claim, evidence: Evidence) -> Finding:
    """What a claim measured; one that measured nothing lacks it, which is not to be undecided."""
    finding = claim.find(evidence)
    estimates = [finding.measured[criterion.name].estimate for criterion in claim.deciding]
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


def __getattr__(name: str) -> Any:
    if name == "LACKING":
        warnings.warn("LACKING is now NOT_TESTABLE", DeprecationWarning, stacklevel=2)
        return NOT_TESTABLE
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
