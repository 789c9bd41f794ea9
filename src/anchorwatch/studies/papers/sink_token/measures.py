"""Constants, evidence and drawings that claims share: sink token paper (arXiv 2601.19657).

Claims about training are over training seeds: arms of a seed share data, noise and first values.
A claim may take something for granted: that a sink token gains, or that it is a sink. Where the
seeds do not show it, there is nothing to measure and the claim says what it lacks.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.studies.claim import Draw, Finding, Measured
from anchorwatch.studies.estimate import SEED, Estimate
from anchorwatch.studies.evidence import Evidence, Experiment, Seeds
from anchorwatch.studies.measure import (
    ARM_RUNS,
    MDM_RUNS,
    NORM_RUNS,
    by_seed,
    mean_of,
)
from anchorwatch.studies.verdict import ALPHA

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

BOUND = "bound.all"
MASK_RATIOS = ("0.05", "0.2", "0.5", "0.8", "0.95")
MASS, EVEN = (tuple(f"noisy.t.{t}.sink_mass{end}" for t in MASK_RATIOS) for end in ("", "_null"))
SINK_ATTENTION = Seeds((*MASS, *EVEN), ("sink",))
"""Attention on added keys at each share of masks, and what even attention would give them."""
CONSTANTS = Experiment("sink", "constants", passes=3)
OPERATIONS = Experiment("sink", "operations", passes=3)
KNOCK_OUTS = Experiment("sink", "knock_outs", passes=32, options=(("length", 8), ("steps", 4)))
OPENNESS = {role: Experiment(role, "openness", passes=1) for role in ("sink", "gate")}
IN_CONTEXT = Experiment("sink", "in_context", passes=4)
LEAST_GAIN = 0.5
"""Nats per token of an answer that a passage must bring for there to be something to lose."""
LEAST_LOSS = 0.1
"""Nats per token that count as harm."""
LEAST_COST = 0.01
"""Of the operations of a pass."""
TIME_BINS = {
    f"bound.t.{low / 5:.1f}-{(low + 1) / 5:.1f}.masked": (low + 0.5) / 5 for low in range(5)
}
"""Nats per masked token, and the middle of each range of t."""
MASK_SHARES = {t: f"noisy.t.{t}.mask_share_visible" for t in (MASK_RATIOS[0], MASK_RATIOS[-1])}
REPLACED_SINKS = Seeds(
    (
        "text.incidence.ratio",
        MASK_SHARES["0.05"],
        "text.switch_all",
        "noisy.t.0.05.mask_preference_visible",
    )
)
DRAINED_VALUES = Seeds(tuple(f"noisy.t.{t}.sink_value_ratio" for t in MASK_RATIOS), ("sink",))
MIXED_STATES = Seeds(
    (*(f"noisy.t.0.5.{n}" for n in ("spread", "effective_rank", "state_cosine")), BOUND)
)
LENGTHS = Seeds(tuple(f"length.{name}" for name in ("quarter", "longest", "trained", "half")))
FEW_MASKS = Seeds((*TIME_BINS, *MASK_SHARES.values()))
TWENTIETH = 0.05
LEAST_DIFFERENCE, _WHY = (
    0.005,
    "half a percent of perplexity; less is within what a recipe's details do",
)
IMPROVED = Seeds((BOUND, "answers.gold"))
END_POSITION = Seeds((BOUND,), ("vanilla", "sink", "sink-end"))
GATES = Seeds((BOUND,), ("vanilla", "sink", "gate-plain", "gate", "gate-headwise"))
TOKEN_COUNTS = Seeds((BOUND,), ("vanilla", "sink", "sink-2", "sink-4"))
CONTENTS = Seeds((BOUND,), ("vanilla", "sink", "sink-zero", "off-by-one", "sink-logit"))
REGISTERS = Seeds((BOUND,), ("vanilla", "sink", "register"))
CONVERTED = Seeds((BOUND,), ("vanilla", "sink", "gate-plain", "gate"))
ALIKE_SHARE = 0.2
"""Of the effect of a sink token: what two kinds of it may differ by and still be called alike."""
LEAST_DIFFERENCE = 0.005


def arm_difference(
    evidence: Evidence, spec: Seeds, column: str, arm: str, other: str
) -> np.ndarray:
    """[seed] of one arm less another."""
    wide = by_seed(evidence, spec, column)
    return (wide[arm] - wide[other]).to_numpy()


def require_positive(values: np.ndarray, lacking: str, here: str) -> None:
    """Refuse a claim that takes for granted a mean above 0 which these seeds do not show."""
    estimate = Estimate.mean(values, SEED)
    if estimate.p_above(0.0) < ALPHA / 2:
        return
    low, high = estimate.interval(1 - ALPHA)
    within = (
        estimate.why or f"{1 - ALPHA:.0%} interval {low:.3g} to {high:.3g}, {estimate.n} {SEED}s"
    )
    raise EvidenceError(f"{lacking}: {here} {estimate.value:.3g} ({within})")


def sink_attention(table: pd.DataFrame, arm: str) -> tuple[np.ndarray, np.ndarray]:
    """[seed] attention on an arm's added keys and an even share of it, over shares of masks."""
    rows = table[table["arm"] == arm].sort_values("seed")
    mass, even = (rows[list(names)].to_numpy(dtype=float).mean(axis=1) for names in (MASS, EVEN))
    return mass, even


