"""A study that was run: every claim with its verdict or with what it lacks; as files too.

No torch here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from anchorwatch import __version__
from anchorwatch.errors import AnchorwatchError, EvidenceError, SpecError
from anchorwatch.metrics.table_files import as_csv
from anchorwatch.studies.claim import Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.evidence import unfit_of
from anchorwatch.studies.planning import Plan
from anchorwatch.studies.verdicts import (
    ALPHA,
    LACKING,
    REFUTED,
    VERDICTS,
    Verdict,
    inside,
    outside,
    verdicts,
)
from anchorwatch.trace.atomic_io import replace_file

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

VERSION = 2
"""Of claims.json."""
DECIDING = (
    *("claims", "models", "weights", "settings", "tokenizers", "devices", "variants"),
    *("budget", "versions"),
)
"""What of a manifest decides the numbers; claims do, as those of a paper share an error rate."""


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
    def binding(self) -> Criterion | None:
        """The criterion that decides: the furthest outside if refuted, else the least inside."""
        if self.finding is None:
            return None

        def measured(one: Criterion) -> Measured:
            assert self.finding is not None
            return self.finding.measured[one.name]

        if self.says == REFUTED:
            return min(self.claim.criteria, key=lambda one: outside(measured(one).estimate, one))
        return max(self.claim.criteria, key=lambda one: inside(measured(one).estimate, one))

    def criterion_row(self, one: Criterion) -> dict[str, Any]:
        """What a criterion said and what was found."""
        assert self.finding is not None
        assert self.verdict is not None
        found = self.finding.measured[one.name]
        low, high = self.verdict.intervals[one.name]
        shown = self.verdict.detectable.get(one.name, math.nan)
        return {
            "criterion": one.name,
            "statistic": one.statistic,
            "direction": one.direction,
            "margin": one.margin,
            "about": one.about,
            "reason": one.reason,
            "null_is": one.null,
            "control_is": one.control,
            "n": found.estimate.n,
            "missing": found.estimate.missing,
            "effect": found.estimate.value,
            "low": low,
            "high": high,
            "level": self.verdict.level,
            "null": found.null,
            "control": found.control,
            "detectable": math.nan if math.isinf(shown) else shown,
            "out_of_reach": math.isinf(shown),
            "why": found.estimate.why,
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it, as claims.json has it; an absent number is null."""
        claim = self.claim
        held: dict[str, Any] = {
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
            "needs": [str(need) for need in claim.needs],
        }
        if self.verdict is not None and self.finding is not None:
            binding = self.binding
            assert binding is not None
            held |= {"p": self.verdict.p, "p_holm": self.verdict.p_holm}
            held |= {"binding": binding.name, "also": dict(self.finding.also)}
            held["unfit"] = list(self.unfit)
            held["criteria"] = [self.criterion_row(one) for one in claim.criteria]
        return _absent(held)


def judge_claims(
    claims: Sequence[Claim], evidence: Evidence, lacking: Mapping[str, str]
) -> tuple[JudgedClaim, ...]:
    """Measure all claims that can be, and judge those of each study together."""
    found: dict[str, Finding] = {}
    lost = dict(lacking)
    for claim in claims:
        if claim.id not in lost:
            try:
                found[claim.id] = _measure_claim(claim, evidence)
            except AnchorwatchError as error:  # what is at hand cannot be measured so: it is said
                lost[claim.id] = str(error)
    said: dict[str, Verdict] = {}
    for study in dict.fromkeys(claim.study for claim in claims):
        mine = [claim for claim in claims if claim.study == study and claim.id in found]
        each = verdicts([(claim.criteria, found[claim.id]) for claim in mine])
        said |= {claim.id: one for claim, one in zip(mine, each, strict=True)}
    return tuple(
        JudgedClaim(
            claim,
            found.get(claim.id),
            said.get(claim.id),
            lost.get(claim.id, ""),
            _unfit(claim, evidence) if claim.id in found else (),
        )
        for claim in claims
    )


