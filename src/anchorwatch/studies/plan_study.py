"""What a study will run, stated before it runs: forward passes, minutes, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from anchorwatch.studies.claim import Claim
from anchorwatch.studies.evidence import Effect, EvidenceSpec, EvidenceStore, Runs


@dataclass(frozen=True)
class Rates:
    """What a forward pass of a model costs on this machine."""

    watched: float
    """Seconds of one with probes."""
    plain: float
    """Seconds of one without."""
    bytes: float
    """Kept of one with probes."""


@dataclass(frozen=True)
class PlanPiece:
    """What one need asks of one model."""

    spec: EvidenceSpec
    role: str
    units: int
    left: int
    """Units that are not there yet."""
    passes: int
    """Forward passes of those."""
    whole: int
    """Forward passes of all units."""
    seconds: float
    bytes: float
    claims: tuple[str, ...]
    words: str
    """What it is, with the decoding that is run: a protocol wins over the spec's."""

    def as_dict(self) -> dict[str, Any]:
        """What it is, whatever of it is there."""
        return {
            "need": self.words,
            "digest": self.spec.digest,
            "role": self.role,
            "units": self.units,
            "claims": list(self.claims),
        }


@dataclass(frozen=True)
class Plan:
    """All pieces, and the claims that cannot be run, with what they lack."""

    pieces: tuple[PlanPiece, ...]
    lacking: Mapping[str, str]
    runs: tuple[str, ...]
    """Claims that can be run."""
    not_about: Mapping[str, str] = field(default_factory=dict)
    """Claims that were said of other models, and of which; nothing is run for them."""
    settings: str = ""
    """How watched runs write, in words, and the protocol."""

    @property
    def passes(self) -> int:
        return sum(piece.passes for piece in self.pieces)

    @property
    def minutes(self) -> float:
        return sum(piece.seconds for piece in self.pieces) / 60

    @property
    def bytes(self) -> float:
        return sum(piece.bytes for piece in self.pieces)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passes": self.passes,
            "minutes": self.minutes,
            "bytes": self.bytes,
            "settings": self.settings,
            "claims": list(self.runs),
            "lacking": dict(self.lacking),
            "not_about": dict(self.not_about),
            "pieces": [
                piece.as_dict()
                | {"left": piece.left, "passes": piece.passes}
                | {"seconds": piece.seconds, "bytes": piece.bytes}
                for piece in self.pieces
            ],
        }

    def total_cost(self) -> dict[str, Any]:
        """What the study takes from nothing, whatever of it was there: the same at every rerun."""
        return {
            "passes": sum(piece.whole for piece in self.pieces),
            "claims": list(self.runs),
            "lacking": dict(self.lacking),
            "not_about": dict(self.not_about),
            "pieces": [piece.as_dict() | {"passes": piece.whole} for piece in self.pieces],
        }

    def __str__(self) -> str:
        """How runs write, a line for each piece and for what each claim lacks, and the sum."""
        lines = [
            f"{piece.passes:>9} passes {piece.seconds / 60:>7.1f} min "
            f"{piece.bytes / 1e6:>8.1f} MB  {piece.words} ({piece.role}), "
            f"for {_claims(len(piece.claims))}"
            for piece in self.pieces
        ]
        total = f"{self.passes:>9} passes {self.minutes:>7.1f} min {self.bytes / 1e6:>8.1f} MB"
        short = len(self.lacking)
        claims = f"{_claims(len(self.runs))} to run, {short} lack{'s' * (short == 1)} something"
        if self.not_about:
            claims += f", {len(self.not_about)} not about this model"
        first = [self.settings] if self.settings else []
        lost = [f"{name} lacks {reason}" for name, reason in self.lacking.items()]
        return "\n".join([*first, *lines, *lost, f"{total}  in all: {claims}"])


def _claims(count: int) -> str:
    return f"{count} claim{'s' * (count != 1)}"


def plan_study(claims: Sequence[Claim], store: EvidenceStore, rates: Mapping[str, Rates]) -> Plan:
    """Every need of these claims once, and what is left to make of it."""
    models = store.available.models
    not_about = {claim.id: reason for claim in claims if (reason := claim.not_about(models))}
    within = [claim for claim in claims if claim.id not in not_about]
    lacking = {claim.id: reason for claim in within if (reason := lacks(claim, store))}
    able = [claim for claim in within if claim.id not in lacking]
    users: dict[EvidenceSpec, list[str]] = {}
    for claim in able:
        for spec in claim.needs:
            users.setdefault(spec, []).append(claim.id)
    pieces = [
        _piece(spec, role, store, rates[role], tuple(ids))
        for spec, ids in users.items()
        for role in spec.roles
        if spec.units(store.budget) and spec.kind != "cards"
    ]
    runs = tuple(claim.id for claim in able)
    return Plan(tuple(pieces), lacking, runs, not_about, store.budget.describe())


def lacks(claim: Claim, store: EvidenceStore) -> str:
    """What keeps a claim from being run; empty where nothing does."""
    if not claim.is_testable:
        return claim.lacks
    reasons = [spec.lacks(store.available) for spec in claim.needs]
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _piece(
    spec: EvidenceSpec, role: str, store: EvidenceStore, rates: Rates, claims: tuple[str, ...]
) -> PlanPiece:
    units, left = spec.units(store.budget), len(store.missing_units(spec, role))
    cost = spec.cost(store.budget, store.available.models[role].kind)
    share = left / units
    watched, plain = cost.watched * share, cost.plain * share
    seconds = watched * rates.watched + plain * rates.plain
    size = watched * rates.bytes
    passes, whole = round(watched + plain), cost.watched + cost.plain
    words = str(_as_run(spec, store, role))
    return PlanPiece(spec, role, units, left, passes, whole, seconds, size, claims, words)


def _as_run(spec: EvidenceSpec, store: EvidenceStore, role: str) -> EvidenceSpec:
    """The spec with the decoding that the protocol makes of its own."""
    if isinstance(spec, Runs | Effect) and spec.decoding is not None:
        kind = store.available.models[role].kind
        return replace(spec, decoding=spec.how(store.budget, kind))
    return spec
