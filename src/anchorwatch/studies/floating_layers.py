"""Claims of 2601.07894 about anchors layer by layer: what they are, how many, what they absorb."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.rules import mass, robust_zscore
from anchorwatch.studies.anchors import floating
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import by_layer, rise
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import PerPrompt, by_prompt, mean_of, means_of
from anchorwatch.studies.floating_anchors import ANCHORS, ARM, MDM
from anchorwatch.studies.needs import Runs

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_GAP = (-1.0, 1.0)
_SETS = ("first", "top1", "top5", ANCHORS, floating())
DETECTOR = (
    "the detector adds 3 to a column mean, which is at most 1: it can never fire and falls back to "
    "the greatest key, so that every figure of absorption is of one key"
)


def _explained(evidence: Evidence) -> dict[str, np.ndarray]:
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
    found = _explained(evidence)
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
            "beside deeper ones": Measured(
                Estimate.mean(gap[:, 0] - deeper, PROMPT), 0.0, mean_of(deeper)
            ),
        },
        also,
    )


def _sparser(evidence: Evidence) -> Finding:
    spread = by_prompt(evidence, MDM, "concentration", "effective_share", over="layer").value
    counts = {
        str(rule): rise(
            by_prompt(evidence, MDM, "sinks", "count", over="layer", options={"rule": rule}).value
        )
        for rule in (robust_zscore(), ANCHORS, mass(0.5))
    }
    robust = counts.pop(str(robust_zscore()))
    also = {f"rise of the count by {name}": mean_of(v) for name, v in counts.items()}
    also |= {
        f"effective share of keys, {where} layer": mean_of(spread[:, at])
        for where, at in (("first", 0), ("last", -1))
    }
    return Finding(
        {
            "keys": Measured(Estimate.mean(rise(spread), PROMPT), null=0.0),
            "anchors": Measured(Estimate.mean(robust, PROMPT), null=0.0),
        },
        also,
    )


def _spread_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sinks import profile

    return profile(metrics.concentration(list(evidence[MDM].traces)))


def absorbed(evidence: Evidence, need: Runs, name: str, *, over: str | None = None) -> PerPrompt:
    """Share of attention that a set of keys takes; the null is even attention's on the same."""
    return by_prompt(evidence, need, "absorption", name, over=over, options={"sets": _SETS})


def _absorbs_less(evidence: Evidence) -> Finding:
    found, also = {}, {}
    for called, name in (("top1", "top1"), ("top5", "top5"), ("anchors", str(ANCHORS))):
        mdm, arm = (absorbed(evidence, need, name) for need in (MDM, ARM))
        beyond = [one.value - one.null for one in (mdm, arm)]
        effect = Estimate.mean(beyond[0] - beyond[1], PROMPT, (-2.0, 2.0))
        found[called] = Measured(effect, 0.0, mean_of(beyond[1]))
    also["as published: MDM, its greatest key"] = mean_of(absorbed(evidence, MDM, "top1").value)
    also["as published: ARM, its first key"] = mean_of(absorbed(evidence, ARM, "first").value)
    return Finding(found, also)


def _absorption_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sinks import profile

    both = [trace for need in (MDM, ARM) for trace in evidence[need].traces]
    return profile(metrics.absorption(both, ["first", "top1", "top5", ANCHORS]))


def _depth_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sinks import profile

    return profile(metrics.absorption(list(evidence[MDM].traces), ["top1", ANCHORS]))


def _not_one_key(evidence: Evidence) -> Finding:
    every, one = (absorbed(evidence, MDM, name).value for name in (str(floating()), "top1"))
    return Finding(
        {"more": Measured(Estimate.mean(every - one, PROMPT, _GAP), 0.0, mean_of(one))},
        {"by all anchors": mean_of(every), "by the greatest": mean_of(one)},
    )


def _grows(evidence: Evidence) -> Finding:
    one = absorbed(evidence, MDM, "top1", over="layer")
    every = absorbed(evidence, MDM, str(floating()), over="layer")
    also = {f"layer {at}": float(share) for at, share in enumerate(means_of(one.value))}
    also["rise, by all anchors"] = mean_of(rise(every.value - every.null))
    effect = Estimate.mean(rise(one.value - one.null), PROMPT)
    return Finding({"rise": Measured(effect, null=0.0)}, also)


CLAIMS = (
    Claim(
        "floating/H5",
        "At the first layer anchors are decided by which token stands there, deeper by position.",
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
                "beside deeper ones",
                "the same, less its mean over the other layers",
                GREATER,
                0.1,
                "a tenth of the variance",
                null="all layers alike",
                control="the mean over the other layers",
            ),
        ),
        judge=_identity,
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
                "the same of the number of anchors of a head, by median and MAD",
                LESS,
                -1.0,
                "one anchor: less is not many against few",
                null="all layers alike",
            ),
        ),
        judge=_sparser,
        draw=_spread_figure,
        defect="mean + 3 sd cannot flag more than a tenth of the positions, so that spread anchors "
        "are not seen",
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
                f"share of attention on {words}, less what even attention under the same "
                "visibility gives those keys, MDM less ARM on the same prompts",
                LESS,
                -0.1,
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
                "share of attention on keys above mean + 3 sd (the greatest where there is none), "
                "less that on the greatest key, MDM",
                GREATER,
                0.05,
                "five points of attention, over a quarter of LLaDA's published mean of 18",
                null="one anchor in each head",
                control="the greatest key, which the published code gives",
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
