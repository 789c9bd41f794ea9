"""Claims of 2510.15731 about where sinks go: likeness of maps, stays, blocks, the frontier."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.generation.decoding import LowConfidence
from anchorwatch.metrics.movement import frontier_hits
from anchorwatch.metrics.sink_rules import rulli
from anchorwatch.metrics.table import CHANCE, Parts, Quantity, layer_quantities
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import EVERY, FIRST, LAST, by_sums, pool_layers
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, mean_of
from anchorwatch.studies.needs import Rows, Runs
from anchorwatch.trace.trace import MASKED, Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
_HIT = "frontier_hit_any"
_GIVEN = "here of the model that is given, whichever it is"
MDM = Runs("mdm")
BLOCKS = Runs("mdm", decoding=LowConfidence(32, 32, block=8))
MAPS = Rows("mdm", "head_maps", passes=32)
ALIKE = 0.9
"""Cosine from which two maps are called alike."""
LONG = 8
"""Steps beyond which a sink is expected to have gone."""
LEAST = 4
"""Masks of a step that counts: of one or two, chance hits so often that nothing can exceed it."""


def _alike_and_jumps(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[MAPS]
    units = table.groupby("unit")
    cosine, any_two = units["cosine"].mean(), units["cosine_null"].mean()
    near = table["cosine"] >= ALIKE
    mine = table[near].groupby("unit")[["jumps", "jumps_null"]].mean().reindex(cosine.index)
    also: dict[str, float | str] = {"share of heads alike": float(near.mean())}
    for words, heads in (("alike", table[near]), ("not alike", table[~near])):
        with_sink = heads["jumps"].dropna()
        name = f"share of heads {words} with sinks that jump at all"
        also[name] = float((with_sink > 0).mean()) if len(with_sink) else "no such heads"
    return Finding(
        {
            "alike": Measured(Estimate.mean(cosine, PROMPT, _GAP), float(any_two.mean())),
            "jumps": Measured(
                Estimate.mean(mine["jumps"], PROMPT, _SHARE), mean_of(mine["jumps_null"])
            ),
        },
        also,
    )


def _lives(evidence: Evidence) -> Finding:
    curve = by_prompt(evidence, MDM, "survival", "survival", over="age")
    flicker = by_prompt(evidence, MDM, "lifetime", "flicker")
    first, long = (_at_age(curve.value, curve.labels, age) for age in (1, LONG))
    null = _at_age(curve.null, curve.labels, 1), _at_age(curve.null, curve.labels, LONG)
    return Finding(
        {
            "stays": Measured(Estimate.mean(first, PROMPT, _SHARE), mean_of(null[0])),
            "vanishes": Measured(Estimate.mean(long, PROMPT, _SHARE), mean_of(null[1])),
            "flickers": Measured(
                Estimate.mean(flicker.value, PROMPT, _SHARE), mean_of(flicker.null)
            ),
        }
    )


def _at_age(values: np.ndarray, ages: tuple[int, ...], age: int) -> np.ndarray:
    """[prompt] of [prompt, age]; the oldest where there are fewer steps."""
    return values[:, ages.index(min(age, max(ages)))]


def _survival_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import survival

    held = list(evidence[MDM].traces)
    return survival(evidence.once((MDM, "survival"), partial(metrics.survival, held)))


def _drifts(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, BLOCKS, "direction", "tau")
    at, inside = (
        by_prompt(evidence, BLOCKS, "block_jumps", f"jump_rate_{where}").value
        for where in ("at_boundaries", "inside")
    )
    return Finding(
        {
            "right": Measured(Estimate.mean(tau.value, PROMPT, _GAP), null=0.0),
            "boundaries": Measured(
                Estimate.mean(at - inside, PROMPT, _GAP), null=0.0, control=mean_of(inside)
            ),
        }
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[BLOCKS].traces)[:1]
    return sink_positions(metrics.sink_positions(first)) if first else None


def _frontier(evidence: Evidence) -> Finding:
    tau = by_prompt(evidence, MDM, "direction", "tau").value
    hits = {half: _hits(evidence, half) for half in (EVERY, FIRST, LAST)}
    chance, first_chance = _hits(evidence, EVERY, chance=True), _begins(evidence, chance=True)
    first = _begins(evidence)
    beyond = {"begins": (first, first_chance), "frontier": (hits[EVERY], chance)}
    early = hits[FIRST] - hits[LAST]
    return Finding(
        {"left": Measured(Estimate.mean(tau, PROMPT, _GAP), null=0.0)}
        | {
            name: Measured(Estimate.mean(mine - even, PROMPT, _GAP), 0.0, mean_of(even))
            for name, (mine, even) in beyond.items()
        }
        | {"early": Measured(Estimate.mean(early, PROMPT, _GAP), null=0.0)},
        {"hits": mean_of(hits[EVERY]), "hits at the first step": mean_of(first)},
    )


def _hits(evidence: Evidence, half: str, *, chance: bool = False) -> np.ndarray:
    """[prompt] share of heads and steps with masks enough whose greatest key is the frontier."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        enough = np.sum(trace.role[:-1] == MASKED, axis=1) >= LEAST
        return pool_layers(quantities[CHANCE * chance + _HIT], half, enough)

    return by_sums(evidence[MDM], _frontier_sums(evidence), of)