def require_sink(evidence: Evidence) -> dict[str, float | str]:
    """Refuse a claim about sinks of a token that is none: it gets more than an even share."""
    mass, even = sink_attention(evidence[SINK_ATTENTION], "sink")
    require_positive(
        mass - even,
        "training runs whose sink token gets more attention than an even share, beyond chance",
        f"here it gets {mean_of(mass):.3g} where {mean_of(even):.3g} is even, more by",
    )
    return attention_ratios(evidence, SINK_ATTENTION)


def attention_ratios(evidence: Evidence, spec: Seeds) -> dict[str, float | str]:
    """How far what was added is looked at, arm by arm, of a table that says so."""
    table: pd.DataFrame = evidence[spec]
    if not set(SINK_ATTENTION.columns) <= set(table.columns):
        return {}
    ratios: dict[str, float | str] = {}
    for arm in spec.arms:
        mass, even = sink_attention(table, arm)
        if math.isfinite(mean_of(mass)):
            name = f"attention on what is added over an even share, {arm}"
            ratios[name] = mean_of(mass) / mean_of(even)
    return ratios


def draw_differences(spec: Seeds) -> Draw:
    """Draws every arm of a need less vanilla, seed by seed, a panel for each column."""

    def draw(evidence: Evidence) -> Figure | None:
        from anchorwatch.training.plots import variant_differences

        return variant_differences(evidence[spec], spec.columns)

    return draw


def medians_over_layers(rows: np.ndarray) -> np.ndarray:
    """[prompt] over the layers that have a value; NaN where none has."""
    values = np.full(len(rows), np.nan)
    present = ~np.isnan(rows).all(axis=1)
    values[present] = np.nanmedian(rows[present], axis=1)
    return values


def draw_value_norms(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import value_norm_scatter

    traces = evidence[NORM_RUNS].traces
    make = partial(metrics.value_norm_points, list(traces), count=2000)
    return value_norm_scatter(evidence.once(("value norm points", NORM_RUNS), make))


def draw_sink_paths(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[spec].traces[0] for spec in (MDM_RUNS, ARM_RUNS) if evidence[spec].traces]
    table = evidence.once(
        ("first paths", MDM_RUNS, ARM_RUNS), partial(metrics.sink_positions, first)
    )
    return sink_positions(table)


def attention_on_sink_token(evidence: Evidence) -> dict[str, float]:
    """How far the sink token is looked at, over what one key would get of even attention."""
    each = openness_by_unit(evidence[OPENNESS["sink"]]).values()
    over = [(1 - openness.mean()) * (openness.shape[1] + 1) for openness in each]
    return {"attention on the sink token over an even share": mean_of(over)}


def openness_by_unit(table: pd.DataFrame) -> dict[int, np.ndarray]:
    """[head of a layer, position] for each prompt."""
    ordered = table.sort_values(["unit", "layer", "head"])
    return {int(unit): np.array(list(rows["open"])) for unit, rows in ordered.groupby("unit")}


def openness_correlations(first: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Of all cells; what is left of it when positions are shuffled in each head; within heads."""
    a, b = first - first.mean(), other - other.mean()
    heads = [cells.mean(axis=1, keepdims=True) for cells in (a, b)]
    shared = float((heads[0] * heads[1]).mean())
    inside = a - heads[0], b - heads[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.sqrt((a * a).mean() * (b * b).mean())
        within = np.sqrt((inside[0] ** 2).mean() * (inside[1] ** 2).mean())
        return (
            float((a * b).mean() / size),
            float(shared / size),
            float((inside[0] * inside[1]).mean() / within),
        )


def seed_mean(values: np.ndarray, null: float = 0.0) -> Measured:
    return Measured(Estimate.mean(values, SEED), null)


def compare_with_sink(evidence: Evidence, spec: Seeds, arm: str, word: str) -> Finding:
    """Whether an arm is within a fifth of a sink token's gain of it, on either side.

    Of a gain below 0 a fifth is no distance: both sides would refute what is exactly alike.
    """
    gain = arm_difference(evidence, spec, BOUND, "vanilla", "sink")
    require_positive(
        gain,
        "a sink token that gains beyond chance, a fifth of which is the measure of being alike",
        "here its gain in nats per token is",
    )
    moved = arm_difference(evidence, spec, BOUND, arm, "sink")
    measured = {
        f"{word} not worse": seed_mean(moved - ALIKE_SHARE * gain),
        f"{word} not better": seed_mean(-moved - ALIKE_SHARE * gain),
    }
    means = {
        f"{other} less sink": mean_of(arm_difference(evidence, spec, BOUND, other, "sink"))
        for other in spec.arms[2:]
    }
    means["gain of a sink"] = mean_of(gain)
    return Finding(measured, means | attention_ratios(evidence, spec))