def _measure_claim(claim: Claim, evidence: Evidence) -> Finding:
    """What a claim measured; one that measured nothing lacks it, which is not to be undecided."""
    found = claim.find(evidence)
    estimates = [one.estimate for one in found.measured.values()]
    if any(one.n for one in estimates):
        return found
    lost = "; ".join(_unfit(claim, evidence))
    why = f"did not fit: {lost}" if lost else "all could be run, and it never came up in them"
    count = max(one.missing for one in estimates)
    raise EvidenceError(
        f"{claim.unit}s with a value of every statistic: none of {count} has one ({why})"
    )


def _unfit(claim: Claim, evidence: Evidence) -> tuple[str, ...]:
    """A clause for each need that lost units: how many, of what, and why the first one."""
    lost = {need: unfit_of(evidence[need]) for need in claim.needs}
    return tuple(
        f"{len(whys)} of the units of {need} ({next(iter(whys.values()))})"
        for need, whys in lost.items()
        if whys
    )


COLUMNS = (
    *("id", "verdict", "sentence", "criterion", "statistic", "unit", "n", "missing"),
    *("effect", "low", "high", "level", "direction", "margin", "null", "control"),
    *("p", "p_holm", "detectable", "why", "lacking", "reported", "source", "defect", "caveat"),
)


@dataclass(frozen=True, eq=False, repr=False)
class Study:
    """What a study found. `study.claims` is the table, `study.findings` all of it."""

    findings: tuple[JudgedClaim, ...]
    about: Mapping[str, Any]
    """The manifest: models, budget, versions, plan."""
    plan: Plan
    evidence: Evidence = field(repr=False)

    @property
    def claims(self) -> pd.DataFrame:
        """A row for each claim, with the criterion that binds."""
        rows = []
        for one in self.findings:
            held = one.as_dict() | {"criterion": ""}
            if (binding := one.binding) is not None:
                held |= one.criterion_row(binding)
            rows.append({name: held.get(name, math.nan) for name in COLUMNS})
        whole = {"n": "Int64", "missing": "Int64"}
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(whole)

    def __getitem__(self, name: str) -> JudgedClaim:
        """One claim, by its id."""
        for one in self.findings:
            if one.claim.id == name:
                return one
        raise SpecError(f"this study has no claim {name!r}: it has {self.findings[0].claim.id} ...")

    def counts(self) -> dict[str, int]:
        """How many claims came to each verdict."""
        said = [one.says for one in self.findings]
        return {verdict: said.count(verdict) for verdict in VERDICTS}

    def draw(self, name: str) -> Figure | None:
        """The figure of a claim that was run, where it has one."""
        one = self[name]
        if one.verdict is None or one.claim.draw is None:
            return None
        return one.claim.draw(self.evidence)

    @property
    def digest(self) -> str:
        """Short, of what decides the numbers: two studies that share it found the same."""
        held = _absent({name: self.about.get(name) for name in DECIDING})
        spelled = json.dumps(held, sort_keys=True)
        return hashlib.sha256(spelled.encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """What claims.json holds."""
        return {
            "anchorwatch": __version__,
            "version": VERSION,
            "digest": self.digest,
            "alpha": ALPHA,
            "about": _absent(dict(self.about)),
            "counts": self.counts(),
            "claims": [one.as_dict() for one in self.findings],
        }

    def save(self, out: str | Path) -> Path:
        """Write claims.json, claims.csv, report.md, report.html and figures/ into a folder."""
        from anchorwatch.studies.pages import page
        from anchorwatch.studies.report.writing import write

        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / "claims.json", (json.dumps(self.as_dict(), indent=1) + "\n").encode())
        replace_file(folder / "claims.csv", as_csv(self.claims).encode())
        replace_file(folder / "report.md", page(self).encode())
        write(self, folder)
        return folder

    def __repr__(self) -> str:
        said = ", ".join(f"{count} {name}" for name, count in self.counts().items() if count)
        return f"Study({said})"


def _absent(value: Any) -> Any:
    """NaN and the infinite as null, all through."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): _absent(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_absent(one) for one in value]
    return value.item() if hasattr(value, "item") else value
