"""Claims of 2601.07894 about anchors layer by layer: what they are, how many, what they absorb."""

from __future__ import annotations

from functools import partial
from math import log2
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import mass, robust_zscore
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import by_layer, deep, rise, shallow
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import PerPrompt, by_prompt, mean_of, means_of
from anchorwatch.studies.least import Least
from anchorwatch.studies.needs import ROLES, Runs
from anchorwatch.studies.papers.floating.anchor_rule import absorbed_beyond, floating
from anchorwatch.studies.papers.floating.anchors import ANCHORS, ARM, MDM

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_SETS = ("first", "top1", ANCHORS, floating())
DETECTORS = (ANCHORS, robust_zscore(), mass(0.5))
"""By mean and sd, by median and MAD, and the fewest keys that take half of the attention."""
MANY = 2.0
"""Anchors of a head: deep layers are to have one or two, so that fewer cannot become sparse."""
LESS_BY = -0.1
QUARTER_MORE = round(log2(1.25), 4)
"""A quarter more, as a difference of logarithms."""
DETECTOR = (
    "the detector adds 3 to a column mean, which is at most 1: it can never fire and falls back to "
    "the greatest key, so that every figure of absorption is of one key"
)


def _explained_variance(evidence: Evidence) -> dict[str, np.ndarray]:
    """[prompt, layer] share of the variance of attention on keys that token and place explain."""
    held = evidence[MDM]
    table = evidence.once(
        (MDM, "meaning_or_place", "prompts"),
        partial(
            metrics.meaning_or_place, list(held.traces), held_out="prompts", by=["prompt", "layer"]
        ),
    )
    rows = table[table["outcome"] == "received"]
    return {name: by_layer(held, rows[rows["quantity"] == name]) for name in ("token", "place")}


def _identity(evidence: Evidence) -> Finding:
    found = _explained_variance(evidence)
    gap = found["token"] - found["place"]
    deeper = gap[:, 1:].mean(axis=1) if gap.shape[1] > 1 else np.full(len(gap), np.nan)
    also = {
        f"{name}, {where}": mean_of(held[:, at])
        for name, held in found.items()
        for where, at in (("first layer", 0), ("last layer", -1))
    }
    return Finding(
        {
            "first layer": Measured(Estimate.mean(gap[:, 0], PROMPT), null=0.0),
            "deeper layers": Measured(Estimate.mean(deeper, PROMPT), null=0.0),
        },
        also,
    )


def _sparser(evidence: Evidence) -> Finding:
    spread = by_prompt(evidence, MDM, "concentration", "effective_share", over="layer").value
    falls, also, most = [], {}, 0.0
    for rule in DETECTORS:
        options = {"rule": rule}
        count = by_prompt(evidence, MDM, "sinks", "count", over="layer", options=options).value
        halves = np.column_stack([shallow(count), deep(count)])
        for half, mean in zip(("shallow", "deep"), means_of(halves), strict=True):
            also[f"anchors of a head by {rule}, {half} half"] = float(mean)
        many = also[f"anchors of a head by {rule}, shallow half"]
        most = max(most, many)
        if many >= MANY:
            falls.append(Estimate.jackknife(halves, _fewer, PROMPT))
    if not falls:
        raise EvidenceError(
            f"{ROLES['mdm'][0]} whose heads have {MANY:g} anchors or more in shallow layers, by "
            f"any detector: this one's have {most:.2g} at most"
        )
    also |= {
        f"effective share of keys, {where} layer": mean_of(spread[:, at])
        for where, at in (("first", 0), ("last", -1))
    }
    return Finding(
        {
            "keys": Measured(Estimate.mean(rise(spread), PROMPT), null=0.0),
            "anchors": Measured(Least.among(falls), null=0.0),
        },
        also,
    )


def _fewer(halves: np.ndarray) -> float:
    """The part of the shallow half's anchors that the deep half lacks."""
    return float(1 - halves[1] / halves[0])


def _spread_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    return profile(metrics.concentration(list(evidence[MDM].traces)))


def absorbed_share(
    evidence: Evidence, need: Runs, name: str, *, over: str | None = None
) -> PerPrompt:
    """Share of attention that a set of keys takes; the null is even attention's on the same."""
    return by_prompt(evidence, need, "absorption", name, over=over, options={"sets": _SETS})


def beyond(evidence: Evidence, need: Runs) -> dict[str, np.ndarray]:
    """[prompt] attention beyond even attention on the keys that have most of it."""
    held, names = evidence[need], ("top1", "top5", "anchors")

    def made() -> dict[str, np.ndarray]:
        found = np.full((held.count, len(names)), np.nan)
        for place, trace in zip(held.places, held.traces, strict=True):
            each = [absorbed_beyond(layer, ANCHORS) for layer in iter_layers(trace)]
            found[place] = [mean_of(one) for one in np.moveaxis(np.array(each), 1, 0)]
        return dict(zip(names, found.T, strict=True))

    kept: dict[str, np.ndarray] = evidence.once((need, "absorbed_beyond"), made)
    return kept


def _absorbs_less(evidence: Evidence) -> Finding:
    mdm, arm = (beyond(evidence, need) for need in (MDM, ARM))
    if not mean_of(arm["top1"]) > -LESS_BY:
        raise EvidenceError(  # less than that by the same amount would be below nothing
            f"{ROLES['arm'][0]} with a sink, whose greatest key takes {-LESS_BY:g} of attention "
            f"or more beyond even attention: this one's takes {mean_of(arm['top1']):.3f}"
        )
    found = {
        name: Measured(Estimate.mean(own - arm[name], PROMPT, (-2.0, 2.0)), 0.0, mean_of(arm[name]))
        for name, own in mdm.items()
    }
    also = {f"MDM, {name}": mean_of(own) for name, own in mdm.items()}
    also["as published: MDM, its greatest key"] = mean_of(
        absorbed_share(evidence, MDM, "top1").value
    )
    also["as published: ARM, its first key"] = mean_of(absorbed_share(evidence, ARM, "first").value)
    return Finding(found, also)


