"""What a study will run, stated before it runs: forward passes, minutes, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anchorwatch.studies.claim import Claim
from anchorwatch.studies.evidence import EvidenceSpec, EvidenceStore


class Costs(Protocol):
    """What a pass of a model costs."""

    @property
    def watched(self) -> float: ...
    @property
    def plain(self) -> float: ...
    @property
    def bytes(self) -> float: ...


@dataclass(frozen=True)
class Piece:
    """What one need asks of one model."""

    need: EvidenceSpec
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

    def as_dict(self) -> dict[str, Any]:
        """What it is, whatever of it is there."""
        return {
            "need": str(self.need),
            "digest": self.need.digest,
            "role": self.role,
            "units": self.units,
            "claims": list(self.claims),
        }


@dataclass(frozen=True)
class Plan:
    """All pieces, and the claims that cannot be run, with what they lack."""

    pieces: tuple[Piece, ...]
    lacking: Mapping[str, str]
    runs: tuple[str, ...]
    """Claims that can be run."""

    @property
    def passes(self) -> int:
        return sum(one.passes for one in self.pieces)

    @property
    def minutes(self) -> float:
        return sum(one.seconds for one in self.pieces) / 60

    @property
    def bytes(self) -> float:
        return sum(one.bytes for one in self.pieces)

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "passes": self.passes,
            "minutes": self.minutes,
            "bytes": self.bytes,
            "claims": list(self.runs),
            "lacking": dict(self.lacking),
            "pieces": [
                one.as_dict()
                | {"left": one.left, "passes": one.passes}
                | {"seconds": one.seconds, "bytes": one.bytes}
                for one in self.pieces
            ],
        }

    def whole(self) -> dict[str, Any]:
        """What the study takes from nothing, whatever of it was there: the same at every rerun."""
        return {
            "passes": sum(one.whole for one in self.pieces),
            "claims": list(self.runs),
            "lacking": dict(self.lacking),
            "pieces": [one.as_dict() | {"passes": one.whole} for one in self.pieces],
        }

    def __str__(self) -> str:
        """A line for each piece, and the sum."""
        lines = [
            f"{one.passes:>9} passes {one.seconds / 60:>7.1f} min {one.bytes / 1e6:>8.1f} MB  "
            f"{one.need} ({one.role}), for {_claims(len(one.claims))}"
            for one in self.pieces
        ]
        total = f"{self.passes:>9} passes {self.minutes:>7.1f} min {self.bytes / 1e6:>8.1f} MB"
        short = len(self.lacking)
        claims = f"{_claims(len(self.runs))} to run, {short} lack{'s' * (short == 1)} something"
        return "\n".join([*lines, f"{total}  in all: {claims}"])


def _claims(count: int) -> str:
    return f"{count} claim{'s' * (count != 1)}"


def plan_study(claims: Sequence[Claim], shelf: EvidenceStore, rates: Mapping[str, Costs]) -> Plan:
    """Every need of these claims once, and what is left to make of it."""
    lacking = {claim.id: said for claim in claims if (said := lacks(claim, shelf))}
    able = [claim for claim in claims if claim.id not in lacking]
    users: dict[EvidenceSpec, list[str]] = {}
    for claim in able:
        for need in claim.needs:
            users.setdefault(need, []).append(claim.id)
    pieces = [
        _piece(need, role, shelf, rates[role], tuple(ids))
        for need, ids in users.items()
        for role in need.roles
        if need.units(shelf.budget) and need.kind != "cards"
    ]
    return Plan(tuple(pieces), lacking, tuple(claim.id for claim in able))


def lacks(claim: Claim, shelf: EvidenceStore) -> str:
    """What keeps a claim from being run; empty where nothing does."""
    if not claim.written:
        return claim.lacks
    found = [need.lacks(shelf.hand) for need in claim.needs]
    return "; ".join(dict.fromkeys(said for said in found if said))


def _piece(
    need: EvidenceSpec, role: str, shelf: EvidenceStore, costs: Costs, claims: tuple[str, ...]
) -> Piece:
    units, left = need.units(shelf.budget), len(shelf.left(need, role))
    cost = need.cost(shelf.budget, shelf.hand.models[role].kind)
    share = left / units
    watched, plain = cost.watched * share, cost.plain * share
    seconds = watched * costs.watched + plain * costs.plain
    size = watched * costs.bytes
    passes, whole = round(watched + plain), cost.watched + cost.plain
    return Piece(need, role, units, left, passes, whole, seconds, size, claims)
