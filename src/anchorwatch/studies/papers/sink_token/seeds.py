"""What claims over training seeds share: differences of arms, and what must be shown beforehand.

A claim may take something for granted: that a sink token gains, or that it is a sink. Where the
seeds do not show it, there is nothing to judge and the claim says what it lacks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.studies.claim import Draw, Evidence
from anchorwatch.studies.estimates import SEED, Estimate
from anchorwatch.studies.evidence import by_seed, mean_of
from anchorwatch.studies.needs import Seeds
from anchorwatch.studies.verdicts import ALPHA

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

BOUND = "bound.all"
TIMES = ("0.05", "0.2", "0.5", "0.8", "0.95")
MASS, EVEN = (tuple(f"noisy.t.{t}.sink_mass{end}" for t in TIMES) for end in ("", "_null"))
LOOKED_AT = Seeds((*MASS, *EVEN), ("sink",))
"""Attention on added keys at each share of masks, and what even attention would give them."""


def gap(evidence: Evidence, need: Seeds, column: str, one: str, other: str) -> np.ndarray:
    """[seed] of one arm less another."""
    wide = by_seed(evidence, need, column)
    return (wide[one] - wide[other]).to_numpy()


def require_shown(values: np.ndarray, lacking: str, here: str) -> None:
    """Refuse a claim that takes for granted a mean above 0 which these seeds do not show."""
    held = Estimate.mean(values, SEED)
    if held.p_above(0.0) < ALPHA / 2:
        return
    low, high = held.interval(1 - ALPHA)
    within = held.why or f"{1 - ALPHA:.0%} interval {low:.3g} to {high:.3g}, {held.n} {SEED}s"
    raise EvidenceError(f"{lacking}: {here} {held.value:.3g} ({within})")


def looked_at(table: pd.DataFrame, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """[seed] attention on an arm's added keys and an even share of it, over shares of masks."""
    rows = table[table["arm"] == arm].sort_values("seed")
    mass, even = (rows[list(names)].to_numpy(dtype=float).mean(axis=1) for names in (MASS, EVEN))
    return mass, even


def acts_as_a_sink(evidence: Evidence) -> dict[str, float | str]:
    """Refuse a claim about sinks of a token that is none: it gets more than an even share."""
    mass, even = looked_at(evidence[LOOKED_AT], "sink")
    require_shown(
        mass - even,
        "training runs whose sink token gets more attention than an even share, beyond chance",
        f"here it gets {mean_of(mass):.3g} where {mean_of(even):.3g} is even, more by",
    )
    return beside(evidence, LOOKED_AT)


def beside(evidence: Evidence, need: Seeds) -> dict[str, float | str]:
    """How far what was added is looked at, arm by arm, of a table that says so."""
    table: pd.DataFrame = evidence[need]
    if not set(LOOKED_AT.columns) <= set(table.columns):
        return {}
    found: dict[str, float | str] = {}
    for arm in need.arms:
        mass, even = looked_at(table, arm)
        if math.isfinite(mean_of(mass)):
            name = f"attention on what is added over an even share, {arm}"
            found[name] = mean_of(mass) / mean_of(even)
    return found


def draw_differences(need: Seeds) -> Draw:
    """Draws every arm of a need less vanilla, seed by seed, a panel for each column."""

    def draw(evidence: Evidence) -> Figure | None:
        from anchorwatch.training.plots import variant_differences

        return variant_differences(evidence[need], need.columns)

    return draw