def _absorption_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    both = [trace for need in (MDM, ARM) for trace in evidence[need].traces]
    return profile(metrics.absorption(both, ["first", "top1", "top5", ANCHORS]))


def _depth_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    return profile(metrics.absorption(list(evidence[MDM].traces), ["top1", ANCHORS]))


def _not_one_key(evidence: Evidence) -> Finding:
    every, one = (absorbed_share(evidence, MDM, name).value for name in (str(floating()), "top1"))
    times = Estimate.mean(np.log2(every / one), PROMPT)
    return Finding(
        {"more": Measured(times, 0.0)},
        {
            "times": float(2**times.value),
            "by all anchors": mean_of(every),
            "by the greatest": mean_of(one),
        },
    )


def _grows(evidence: Evidence) -> Finding:
    one = absorbed_share(evidence, MDM, "top1", over="layer")
    every = absorbed_share(evidence, MDM, str(floating()), over="layer")
    also = {f"layer {at}": float(share) for at, share in enumerate(means_of(one.value))}
    also["rise, by all anchors"] = mean_of(rise(every.value - every.null))
    effect = Estimate.mean(rise(one.value - one.null), PROMPT)
    return Finding({"rise": Measured(effect, null=0.0)}, also)


CLAIMS = (
    Claim(
        "floating/H5",
        "At the first layer the token decides what a key receives, deeper its position does.",
        f"{_PAPER}, temporal figure of layer 0",
        "equal tokens have equal values in one example",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "first layer",
                "share of the variance of attention on keys that the token explains, less what its "
                "place (tenths) explains, at the first layer; means learnt on other prompts",
                GREATER,
                0.1,
                "a tenth of the variance",
                null="token and place explain as much",
            ),
            Criterion(
                "deeper layers",
                "the same, mean over the other layers",
                LESS,
                0.0,
                "that the place explains more is what is claimed of deeper layers",
                null="token and place explain as much",
            ),
        ),
        judge=_identity,
        caveat="of the logarithm of what every key receives, not of anchors alone: these are too "
        "few to learn means of tokens from",
    ),
    Claim(
        "floating/H6",
        "Attention is spread over many anchors in shallow layers and sparse in deep ones.",
        f"{_PAPER}, README",
        "qualitative; 2510.15731: one or two sinks in deep layers",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "keys",
                "change from the first layer to the last (least squares) of the effective number "
                "of keys, as a share of all",
                LESS,
                -0.05,
                "a twentieth of the keys",
                null="all layers alike",
            ),
            Criterion(
                "anchors",
                "part of the shallow half's anchors that the deep half lacks, by the detector that "
                "loses least (mean + 3 sd, median and MAD, keys that take half), of those that "
                "find two anchors or more of a head in shallow layers",
                GREATER,
                0.25,
                "a quarter fewer is the least that would be called sparser",
                null="halves alike",
            ),
        ),
        judge=_sparser,
        draw=_spread_figure,
        defect="mean + 3 sd cannot flag more than a tenth of the positions, so that spread anchors "
        "are not seen",
        caveat="a detector that finds hardly an anchor in shallow layers cannot lose any, and is "
        "only reported",
    ),
    Claim(
        "floating/H7",
        "A masked diffusion model's anchors absorb less attention than an autoregressive model's "
        "sink.",
        f"{_PAPER}, absorption figure",
        "74.5 / 63.0 % (Llama, Qwen) against 34.1 / 18.4 % (Dream, LLaDA)",
        PROMPT,
        needs=(MDM, ARM),
        criteria=tuple(
            Criterion(
                name,
                f"attention beyond what even attention under the same visibility gives, on {words} "
                "by that, MDM less ARM on the same prompts",
                LESS,
                LESS_BY,
                "a tenth of all attention, a quarter of the published gap of 42 points",
                null="no difference between the models",
                control="the ARM",
            )
            for name, words in (
                ("top1", "the greatest key"),
                ("top5", "the five greatest keys"),
                ("anchors", "keys above mean + 3 sd"),
            )
        ),
        judge=_absorbs_less,
        draw=_absorption_figure,
        defect=DETECTOR + "; models are compared with other prompts, lengths and sets of keys",
    ),
    Claim(
        "floating/H8",
        "The detector's fault matters: absorption by detected anchors is not that of one key.",
        f"{_PAPER}, absorption script",
        "not reported; a simulation gives 84 against 28.5 %",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "more",
                "log2 of how many times more attention keys above mean + 3 sd take (the greatest "
                "where there is none) than the greatest key alone, MDM",
                GREATER,
                QUARTER_MORE,
                "a quarter more; LLaDA's published 18 points would be 22 or more",
                null="one anchor in each head",
            ),
        ),
        judge=_not_one_key,
        defect=DETECTOR,
    ),
    Claim(
        "floating/H9",
        "Absorption grows with depth in masked diffusion models.",
        f"{_PAPER}, absorption figure",
        "thirds of the layers: LLaDA 12 / 19 / 25 %, Dream 23 / 37 / 44 %",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "rise",
                "change from the first layer to the last (least squares) of the share of attention "
                "on the greatest key, beyond even attention",
                GREATER,
                0.05,
                "five points, under half of the smaller rise that is published",
                null="all layers alike",
            ),
        ),
        judge=_grows,
        draw=_depth_figure,
        defect=DETECTOR,
    ),
)