def _begins(evidence: Evidence, *, chance: bool = False) -> np.ndarray:
    """[prompt] the same of the first step."""

    def of(trace: Trace, quantities: Mapping[str, Quantity]) -> float:
        return pool_layers(
            quantities[CHANCE * chance + _HIT], EVERY, np.arange(trace.num_steps) == 0
        )

    return by_sums(evidence[MDM], _frontier_sums(evidence), of)


def _frontier_sums(evidence: Evidence) -> Parts:
    held, kernel = (
        list(evidence[MDM].traces),
        partial(frontier_hits.kernel, rule=rulli(), group="all"),
    )
    return evidence.once((MDM, "frontier sums"), lambda: layer_quantities(held, kernel))


def _static(evidence: Evidence) -> Finding:
    modal = by_prompt(evidence, MDM, "spread", "modal_share")
    types = by_prompt(evidence, MDM, "head_type_shares", "share_of_heads", over="type")
    none = types.value[:, types.labels.index("none")]
    return Finding(
        {
            "modal": Measured(Estimate.mean(modal.value, PROMPT, _SHARE), mean_of(modal.null)),
            "none": Measured(Estimate.mean(none, PROMPT, _SHARE)),
        },
        {f"{name} heads": mean_of(types.value[:, at]) for at, name in enumerate(types.labels)},
    )


def _types_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.movement import head_types

    held = list(evidence[MDM].traces)
    return head_types(evidence.once((MDM, "head_types"), partial(metrics.head_types, held)))


