"""Constants, evidence and drawings that claims share: attention sinks paper (arXiv 2510.15731)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.edits.spec import hide_random, hide_sinks
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.metrics.movement import frontier_hits
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.sink_strength import RULES
from anchorwatch.metrics.table import CHANCE, Parts, Quantity, layer_quantities, prompt_id
from anchorwatch.studies.estimate import PROMPT, Estimate
from anchorwatch.studies.evidence import Answers, Effect, Evidence, Experiment, Runs, TraceSet
from anchorwatch.studies.measure import (
    ARM_RUNS,
    EVERY_LAYER,
    MDM_RUNS,
    by_prompt,
    by_sums,
    mean_of,
    pool_layers,
)
from anchorwatch.trace.trace import MASKED, Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

HEAD_MAPS = Experiment("mdm", "head_maps", passes=32)
PAPER_RULE, OTHER_RULES, TOP_KEY_RULE = RULES[0], RULES[1:-1], RULES[-1]
"""The paper's own rule, those that may find no sink either, and the greatest key."""
FRONTIER_HIT = "frontier_hit_any"
BLOCK_RUNS = Runs("mdm", decoding=LowConfidence(32, 32, block=8))
ALIKE_COSINE = 0.9
"""Cosine from which two maps are called alike."""
LONG_STAY = 8
"""Steps beyond which a sink is expected to have gone."""
LEAST_MASKS = 4
"""Masks of a step that counts: of one or two, chance hits so often that nothing can exceed it."""
ADDED_MASKS = Experiment("mdm", "added_masks", passes=4)
NAMED_CLASSES = ("newline", "mask")
LEAST_ACCURACY = 0.3
"""Share of first tokens that are right before few masks, below which little can be lost."""
DOSES = (1, 5, 10, 20)
HIDDEN_SINKS = Effect("mdm", (hide_sinks(1),), doses=DOSES)
SAME_PASS = (
    ("none", ()),
    ("sinks", (hide_sinks(1, detect="same_shadow"),)),
    ("random", (hide_random(1, detect="same_shadow"),)),
)
"""Found in the pass that is edited: by the step before, the first pass of a run hides nothing, and
of an answer of a few tokens that is the one that reads the prompt."""
HIDDEN_ANSWERS = Answers(("mdm", "arm"), ("gold",), SAME_PASS)
LEAST_ACCURACY_BY_ROLE = {"mdm": 0.3, "arm": 0.5}
"""Unedited accuracy below which there is too little to lose: the ARM is to lose half."""
FOUND_IN_EDITED = Effect("mdm", (hide_sinks(1, detect="previous_edited"),), control=None)
DELAYS = Experiment("mdm", "delayed", passes=102)
ONE_STEP = Answers(("mdm",), ("gold",), SAME_PASS, steps=1)
MANY_STEPS = Answers(("mdm",), ("gold",), SAME_PASS, steps=16)


def share_without_sinks(evidence: Evidence, scale: str) -> np.ndarray:
    """[prompt] share of tokens that are no sink: heads and steps have as many keys each."""
    count = by_prompt(evidence, MDM_RUNS, "sinks", "count", options={"rule": rulli(3.0, scale)})
    runs = evidence[MDM_RUNS]
    keys = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        keys[index] = trace.canvas.shape[1]
    return 1 - count.value / keys


def draw_sink_paths(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[spec].traces[0] for spec in (MDM_RUNS, ARM_RUNS) if evidence[spec].traces]
    table = evidence.once(
        ("first paths", MDM_RUNS, ARM_RUNS), partial(metrics.sink_positions, first)
    )
    return sink_positions(table)


