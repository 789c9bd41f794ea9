"""Constants, evidence and drawings that claims share: sink token paper (arXiv 2601.19657).

Claims about training are over training seeds: arms of a seed share data, noise and first values.
What a claim takes for granted (that a sink token is a sink, that plain models have sinks to
replace) is a precondition: where it is not so, there is nothing to measure.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.studies.claim import Draw, Finding, Measured, Precondition
from anchorwatch.studies.estimate import SEED, Estimate
from anchorwatch.studies.evidence import Answers, Evidence, Experiment, Seeds, SeedsByPosition
from anchorwatch.studies.measure import (
    ARM_TEXT,
    MDM_TEXT,
    NORM_RUNS,
    by_item,
    by_prompt,
    by_seed,
    mean_of,
    medians_over_layers,
)
from anchorwatch.studies.preconditions import (
    MOST_HEADS,
    SINK_TOKEN_TIMES_EVEN,
    trained_sink_is_used,
)
from anchorwatch.studies.verdict import ALPHA
from anchorwatch.training.variants import EDGES

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
INCIDENCE, SWITCHES, PREFERENCE = (
    "text.incidence.rulli",
    "text.switch_all",
    "noisy.t.0.05.mask_preference_visible",
)
REPLACED_SINKS = Seeds((INCIDENCE, SWITCHES, PREFERENCE, "text.incidence.gu"))
"""Sinks among the tokens (a column sum of 3 above the others' mean), moves of the greatest of all
keys, and attention on masks among what goes to tokens."""
PLAIN_SINKS = Seeds((INCIDENCE,), ("vanilla",))
LAYER_MASS = "noisy.layer.sink_mass."
LAYERED = Seeds((*(f"{LAYER_MASS}{layer}" for layer in range(3)), *EVEN), ("sink",))
"""Attention on the sink token by layer; a table may have more layers."""
DRAINED_VALUES = Seeds(tuple(f"noisy.t.{t}.sink_value_ratio" for t in MASK_RATIOS), ("sink",))
MIXING = Experiment("mdm", "mixing", passes=7, options=(("k", 5),))
"""States of a plain model as it is, with its sinks hidden, and with other keys hidden."""
MANY_STEPS = Answers(("mdm", "sink"), ("gold",))
FEW_STEPS = Answers(("mdm", "sink"), ("gold",), steps=1)
"""The same questions, two commits a step and all at once."""
LENGTHS = Seeds(tuple(f"length.{name}" for name in ("quarter", "longest", "trained", "half")))
"""Beside each the table has its number of tokens, `length.quarter.length`."""
FEW_MASKS = Seeds((*TIME_BINS, *MASK_SHARES.values()))
TWENTIETH = math.log(1.05)
"""A twentieth more, as a difference of logarithms."""
LEAST_DIFFERENCE = 0.005
IMPROVED = Seeds((BOUND, "answers.gold"))
END_POSITION = Seeds((BOUND,), ("vanilla", "sink", "sink-end"))
GATES = Seeds((BOUND,), ("vanilla", "sink", "gate-plain", "gate", "gate-headwise"))
TOKEN_COUNTS = Seeds((BOUND,), ("vanilla", "sink", "sink-2", "sink-4"))
CONTENTS = Seeds((BOUND,), ("vanilla", "sink", "sink-zero", "off-by-one", "sink-logit"))
REGISTERS = Seeds((BOUND,), ("vanilla", "sink", "register"))
LARGER = "-large"
"""Ends the name of an arm of a larger network in a table that has two sizes."""
_CONVERTED = ("vanilla", "sink", "gate-plain")
CONVERTED = Seeds((BOUND,), (*_CONVERTED, *(f"{arm}{LARGER}" for arm in _CONVERTED)))
FIRST, MIDDLE, LATER = (f"bound.from.{first}" for first in EDGES)
"""The bound of the tokens from each edge to the next."""
BY_POSITION = SeedsByPosition(
    (BOUND, *(f"{name}{end}" for name in (FIRST, MIDDLE, LATER) for end in ("", ".part")))
)
CROPPED = SeedsByPosition(BY_POSITION.columns, rows="cropped")
PAPER_LENGTH = 2048
"""Tokens of a row in the paper's trainings."""
ALIKE_SHARE = 0.2
"""Of the effect of a sink token: what two kinds of it may differ by and still be called alike."""


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


TRAINED_TOKEN_IS_USED = trained_sink_is_used(SINK_ATTENTION, MASS, EVEN)
PLAIN_RUNS_HAVE_SINKS = Precondition(
    "plain training runs that have sinks",
    "the share of heads and steps of the arm vanilla in which a token is a sink (3 above the "
    "others' mean, as a column sum)",
    MOST_HEADS,
    "a sink token can take the place of sinks only where there are some",
    lambda evidence: mean_of(by_seed(evidence, PLAIN_SINKS, INCIDENCE)["vanilla"]),
    (PLAIN_SINKS,),
)


def _small_values(evidence: Evidence) -> float:
    ratio = by_prompt(evidence, NORM_RUNS, "value_norms", "ratio", over="layer")
    return 1 - mean_of(medians_over_layers(ratio.value))


SINKS_ARE_SMALL = Precondition(
    "sinks whose values are small",
    "how much smaller the values of sinks are than those of the other keys, as a share of them,",
    0.2,
    "a sink protects by bringing next to nothing: small values are what it protects with "
    "(sink_token/H1)",
    _small_values,
    (NORM_RUNS,),
)


def plain_fall(evidence: Evidence) -> float:
    """Share of the questions that the plain model loses with one step instead of many."""
    return mean_of(fall_of(evidence, "mdm"))


def fall_of(evidence: Evidence, role: str) -> np.ndarray:
    """[item] right with many steps less right with one."""
    many, few = (
        by_item(evidence, spec, [(role, "gold", "none")])[:, 0] for spec in (MANY_STEPS, FEW_STEPS)
    )
    return many - few


def answer_logprobs(evidence: Evidence) -> tuple[pd.DataFrame, pd.DataFrame]:
    """[item, context] log-probability per token of answers: with the sink token, and without."""
    table: pd.DataFrame = evidence[IN_CONTEXT]
    wide = table.pivot(index="unit", columns="context", values=["worn", "hidden"]).sort_index()
    return wide["worn"], wide["hidden"]


def _what_passages_bring(evidence: Evidence) -> float:
    worn, _ = answer_logprobs(evidence)
    return mean_of(worn["gold"] - worn["closed"])


PASSAGES_ARE_READ = Precondition(
    "a model that learns from its prompt",
    "what a passage brings to the answer that it tells, in nats per token,",
    LEAST_GAIN,
    "a model that reads nothing has no in-context learning to affect",
    _what_passages_bring,
    (IN_CONTEXT,),
)
ANSWERS_CAN_CHANGE = Precondition(
    "answers that are not certain",
    "minus the log-probability per token of answers with their passage",
    0.3,
    "an answer that is all but certain can be harmed unseen",
    lambda evidence: -mean_of(answer_logprobs(evidence)[0]["gold"]),
    (IN_CONTEXT,),
)
TOKEN_IS_USED = Precondition(
    "a sink token that is looked at",
    "attention on the sink token, in times of an even share,",
    SINK_TOKEN_TIMES_EVEN,
    "2510.15731's rule for a sink asks for four times",
    lambda evidence: attention_on_sink_token(evidence)[_LOOKED_AT],
    (OPENNESS["sink"],),
)
_LOOKED_AT = "attention on the sink token over an even share"


def mass_by_layer(evidence: Evidence) -> np.ndarray:
    """[seed, layer] attention on the sink token over an even share."""
    table: pd.DataFrame = evidence[LAYERED]
    rows = table[table["arm"] == "sink"].sort_values("seed")
    names = [name for name in rows.columns if name.startswith(LAYER_MASS)]
    names.sort(key=lambda name: int(name.removeprefix(LAYER_MASS)))
    even = rows[list(EVEN)].to_numpy(dtype=float).mean(axis=1, keepdims=True)
    mass = rows[names].to_numpy(dtype=float)
    return mass[:, ~np.isnan(mass).all(axis=0)] / even


def gain_by_position(evidence: Evidence, spec: SeedsByPosition) -> pd.DataFrame:
    """[seed, column] vanilla less sink token: above 0 is a gain."""
    each = {name: by_seed(evidence, spec, name) for name in spec.columns}
    return pd.DataFrame({name: wide["vanilla"] - wide["sink"] for name, wide in each.items()})


def shares_of_gain(gains: pd.DataFrame) -> dict[str, float | str]:
    """Shares of the mean gain by position, and nats per token there."""
    whole = mean_of(gains[BOUND])
    says = {FIRST: "positions 0 to 3", MIDDLE: "positions 4 to 15", LATER: "positions from 16 on"}
    shares: dict[str, float | str] = {"gain, nats per token": whole}
    for name, words in says.items():
        shares[f"share of the gain, {words}"] = mean_of(gains[f"{name}.part"]) / whole
        shares[f"gain per token, {words}"] = mean_of(gains[name])
    return shares


def gain_per_row(evidence: Evidence) -> dict[str, np.ndarray]:
    """[seed] nats that a sink token saves in a whole row, by the length that texts are cut to."""
    lengths = row_lengths(evidence)
    return {
        name: length * arm_difference(evidence, LENGTHS, f"length.{name}", "vanilla", "sink")
        for name, length in lengths.items()
    }


def row_lengths(evidence: Evidence) -> dict[str, float]:
    """Tokens of a row, shortest first."""
    table: pd.DataFrame = evidence[LENGTHS]
    names = ("quarter", "half", "trained", "longest")
    return {name: float(table[f"length.{name}.length"].iloc[0]) for name in names}


def _seeds_by_position(evidence: Evidence) -> float:
    return float(min(len(gain_by_position(evidence, spec)) for spec in (BY_POSITION, CROPPED)))


ENOUGH_SEEDS = Precondition(
    "training seeds enough for an interval",
    "the number of seeds of the table by position",
    3.0,
    "two differences have no interval",
    _seeds_by_position,
    (BY_POSITION, CROPPED),
)


def draw_differences(spec: Seeds) -> Draw:
    """Draws every arm of a need less vanilla, seed by seed, a panel for each column."""

    def draw(evidence: Evidence) -> Figure | None:
        from anchorwatch.training.plots import variant_differences

        return variant_differences(evidence[spec], spec.columns)

    return draw


def draw_value_norms(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import value_norm_scatter

    traces = evidence[NORM_RUNS].traces
    make = partial(metrics.value_norm_points, list(traces), count=2000)
    return value_norm_scatter(evidence.once(("value norm points", NORM_RUNS), make))


def draw_sink_paths(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[spec].traces[0] for spec in (MDM_TEXT, ARM_TEXT) if evidence[spec].traces]
    table = evidence.once(
        ("first paths", MDM_TEXT, ARM_TEXT), partial(metrics.sink_positions, first)
    )
    return sink_positions(table)


def attention_on_sink_token(evidence: Evidence) -> dict[str, float]:
    """How far the sink token is looked at, over what one key would get of even attention."""
    each = openness_by_unit(evidence[OPENNESS["sink"]]).values()
    over = [(1 - openness.mean()) * (openness.shape[1] + 1) for openness in each]
    return {_LOOKED_AT: mean_of(over)}


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
