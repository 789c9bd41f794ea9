"""Claims of 2510.15731 about sinks as they are: existence, number, movement, and by which rule."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits import freeze_canvas
from anchorwatch.metrics.amounts import RULES
from anchorwatch.rules import rulli
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, mean_of
from anchorwatch.studies.needs import Rows, Runs

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2510.15731"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")
FROZEN = Runs("mdm", edits=(freeze_canvas(),))
MAPS = Rows("mdm", "maps", passes=32)
_SCALE = "the criterion as printed is of column means, which never exceed 1: eps = 3 cannot fire"


def _kept(evidence: Evidence, scale: str) -> np.ndarray:
    """[prompt] share of tokens that are no sink: heads and steps have as many keys each."""
    count = by_prompt(evidence, MDM, "sinks", "count", options={"rule": rulli(3.0, scale)})
    held = evidence[MDM]
    keys = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        keys[place] = trace.canvas.shape[1]
    return 1 - count.value / keys


def _filtered(evidence: Evidence) -> Finding:
    found = {scale: _kept(evidence, scale) for scale in ("sum", "percent")}
    effect = Estimate.mean(found["sum"], PROMPT, _SHARE)
    also = {"on the percent scale": mean_of(found["percent"])}
    return Finding({"sum": Measured(effect, null=1.0)}, also)


def _moves(evidence: Evidence) -> Finding:
    mdm, arm, frozen = (
        by_prompt(evidence, need, "jumps", "jump_rate_any") for need in (MDM, ARM, FROZEN)
    )
    beside = Estimate.mean(mdm.value - arm.value, PROMPT, _GAP)
    still = Estimate.mean(mdm.value - frozen.value, PROMPT, _GAP)
    shuffled = mean_of(mdm.null)
    return Finding(
        {
            "beside the ARM": Measured(beside, null=0.0, control=mean_of(arm.value)),
            "beside a frozen canvas": Measured(still, null=0.0, control=mean_of(frozen.value)),
        },
        {"MDM": mean_of(mdm.value), "MDM, steps shuffled": shuffled},
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    """One prompt of each model: where the greatest sink of every head is."""
    from anchorwatch.figures.movement import sink_positions

    first = [evidence[need].traces[0] for need in (MDM, ARM) if evidence[need].traces]
    table = evidence.once(("first paths", MDM, ARM), partial(metrics.sink_positions, first))
    return sink_positions(table)


def _exist(evidence: Evidence) -> Finding:
    units = evidence[MAPS].groupby("unit")
    above, greatest, shuffled = (units[name].mean() for name in ("above", "greatest", "shuffled"))
    return Finding(
        {
            "above": Measured(Estimate.mean(above, PROMPT, _SHARE), null=1 / 20),
            "greatest": Measured(Estimate.mean(greatest, PROMPT), null=float(shuffled.mean())),
        }
    )


def _histogram(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sinks import score_histogram

    held = list(evidence[MDM].traces)
    return score_histogram(
        evidence.once((MDM, "score_histogram"), partial(metrics.score_histogram, held))
    )


def _agree(evidence: Evidence) -> Finding:
    kappa = by_prompt(evidence, MDM, "agreement", "kappa", over="rules")
    found = {}
    for other in RULES[1:]:
        pair = kappa.labels.index(f"{RULES[0]} ~ {other}")
        value = kappa.value[:, pair]
        found[type(other).__name__] = Measured(Estimate.mean(value, PROMPT, _GAP), null=0.0)
    also: dict[str, float | str] = {}
    for rule in RULES:
        gap = [
            by_prompt(evidence, need, "jumps", "jump_rate", options={"rule": rule}).value
            for need in (MDM, ARM)
        ]
        apart = gap[0] - gap[1]
        known = np.isfinite(apart).any()
        name = f"jump rate beyond the ARM's, {type(rule).__name__}"
        also[name] = mean_of(apart) if known else "absent"
    return Finding(found, also)


CLAIMS = (
    Claim(
        "sinks/H1",
        "Heads have keys that take more attention than chance would give any.",
        f"{_PAPER}, Fig. 3 and 9",
        "few tokens very high, most near 0",
        PROMPT,
        needs=(MAPS, MDM),
        criteria=(
            Criterion(
                "above",
                "share of maps (step, layer, head) whose greatest key receives more than the "
                "greatest of each of 19 maps with shuffled rows",
                GREATER,
                0.5,
                "most heads and steps must have one",
                null="every row's attention dealt out to its keys anew: one in twenty",
            ),
            Criterion(
                "greatest",
                "column sum of the greatest key, mean over heads and steps; 1 is even attention",
                GREATER,
                4.0,
                "the paper's own criterion, eps = 3, asks for four times the even share",
                null="every row's attention dealt out to its keys anew",
            ),
        ),
        judge=_exist,
        draw=_histogram,
        defect=_SCALE,
    ),
    Claim(
        "sinks/H2",
        "The criterion (eps = 3) calls few tokens sinks: at least 96 % are none, in each model.",
        f"{_PAPER}, Fig. 10",
        "at least 96 % at eps = 3",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "sum",
                "share of (step, layer, head, token) that is no sink, eps = 3 on column sums",
                GREATER,
                0.96,
                "the number that is claimed",
                null="even attention has no sink: 1",
            ),
        ),
        judge=_filtered,
        defect=_SCALE,
        caveat="even attention passes too: it says that sinks are few, not that there are any",
    ),
    Claim(
        "sinks/H3",
        "The greatest sink of a masked diffusion model moves over steps, more than an "
        "autoregressive model's, and because the canvas changes.",
        f"{_PAPER}, Fig. 1, 4 and 7",
        "LLaDA and Dream move; MMaDA and Llama do not",
        PROMPT,
        needs=(MDM, ARM, FROZEN),
        criteria=(
            Criterion(
                "beside the ARM",
                "share of neighbouring steps at which a head's greatest key is another, MDM less "
                "ARM on the same prompts",
                GREATER,
                0.05,
                "one step in twenty: less could not be seen in the paper's figures",
                null="no difference between the models",
                control="the ARM",
            ),
            Criterion(
                "beside a frozen canvas",
                "the same of the MDM, less that of runs in which nothing is committed",
                GREATER,
                0.05,
                "one step in twenty",
                null="a canvas that does not change moves nothing",
                control="the same prompts with a frozen canvas",
            ),
        ),
        judge=_moves,
        draw=_path_figure,
        caveat="the greatest key counts whether the rule calls it a sink or not",
    ),
    Claim(
        "sinks/H23",
        "Rules of what a sink is agree, and no conclusion turns with the rule.",
        f"{_PAPER}, and its neighbours' definitions",
        "not studied",
        PROMPT,
        needs=(MDM, ARM),
        criteria=tuple(
            Criterion(
                name,
                f"Cohen's kappa of {words} with column sums above eps = 3",
                GREATER,
                0.6,
                "substantial agreement, by the usual words for kappa",
                null="agreement by chance: 0",
            )
            for name, words in (
                ("zscore", "three standard deviations above the mean"),
                ("gu", "a share above 0.3 of the queries that see it"),
                ("topk", "the greatest key, whatever it receives"),
            )
        ),
        judge=_agree,
        caveat="of conclusions only movement is said by rule, beside the verdict",
    ),
    Claim(
        "sinks/H24",
        "Instruction tuning, or a start from an autoregressive model, changes sinks.",
        f"{_PAPER}, limitations",
        "not studied",
        PROMPT,
        caveat="Dream beside LLaDA differs in data and architecture as well as in its start",
        lacks="a second masked diffusion model beside --model: the same one before it was tuned on "
        "instructions, or, of an arm that goes on from a next-token network, the same arm trained "
        "from scratch with three seeds in the table of variants (all arms there have a stem)",
    ),
)