CLAIMS = (
    Claim(
        "sinks/H4",
        "Attention maps of neighbouring steps are alike, and yet the greatest sink jumps.",
        f"{_PAPER}, Fig. 4, against SparseD",
        "contradictory between papers: patterns stay similar, sinks move",
        PROMPT,
        needs=(MAPS,),
        criteria=(
            Criterion(
                "alike",
                "cosine of a head's map with its map a step later, mean over rows, heads and four "
                "pairs of steps",
                GREATER,
                ALIKE,
                "a pattern found at one step could be used at the next; no number is given",
                null="any two of the steps",
            ),
            Criterion(
                "jumps",
                "share of neighbouring steps with a sink at which the greatest sink is another, in "
                f"the heads whose maps have a cosine of at least {ALIKE}, mean over heads",
                GREATER,
                0.05,
                "one step in twenty: less could not be seen in the paper's figures",
                null="steps shuffled; a sink that stays for some steps jumps less than that",
            ),
        ),
        judge=_alike_and_jumps,
        caveat="heads count alike here and steps in sinks/H3, so that heads with a sink at few "
        "steps, which jump more, weigh more here",
    ),
    Claim(
        "sinks/H5",
        "A sink stays for some steps and then vanishes; some live one step only.",
        f"{_PAPER}, Fig. 6b and text",
        "qualitative",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "stays",
                "share of stays that last longer than a step (Kaplan-Meier)",
                GREATER,
                0.5,
                "then the median stay is more than one step",
                null="steps shuffled",
            ),
            Criterion(
                "vanishes",
                f"share of stays that last longer than {LONG} steps",
                LESS,
                0.95,
                "at least one in twenty must be seen to end: 1 would be sinks that never do",
                null="steps shuffled",
            ),
            Criterion(
                "flickers",
                "share of stays that last one step, those cut off by the end left out",
                GREATER,
                0.05,
                "one stay in twenty: fewer would be exceptions",
                null="steps shuffled",
            ),
        ),
        judge=_lives,
        draw=_survival_figure,
    ),
    Claim(
        "sinks/H6",
        "Written block by block, the sink moves to the right with the blocks, and jumps where one "
        "begins.",
        f"{_PAPER}, Fig. 7",
        "qualitative, of LLaDA",
        PROMPT,
        needs=(BLOCKS,),
        criteria=(
            Criterion(
                "right",
                "Kendall's tau of a head's greatest sink with the step, mean over heads whose sink "
                "moves; four blocks of eight",
                GREATER,
                0.1,
                "a tenth of a perfect drift: in the figure it is plain to see",
                null="steps shuffled",
            ),
            Criterion(
                "boundaries",
                "jump rate at the steps that open a block, less that at the others",
                GREATER,
                0.05,
                "one step in twenty",
                null="opening steps dealt out at random",
                control="the rate inside blocks",
            ),
        ),
        judge=_drifts,
        draw=_path_figure,
        caveat=f"said of LLaDA, {_GIVEN}",
    ),
    Claim(
        "sinks/H7",
        "Written in a free order, the sink begins at the rightmost masked position and moves to "
        "the left, most in early layers.",
        f"{_PAPER}, Fig. 7 and 8b",
        "qualitative, of Dream",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "left",
                "Kendall's tau of a head's greatest sink with the step",
                LESS,
                -0.1,
                "a tenth of a perfect drift: in the figure it is plain to see",
                null="steps shuffled",
            ),
            Criterion(
                "begins",
                "share of heads whose greatest key at the first step is the rightmost masked "
                "position, less that of a masked position drawn by chance",
                GREATER,
                0.05,
                "one head in twenty beyond chance",
                null="no more often than chance",
                control="a masked position drawn by chance",
            ),
            Criterion(
                "frontier",
                f"the same share over all steps with at least {LEAST} masks",
                GREATER,
                0.05,
                "one step in twenty beyond chance",
                null="no more often than chance",
                control="a masked position drawn by chance",
            ),
            Criterion(
                "early",
                "the same share in the first half of the layers less that in the last",
                GREATER,
                0.02,
                "strongest in early layers is what is said; no number is given",
                null="alike in all layers",
            ),
        ),
        judge=_frontier,
        caveat=f"said of Dream, {_GIVEN}; a third-party count finds most of Dream's heads fixed",
    ),
    Claim(
        "sinks/H8",
        "The sink is static, and most heads have none.",
        f"{_PAPER}, Fig. 7 and 8a",
        "qualitative, of MMaDA",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "modal",
                "share of the steps with a sink at which it is where it is most often",
                GREATER,
                0.9,
                "the limit from which a head's sink is called static",
                null="positions drawn evenly",
            ),
            Criterion(
                "none",
                "share of heads that have no sink at more than nine steps in ten",
                GREATER,
                0.5,
                "most is more than half",
            ),
        ),
        judge=_static,
        draw=_types_figure,
        caveat=f"said of MMaDA, {_GIVEN}; the comparison with LLaDA takes two such models",
    ),
)