def draw_score_histogram(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import score_histogram

    traces = list(evidence[MDM_RUNS].traces)
    return score_histogram(
        evidence.once((MDM_RUNS, "score_histogram"), partial(metrics.score_histogram, traces))
    )


def at_age(values: np.ndarray, ages: tuple[int, ...], age: int) -> np.ndarray:
    """[prompt] of [prompt, age]; the oldest where there are fewer steps."""
    return values[:, ages.index(min(age, max(ages)))]


def draw_survival(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import survival

    traces = list(evidence[MDM_RUNS].traces)
    return survival(evidence.once((MDM_RUNS, "survival"), partial(metrics.survival, traces)))


def draw_block_paths(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[BLOCK_RUNS].traces)[:1]
    return sink_positions(metrics.sink_positions(first)) if first else None


def frontier_hit_share(evidence: Evidence, half: str, *, chance: bool = False) -> np.ndarray:
    """[prompt] share of heads and steps with masks enough whose greatest key is the frontier."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        enough = np.sum(trace.role[:-1] == MASKED, axis=1) >= LEAST_MASKS
        return pool_layers(quantities[CHANCE * chance + FRONTIER_HIT], half, enough)

    return by_sums(evidence[MDM_RUNS], frontier_sums(evidence), of)


def first_step_hits(evidence: Evidence, *, chance: bool = False) -> np.ndarray:
    """[prompt] the same of the first step."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        return pool_layers(
            quantities[CHANCE * chance + FRONTIER_HIT], EVERY_LAYER, np.arange(trace.num_steps) == 0
        )

    return by_sums(evidence[MDM_RUNS], frontier_sums(evidence), of)


def frontier_sums(evidence: Evidence) -> Parts:
    traces, kernel = (
        list(evidence[MDM_RUNS].traces),
        partial(frontier_hits.kernel, rule=rulli(), group="all"),
    )
    return evidence.once((MDM_RUNS, "frontier sums"), lambda: layer_quantities(traces, kernel))


def draw_head_types(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import head_types

    traces = list(evidence[MDM_RUNS].traces)
    return head_types(evidence.once((MDM_RUNS, "head_types"), partial(metrics.head_types, traces)))


def draw_sinks_by_layer(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    traces = list(evidence[MDM_RUNS].traces)
    table = evidence.once(
        (MDM_RUNS, "sinks by layer"), partial(metrics.sinks, traces, by=["layer"])
    )
    return profile(table)


def draw_angle_and_norm(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import shapley_bars

    traces = list(evidence[MDM_RUNS].traces)
    table = evidence.once(
        (MDM_RUNS, "qk by layer"), partial(metrics.qk_split, traces, by=["layer"])
    )
    return shapley_bars(table)


def mean_over_layers(runs: TraceSet, rows: pd.DataFrame, quantity: str, column: str) -> np.ndarray:
    """[prompt] mean over the other layers, in the order of the set."""
    means: Any = rows[rows["quantity"] == quantity].groupby("prompt")[column].mean()
    values = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        values[index] = means.get(prompt_id(trace), np.nan)
    return values


def draw_reuse(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import layer_consistency

    traces = list(evidence[MDM_RUNS].traces)
    make = partial(metrics.layer_consistency, traces)
    return layer_consistency(evidence.once((MDM_RUNS, "layer_consistency"), make))


def mean_or_absent(values: np.ndarray) -> float | str:
    return mean_of(values) if np.isfinite(values).any() else "absent"


def draw_token_classes(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_classes import enrichment

    traces = list(evidence[MDM_RUNS].traces)
    make = partial(metrics.enrichment, traces, matched=True)
    table = evidence.once((MDM_RUNS, "enrichment"), make)
    return enrichment(table) if table["value"].notna().any() else None  # no sink, no share


def correlation_of_moments(means: np.ndarray) -> float:
    """Of means of x, y, xy, xx, yy."""
    x, y, xy, xx, yy = means
    size = np.sqrt(max(xx - x * x, 0.0) * max(yy - y * y, 0.0))
    return float((xy - x * y) / size) if size > 0 else float("nan")


def draw_doses(evidence: Evidence) -> Figure | None:
    """Sinks and other keys over the dose, with Student's interval over prompts."""
    from anchorwatch.figures.evaluation import effect_doses

    table: pd.DataFrame = evidence[HIDDEN_SINKS].table
    outcomes = ("argmax_agreement", "kl")
    rows = []
    shown = table[table["outcome"].isin(outcomes)]
    for (k, outcome, unit), part in shown.groupby(["k", "outcome", "unit"], sort=False):
        row = {"k": k, "outcome": outcome, "unit": unit, "n": len(part)}
        for value, ends in (("difference", ""), ("control_difference", "control_")):
            estimate = Estimate.mean(part[value], PROMPT)
            low, high = estimate.interval(0.95)
            row |= {value: estimate.value, f"{ends}low": low, f"{ends}high": high}
        rows.append(row)
    return effect_doses(pd.DataFrame(rows), outcomes=outcomes)
