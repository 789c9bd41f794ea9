"""The claims of the attention floating paper (arXiv 2601.07894), in its order."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.evaluation.tables import slope
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.token_classes import CLASSES, MASK, TEMPLATE
from anchorwatch.studies.claim import (
    EQUAL,
    GREATER,
    LESS,
    Criterion,
    Finding,
    Measured,
    Paper,
    register_claim,
    register_paper,
)
from anchorwatch.studies.estimate import ITEM, PROMPT, Estimate, Greatest, Least, mean_score
from anchorwatch.studies.evidence import ROLES, Evidence
from anchorwatch.studies.measure import (
    ARM_RUNS,
    DIFFERENCE,
    FEWEST_RIGHT,
    FROZEN_RUNS,
    MDM_RUNS,
    SHARE,
    by_item,
    by_prompt,
    by_trace,
    depth_slope,
    first_half_mean,
    last_half_mean,
    mean_of,
    means_of,
    require_accuracy,
    weighted_depth,
)
from anchorwatch.studies.papers.floating.measures import (
    ABSORBS_LESS_BY,
    ANCHOR_RULE,
    ANCHORS,
    DETECTORS,
    DISTRACTED,
    DOUBLINGS,
    FEWEST_LAYERS,
    FEWEST_SHALLOW_ANCHORS,
    GAIN,
    GOLD_ATTENTION,
    GOLD_POSITIONS,
    HALVES,
    KNOCKED_OUT_HEADS,
    LAYOUTS,
    LEAST_ACCURACY,
    LEAST_CONTRAST,
    LEAST_GAIN,
    LEAST_RISE,
    PASSAGE_RUNS,
    QUARTER_MORE,
    RETRIEVAL_SCORE,
    ROLLOUTS,
    SAME_ORIGIN,
    TEMPLATES,
    TENTH,
    WEIGHTS,
    WRITTEN_QUERIES,
    absorbed_share,
    absorbed_shares,
    anchor_drift,
    anchor_onsets,
    anchor_profiles,
    anchor_turnover,
    by_head,
    chance_distance,
    divergences,
    draw_absorption,
    draw_absorption_by_depth,
    draw_anchor_paths,
    draw_angle_and_norm,
    draw_gains,
    draw_noise,
    draw_positions,
    draw_retrieval_map,
    draw_spread,
    draw_structure,
    drift_beyond_frontier,
    effective_share_of_heads,
    explained_variance,
    floating,
    greatest_keys,
    norm_helps,
    onset_layer,
    onset_rise,
    partial_correlation,
    predicting_turnover,
    retrieval_scores,
    score_answers,
    scores_by_role,
    share_lost,
    weight_correlation,
)
from anchorwatch.studies.prompts import TEMPLATE_WORDS

register_paper(
    "floating",
    Paper(
        "Revealing the Attention Floating Mechanism in Masked Diffusion Models",
        "Dai, Huang, Liu, Wang, Yan, Xiao, Gu, Yu and Sun, 2026",
        "2601.07894",
        "Attention of autoregressive models falls into one fixed place; that of masked diffusion "
        "models has anchors that move over steps and layers, which is said to help them use "
        "passages.",
    ),
)
_PAPER = "arXiv 2601.07894"
_DETECTOR = (
    "the detector adds 3 to a column mean, which is at most 1: it can never fire and falls back to "
    "the greatest key, so that every figure of absorption is of one key"
)
_NO_SCRIPT = "no script for retrieval heads was released"


@register_claim(
    "floating/H1",
    "An autoregressive model's attention sinks into one fixed place, the first token; a masked "
    "diffusion model's does not.",
    source=f"{_PAPER}, abstract and introduction",
    reported="ARM fixed, MDM not; no number",
    unit=PROMPT,
    needs=(ARM_RUNS, MDM_RUNS),
    criteria=(
        Criterion(
            "arm",
            "share of heads and steps of the ARM whose greatest key, by attention beyond what "
            "even causal attention gives it, is position 0",
            GREATER,
            0.9,
            "nine in ten is what 'fixed' is taken to mean",
            null="any key as likely as another",
        ),
        Criterion(
            "beyond the mask",
            "attention on position 0 of the ARM, less what even causal attention gives it",
            GREATER,
            0.05,
            "a twentieth of all attention: less would be the mask's doing",
            null="even attention under the same visibility",
        ),
        Criterion(
            "mdm",
            "share of heads and steps of the MDM whose greatest key is at the prompt's "
            "commonest place, wherever that is",
            LESS,
            0.9,
            "the same limit from the other side",
        ),
    ),
    defect="the published comparison is on finished text, without a masked position",
    caveat="heads and steps are averaged within a prompt; prompts are the unit",
)
def measure_fixed_position(evidence: Evidence) -> Finding:
    # 1. [prompt, 2] how often the top key is position 0, and how often the commonest position
    shares = {}
    for spec in (ARM_RUNS, MDM_RUNS):
        runs, keys = evidence[spec], greatest_keys(evidence, spec)
        shares[spec] = np.full((runs.count, 2), np.nan)
        for index, top in zip(runs.indices, keys, strict=True):
            if top.size:
                shares[spec][index] = np.mean(top == 0), np.bincount(top).max() / top.size
    # 2. attention on position 0 beyond what even attention under the same mask gives it
    first = by_prompt(evidence, ARM_RUNS, "absorption", "first", options={"sets": ("first",)})
    beyond = Estimate.mean(first.value - first.null, PROMPT, DIFFERENCE)
    length = by_trace(evidence[ARM_RUNS], lambda trace: trace.canvas.shape[1])
    return Finding(
        {
            "arm": Measured(
                Estimate.mean(shares[ARM_RUNS][:, 0], PROMPT, SHARE), null=mean_of(1 / length)
            ),
            "beyond the mask": Measured(beyond, null=0.0),
            "mdm": Measured(Estimate.mean(shares[MDM_RUNS][:, 1], PROMPT, SHARE)),
        },
        {
            "share on position 0, ARM": mean_of(first.value),
            "of even attention": mean_of(first.null),
            "position 0 is the greatest key of the MDM": mean_of(shares[MDM_RUNS][:, 0]),
            "commonest greatest key of the ARM": mean_of(shares[ARM_RUNS][:, 1]),
        },
    )


@register_claim(
    "floating/H2",
    "Anchors of a masked diffusion model move from step to step, more than an autoregressive "
    "model's.",
    source=f"{_PAPER}, README, temporal figures",
    reported="qualitative; in the released deep-layer example the greatest key moves at two steps "
    "of 32",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS, FROZEN_RUNS),
    criteria=(
        Criterion(
            "moves",
            "turnover of the MDM: of a head's anchors at two steps taken together, the share "
            "that are anchors at one of them only (1 - Jaccard)",
            GREATER,
            0.05,
            "one anchor in twenty: about what the released deep-layer example shows",
            null="a canvas that does not change",
        ),
        Criterion(
            "beside the ARM",
            "the same of the greatest keys of the rows that predict what is written at a step, "
            "MDM less ARM on the same prompts",
            GREATER,
            0.05,
            "one anchor in twenty",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    draw=draw_anchor_paths,
    defect="no released code makes the input of the temporal figure",
    caveat="anchors are keys above mean + 3 sd, or the greatest. Earlier rows of a causal "
    "model never change, whatever it attends to, so that models are compared by rows that "
    "predict",
)
def measure_anchor_turnover(evidence: Evidence) -> Finding:
    mdm, arm = (by_trace(evidence[spec], predicting_turnover) for spec in (MDM_RUNS, ARM_RUNS))
    every, frozen = (anchor_turnover(evidence, spec) for spec in (MDM_RUNS, FROZEN_RUNS))
    return Finding(
        {
            "moves": Measured(Estimate.mean(every, PROMPT, SHARE), null=mean_of(frozen)),
            "beside the ARM": Measured(
                Estimate.mean(mdm - arm, PROMPT, DIFFERENCE), 0.0, mean_of(arm)
            ),
        },
        {
            "of rows that predict, MDM": mean_of(mdm),
            "of all rows, ARM, which its mask holds still": mean_of(
                anchor_turnover(evidence, ARM_RUNS)
            ),
        },
    )


@register_claim(
    "floating/H3",
    "Anchors drift to the right over denoising, at each layer.",
    source=f"{_PAPER}, README, temporal figures",
    reported="right shift at each layer; 2510.15731: LLaDA to the right, Dream to the left",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "anchors",
            "drift of a head's anchors (mean position weighted by attention): last quarter of "
            "the steps less the first, as a share of the canvas, of the layer that drifts "
            "least",
            GREATER,
            0.02,
            "one position of the published figure's 52",
            null="anchors that stay where they are",
        ),
        Criterion(
            "greatest key",
            "the same of the position of a head's greatest key, of the layer that drifts least",
            GREATER,
            0.02,
            "one position of the published figure's 52",
            null="a greatest key that stays where it is",
        ),
    ),
    draw=draw_anchor_paths,
    defect="no statistic of drift is computed anywhere",
    caveat="anchors that follow what is written drift the way it is written, which may be from "
    "either end; the correlation given the frontier says what is left. Quarters, because the "
    "median slope of a key that moves at few steps is exactly 0",
)
def measure_anchor_drift(evidence: Evidence) -> Finding:
    runs = evidence[MDM_RUNS]
    both = np.full((runs.count, 2, runs.traces[0].manifest["model"]["layers"]), np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        both[index] = np.transpose([anchor_drift(layer) for layer in iter_layers(trace)])
    names = ("anchors", "greatest key")
    measured = {
        name: Measured(
            Least.among([Estimate.mean(x, PROMPT, DIFFERENCE) for x in drift.T]), null=0.0
        )
        for name, drift in zip(names, both.swapaxes(0, 1), strict=True)
    }
    also = {
        f"drift of the {name}, mean over layers": mean_of(drift)
        for name, drift in zip(names, both.swapaxes(0, 1), strict=True)
    }
    given = by_trace(runs, drift_beyond_frontier)
    if np.isfinite(given).any():
        also["rank correlation of place and step, given the frontier"] = mean_of(given)
    return Finding(measured, also)


@register_claim(
    "floating/H4",
    "Anchors appear at positions that were committed a step before, more often than chance has it.",
    source=f"{_PAPER}, temporal figure of layer 0",
    reported="three positions of one example do so",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "beyond chance",
            "share of new anchors that were committed a step before, end tokens left out, less "
            "the share of all keys that were",
            GREATER,
            0.1,
            "one new anchor in ten; of the handful in the figure three are",
            null="anchors that begin anywhere",
        ),
        Criterion(
            "beyond other steps",
            "the same share, less what it is if commits are dealt out to other steps",
            GREATER,
            0.1,
            "one new anchor in ten",
            null="anchors that begin at written positions at any time",
            control="the same with commits dealt out to other steps",
        ),
    ),
    defect="no released code makes the input of the temporal figure",
    caveat="end tokens fill what is left of the canvas; with them in, see the last number",
)
def measure_anchor_onsets(evidence: Evidence) -> Finding:
    runs = evidence[MDM_RUNS]
    each = [anchor_onsets(trace, ANCHORS) for trace in runs.traces]
    values = np.full((runs.count, 3), np.nan)
    for index, onset in zip(runs.indices, each, strict=True):
        values[index] = onset.fresh, onset.keys, onset.shuffled
    fresh, keys, shuffled = values.T
    with_ends = by_prompt(
        evidence, MDM_RUNS, "onsets", "share_just_committed", options={"rule": ANCHORS}
    ).value
    return Finding(
        {
            "beyond chance": Measured(Estimate.mean(fresh - keys, PROMPT, DIFFERENCE), null=0.0),
            "beyond other steps": Measured(
                Estimate.mean(fresh - shuffled, PROMPT, DIFFERENCE),
                null=0.0,
                control=mean_of(shuffled),
            ),
        },
        {
            "share of onsets just committed": mean_of(fresh),
            "share of keys just committed": mean_of(keys),
            "share of onsets just committed, end tokens among them": mean_of(with_ends),
        },
    )


@register_claim(
    "floating/H5",
    "At the first layer the token decides what a key receives, deeper its position does.",
    source=f"{_PAPER}, temporal figure of layer 0",
    reported="equal tokens have equal values in one example",
    unit=PROMPT,
    needs=(MDM_RUNS,),
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
    caveat="of the logarithm of what every key receives, not of anchors alone: these are too "
    "few to learn means of tokens from",
)
def measure_token_or_position(evidence: Evidence) -> Finding:
    explained = explained_variance(evidence)
    gap = explained["token"] - explained["place"]
    deeper = gap[:, 1:].mean(axis=1) if gap.shape[1] > 1 else np.full(len(gap), np.nan)
    also = {
        f"{name}, {where}": mean_of(shares[:, layer])
        for name, shares in explained.items()
        for where, layer in (("first layer", 0), ("last layer", -1))
    }
    return Finding(
        {
            "first layer": Measured(Estimate.mean(gap[:, 0], PROMPT), null=0.0),
            "deeper layers": Measured(Estimate.mean(deeper, PROMPT), null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H6",
    "Attention is spread over many anchors in shallow layers and sparse in deep ones.",
    source=f"{_PAPER}, README",
    reported="qualitative; 2510.15731: one or two sinks in deep layers",
    unit=PROMPT,
    needs=(MDM_RUNS,),
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
    draw=draw_spread,
    defect="mean + 3 sd cannot flag more than a tenth of the positions, so that spread anchors "
    "are not seen",
    caveat="a detector that finds hardly an anchor in shallow layers cannot lose any, and is "
    "only reported",
)
def measure_sparser_with_depth(evidence: Evidence) -> Finding:
    spread = by_prompt(evidence, MDM_RUNS, "concentration", "effective_share", over="layer").value
    # 1. part of the anchors that deep layers lose, by each detector that finds enough of them
    falls, also, most = [], {}, 0.0
    for rule in DETECTORS:
        options = {"rule": rule}
        count = by_prompt(evidence, MDM_RUNS, "sinks", "count", over="layer", options=options).value
        halves = np.column_stack([first_half_mean(count), last_half_mean(count)])
        for half, mean in zip(("shallow", "deep"), means_of(halves), strict=True):
            also[f"anchors of a head by {rule}, {half} half"] = float(mean)
        many = also[f"anchors of a head by {rule}, shallow half"]
        most = max(most, many)
        if many >= FEWEST_SHALLOW_ANCHORS:
            falls.append(Estimate.jackknife(halves, share_lost, PROMPT))
    if not falls:
        raise EvidenceError(
            f"{ROLES['mdm'][0]} whose heads have {FEWEST_SHALLOW_ANCHORS:g} anchors or more in "
            f"shallow layers, by any detector: this one's have {most:.2g} at most"
        )
    # 2. the effective number of keys, which needs no detector
    also |= {
        f"effective share of keys, {where} layer": mean_of(spread[:, layer])
        for where, layer in (("first", 0), ("last", -1))
    }
    return Finding(
        {
            "keys": Measured(Estimate.mean(depth_slope(spread), PROMPT), null=0.0),
            "anchors": Measured(Least.among(falls), null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H7",
    "A masked diffusion model's anchors absorb less attention than an autoregressive model's sink.",
    source=f"{_PAPER}, absorption figure",
    reported="74.5 / 63.0 % (Llama, Qwen) against 34.1 / 18.4 % (Dream, LLaDA)",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=tuple(
        Criterion(
            name,
            f"attention beyond what even attention under the same visibility gives, on {words} "
            "by that, MDM less ARM on the same prompts",
            LESS,
            ABSORBS_LESS_BY,
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
    draw=draw_absorption,
    defect=_DETECTOR + "; models are compared with other prompts, lengths and sets of keys",
)
def measure_absorbs_less(evidence: Evidence) -> Finding:
    mdm, arm = (absorbed_shares(evidence, spec) for spec in (MDM_RUNS, ARM_RUNS))
    if not mean_of(arm["top1"]) > -ABSORBS_LESS_BY:
        raise EvidenceError(  # less than that by the same amount would be below nothing
            f"{ROLES['arm'][0]} with a sink, whose greatest key takes {-ABSORBS_LESS_BY:g} of "
            f"attention or more beyond even attention: this one's takes {mean_of(arm['top1']):.3f}"
        )
    measured = {
        name: Measured(Estimate.mean(own - arm[name], PROMPT, (-2.0, 2.0)), 0.0, mean_of(arm[name]))
        for name, own in mdm.items()
    }
    also = {f"MDM, {name}": mean_of(own) for name, own in mdm.items()}
    also["as published: MDM, its greatest key"] = mean_of(
        absorbed_share(evidence, MDM_RUNS, "top1").value
    )
    also["as published: ARM, its first key"] = mean_of(
        absorbed_share(evidence, ARM_RUNS, "first").value
    )
    return Finding(measured, also)


@register_claim(
    "floating/H8",
    "The detector's fault matters: absorption by detected anchors is not that of one key.",
    source=f"{_PAPER}, absorption script",
    reported="not reported; a simulation gives 84 against 28.5 %",
    unit=PROMPT,
    needs=(MDM_RUNS,),
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
    defect=_DETECTOR,
)
def measure_more_than_one_key(evidence: Evidence) -> Finding:
    every, single = (
        absorbed_share(evidence, MDM_RUNS, name).value for name in (str(floating()), "top1")
    )
    times = Estimate.mean(np.log2(every / single), PROMPT)
    return Finding(
        {"more": Measured(times, 0.0)},
        {
            "times": float(2**times.value),
            "by all anchors": mean_of(every),
            "by the greatest": mean_of(single),
        },
    )


@register_claim(
    "floating/H9",
    "Absorption grows with depth in masked diffusion models.",
    source=f"{_PAPER}, absorption figure",
    reported="thirds of the layers: LLaDA 12 / 19 / 25 %, Dream 23 / 37 / 44 %",
    unit=PROMPT,
    needs=(MDM_RUNS,),
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
    draw=draw_absorption_by_depth,
    defect=_DETECTOR,
)
def measure_absorption_growth(evidence: Evidence) -> Finding:
    single = absorbed_share(evidence, MDM_RUNS, "top1", over="layer")
    every = absorbed_share(evidence, MDM_RUNS, str(floating()), over="layer")
    also = {f"layer {layer}": float(share) for layer, share in enumerate(means_of(single.value))}
    also["rise, by all anchors"] = mean_of(depth_slope(every.value - every.null))
    effect = Estimate.mean(depth_slope(single.value - single.null), PROMPT)
    return Finding({"rise": Measured(effect, null=0.0)}, also)


@register_claim(
    "floating/H10",
    "A diffusion model made from an autoregressive one inherits the layer at which its sink "
    "begins.",
    source=f"{_PAPER}, absorption figure",
    reported="Dream and Qwen2.5 both at layer 4",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS, *WEIGHTS.values()),
    criteria=(
        Criterion(
            "apart",
            "distance in layers between the places where attention on the greatest key, "
            "beyond even attention, rises most (one change of the mean), MDM and ARM of one "
            "origin, the same prompts",
            LESS,
            0.5,
            "nearer to the same layer than to the next",
            null="two places drawn evenly",
        ),
    ),
    defect=_DETECTOR,
    caveat="one pair of networks, whose weights show one origin; the fewer layers, the "
    "likelier the same one by chance. The lab's two go on from one next-token network, so that "
    "neither is the other's parent",
)
def measure_inherited_layer(evidence: Evidence) -> Finding:
    # 1. only networks of one origin can have inherited anything
    related = weight_correlation(*(evidence[spec] for spec in WEIGHTS.values()))
    if not related >= SAME_ORIGIN:
        raise EvidenceError(
            "a masked diffusion model and an autoregressive one of one origin, such as Dream and "
            f"Qwen2.5: the weights of these have a correlation of {related:.2f}"
        )
    # 2. [prompt, layer] attention on the top key beyond even attention
    mdm, arm = (
        share.value - share.null
        for share in (
            absorbed_share(evidence, spec, "top1", over="layer") for spec in (MDM_RUNS, ARM_RUNS)
        )
    )
    layers = mdm.shape[1]
    if layers < FEWEST_LAYERS:
        raise EvidenceError(f"models of {FEWEST_LAYERS} layers or more: these have {layers}")
    # 3. both must have a layer at which the sink begins
    also = {}
    for role, profiles in (("mdm", mdm), ("arm", arm)):
        also[f"first layer after the change, {role.upper()}"] = mean_of(
            onset_layer(means_of(profiles)[None])
        )
        also[f"rise there, {role.upper()}"] = risen = mean_of(onset_rise(profiles))
        if not risen > LEAST_RISE:  # a place is found in any profile: what does not begin has none
            raise EvidenceError(
                f"{ROLES[role][0]} whose sink begins at some layer, where attention on the "
                f"greatest key rises by more than {LEAST_RISE:g}: this one's rises by {risen:.3f}"
            )
    # 4. how far these layers are apart, prompt by prompt
    apart = np.abs(onset_layer(mdm) - onset_layer(arm))
    effect = Estimate.mean(apart, PROMPT, (0.0, layers - 2.0))
    return Finding(
        {"apart": Measured(effect, chance_distance(layers))},
        also | {"correlation of weights": related},
    )


@register_claim(
    "floating/H11",
    "Deep anchors are made by the angle between query and key, shallow ones also by norms.",
    source=f"{_PAPER}, QK figure",
    reported="angle 63 %, norm 37 % at layer 11; 128 and -28 % at layer 28",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "deep norm",
            "norm's part of an anchor's logit advantage (Shapley, over the sizes of both "
            "parts), last half of the layers",
            LESS,
            0.1,
            "under a tenth is mainly angle; -.18 follows from the figure's layer 28",
            null="a key like the others",
        ),
        Criterion(
            "shallow norm",
            "the same of the first half",
            GREATER,
            0.1,
            "a tenth is a joint effect; .37 at the figure's layer 11",
            null="a key like the others",
        ),
        Criterion(
            "rise of the angle",
            "change of the angle's part from the first layer to the last (least squares)",
            GREATER,
            0.1,
            "a tenth, where the figure has a third between two layers",
            null="all layers alike",
        ),
    ),
    draw=draw_angle_and_norm,
    defect="vectors are averaged over heads before the cosine; grouped heads are mismatched",
    caveat="a network that normalises queries and keys leaves norms little room to differ",
)
def measure_angle_and_norm(evidence: Evidence) -> Finding:
    angle, norm = (
        by_prompt(evidence, MDM_RUNS, "qk_split", name, over="layer", options=ANCHOR_RULE).value
        for name in ("angle_share", "norm_share")
    )
    longer = norm_helps(evidence)
    also = {
        f"{name}, {where} half": mean_of(half(shares))
        for name, shares in (
            ("angle share", angle),
            ("norm share", norm),
            ("heads in which the norm helps", longer),
        )
        for where, half in (("shallow", first_half_mean), ("deep", last_half_mean))
    }
    return Finding(
        {
            "deep norm": Measured(
                Estimate.mean(last_half_mean(norm), PROMPT, DIFFERENCE), null=0.0
            ),
            "shallow norm": Measured(
                Estimate.mean(first_half_mean(norm), PROMPT, DIFFERENCE), null=0.0
            ),
            "rise of the angle": Measured(Estimate.mean(depth_slope(angle), PROMPT), null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H12",
    "Anchor keys have a small norm in deep layers.",
    source=f"{_PAPER}, QK figure",
    reported="norm product 4.73 against 7.06 at layer 28",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "ratio",
            "norm of an anchor's key over that of the other keys of its head, last half of the "
            "layers",
            LESS,
            0.95,
            "a twentieth shorter; a third in the figure",
            null="a key like the others",
        ),
    ),
    defect="vectors are averaged over heads before the norm",
    caveat="a network that normalises keys leaves their norms little room to differ",
)
def measure_short_keys(evidence: Evidence) -> Finding:
    ratio = by_prompt(
        evidence, MDM_RUNS, "key_norms", "ratio", over="layer", options=ANCHOR_RULE
    ).value
    also = {f"layer {layer}": float(value) for layer, value in enumerate(means_of(ratio))}
    return Finding(
        {"ratio": Measured(Estimate.mean(last_half_mean(ratio), PROMPT), null=1.0)}, also
    )


@register_claim(
    "floating/H13",
    "Retrieval heads of masked diffusion models lie deep, deeper than those of autoregressive "
    "ones.",
    source=f"{_PAPER}, retrieval-head maps",
    reported="weighted relative depth .62 (LLaDA), .66 (Dream); ARMs .46 to .63",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "deep",
            "mean relative depth of layers, weighted by the attention to the gold passage of "
            "the rows that predict the answer, MDM",
            GREATER,
            0.5,
            "one half is what layers that retrieve alike give",
            null="layers that retrieve alike",
            published={"LLaDA": 0.62, "Dream": 0.66},
        ),
        Criterion(
            "beside other passages",
            "the same, less that of attention to the passages without the answer, scaled to "
            "gold's length",
            GREATER,
            0.0,
            "layers that look at any passage alike deep do not retrieve deeper",
            null="passages alike",
            control="the passages without the answer",
        ),
        Criterion(
            "beside the ARM",
            "the same, less that of the ARM on the same prompts",
            GREATER,
            0.0,
            "deeper is what is claimed",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    draw=draw_retrieval_map,
    defect=_NO_SCRIPT,
    caveat="the published score is not known; attention to the evidence is the likeliest. Of "
    "prompts that both models answer rightly",
)
def measure_retrieval_depth(evidence: Evidence) -> Finding:
    # 1. [prompt, layer] attention to gold and to other passages, mean over heads
    mdm, arm = retrieval_scores(evidence)
    mine, other, theirs = (
        scores.mean(axis=2) for scores in (mdm["gold"], mdm["other"], arm["gold"])
    )
    layers = mine.shape[1]

    # 2. a difference of depths is a function of mean rows: jackknifed over prompts, both at once
    def apart(means: np.ndarray) -> float:
        return weighted_depth(means[:layers]) - weighted_depth(means[layers:])

    def beside(attention: np.ndarray) -> Measured:
        effect = Estimate.jackknife(np.hstack([mine, attention]), apart, PROMPT)
        return Measured(
            replace(effect, bounds=DIFFERENCE), 0.0, weighted_depth(means_of(attention))
        )

    own = replace(Estimate.jackknife(mine, weighted_depth, PROMPT), bounds=SHARE)
    return Finding(
        {
            "deep": Measured(own, 0.5),
            "beside other passages": beside(other),
            "beside the ARM": beside(theirs),
        },
        {
            f"attention to gold, {where} layer": mean_of(mine[:, layer])
            for where, layer in (("first", 0), ("last", -1))
        },
    )


@register_claim(
    "floating/H14",
    "Retrieval heads of masked diffusion models are few, and no larger a part of all than in "
    "autoregressive ones.",
    source=f"{_PAPER}, retrieval-head maps",
    reported="ARMs 2 to 6 % at .1 or more; the MDM map has 20 % at .5 or more, on an unknown scale",
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "mdm",
            "share of the heads that copying is effectively spread over: (sum of scores)^2 "
            "over heads times sum of squares, score: share of the answer's tokens whose row "
            "looks most at the same token of the gold passage",
            LESS,
            0.25,
            "a quarter lies between maps that are mostly zeros (Wu et al.) and the published "
            "one of LLaDA, where a fifth of the heads score .5 or more",
            null="all heads alike",
        ),
        Criterion(
            "beside the ARM",
            "the same, less that of the ARM on the same prompts",
            LESS,
            0.1,
            "a tenth of the heads: the published map of the MDM has a fifth, ARMs 2 to 6 %",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    draw=draw_retrieval_map,
    defect=_NO_SCRIPT,
    caveat="a share of heads above a threshold has no standard error over prompts, so that an "
    "effective number stands for it. Of prompts that both models answer rightly",
)
def measure_few_retrieval_heads(evidence: Evidence) -> Finding:
    copies = [
        scores["copy"].reshape(len(scores["copy"]), -1) for scores in retrieval_scores(evidence)
    ]
    heads = copies[0].shape[1]

    def apart(means: np.ndarray) -> float:
        return effective_share_of_heads(means[:heads]) - effective_share_of_heads(means[heads:])

    mdm = replace(Estimate.jackknife(copies[0], effective_share_of_heads, PROMPT), bounds=SHARE)
    beside = replace(Estimate.jackknife(np.hstack(copies), apart, PROMPT), bounds=DIFFERENCE)
    arm = effective_share_of_heads(means_of(copies[1]))
    also = {
        f"share of heads that copy at least a tenth, {role}": float(
            (means_of(scores) >= RETRIEVAL_SCORE).mean()
        )
        for role, scores in zip(("MDM", "ARM"), copies, strict=True)
    }
    return Finding({"mdm": Measured(mdm, 1.0), "beside the ARM": Measured(beside, 0.0, arm)}, also)


@register_claim(
    "floating/H15",
    "Retrieval heads matter: taking them out costs answers, more than as many others of the "
    "same layers.",
    source=f"{_PAPER}; Wu et al. for autoregressive models",
    reported="large drop in ARMs; not reported for MDMs",
    unit=ITEM,
    needs=tuple(KNOCKED_OUT_HEADS.values()),
    criteria=tuple(
        Criterion(
            role,
            "accuracy with the heads that look most at the evidence taken out, less that with "
            f"as many others of the same layers, {role.upper()}",
            LESS,
            -0.05,
            "five points",
            null="the same as the control",
            control="as many other heads of the same layers, less unedited",
        )
        for role in KNOCKED_OUT_HEADS
    ),
    defect=_NO_SCRIPT + "; in Wu et al.'s control the heads under test are never left out",
    caveat="heads are found on other prompts, answered rightly beside another passage; 3 % of "
    "them, two at least. Questions have their own passage only, and other heads are drawn for "
    "each",
)
def measure_heads_matter(evidence: Evidence) -> Finding:
    measured, also = {}, {}
    for role, spec in KNOCKED_OUT_HEADS.items():
        table: pd.DataFrame = evidence[spec]
        whole, heads, others = (
            table[f"right_{name}"].to_numpy(dtype=float) for name in ("none", "heads", "others")
        )
        require_accuracy(mean_of(whole), LEAST_ACCURACY, ROLES[role][0])
        control = mean_of(others - whole)
        measured[role] = Measured(Estimate.pairs(heads, others, ITEM), 0.0, control)
        also[f"{role.upper()} unedited"] = mean_of(whole)
        also[f"{role.upper()} without {int(table['heads'].iloc[0])} retrieval heads"] = mean_of(
            heads
        )
    return Finding(measured, also)


@register_claim(
    "floating/H16",
    "Shallow anchors are structural tokens, deep attention is on content.",
    source=f"{_PAPER}, abstract",
    reported="qualitative",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "anchors",
            "change from the first layer to the last (least squares) of the part of the "
            "anchors' attention that is on structural tokens, beyond even attention",
            LESS,
            -0.1,
            "a tenth of the anchors' attention",
            null="all layers alike",
        ),
        Criterion(
            "content",
            "the same of the share of all attention on content, beyond even attention",
            GREATER,
            0.05,
            "a twentieth of all attention",
            null="all layers alike",
        ),
    ),
    draw=draw_structure,
    defect="no figure shows a token",
    caveat="structure is punctuation, line breaks, function words, special tokens and the "
    "prompt's template; a masked position is neither",
)
def measure_structure_then_content(evidence: Evidence) -> Finding:
    kinds = {
        name: by_prompt(
            evidence,
            MDM_RUNS,
            "structure",
            name,
            over="layer",
            options=ANCHOR_RULE | {"template": TEMPLATE_WORDS},
        )
        for name in ("structure_of_sinks", "content")
    }
    sinks, content = kinds["structure_of_sinks"], kinds["content"]
    also = {
        f"{words}, {where} layer": mean_of(quantity.value[:, layer])
        for words, quantity in (
            ("structure among anchors", sinks),
            ("attention on content", content),
        )
        for where, layer in (("first", 0), ("last", -1))
    }
    fall = Estimate.mean(depth_slope(sinks.value - sinks.null), PROMPT)
    more = Estimate.mean(depth_slope(content.value - content.null), PROMPT)
    return Finding({"anchors": Measured(fall, null=0.0), "content": Measured(more, null=0.0)}, also)


@register_claim(
    "floating/H17",
    "Anchors are needed: hiding them in shallow layers changes predictions more than hiding as "
    "many other keys of the same kind, and more than in deep layers.",
    source=f"{_PAPER}, abstract; 2510.15731 says hiding the greatest costs under a point",
    reported="not reported",
    unit=PROMPT,
    needs=(HALVES,),
    criteria=(
        Criterion(
            "beyond the control",
            "KL from the unedited distribution, in nats, anchors hidden in the first half of "
            "the layers less other keys hidden there",
            GREATER,
            0.01,
            "a hundredth of a nat is hardly a change of any answer",
            null="the same as the control",
            control="as many other keys of the same kind of token",
        ),
        Criterion(
            "beside deep layers",
            "the same, less that of the last half",
            GREATER,
            0.01,
            "a hundredth of a nat",
            null="both halves alike",
            control="the last half",
        ),
    ),
    defect="no intervention was released",
    caveat="up to three keys above mean + 3 sd of each head. KL says that predictions change, "
    "not that they become worse; halves differ in how much attention is hidden, which is given "
    "beside",
)
def measure_shallow_anchors_needed(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[HALVES]
    wide = table.pivot(index="unit", columns="half")
    own, deeper = (wide["did"][half].to_numpy(dtype=float) for half in ("shallow", "deep"))
    also = {
        f"KL, {words}, {half}": mean_of(wide[name][half])
        for words, name in (
            ("anchors hidden", "difference"),
            ("others hidden", "control_difference"),
        )
        for half in ("shallow", "deep")
    }
    for half in ("shallow", "deep"):
        for words, arm in (("anchors", "edited"), ("others", "control")):
            for what, name in (("keys of a head", "hidden_keys"), ("attention", "hidden_share")):
                also[f"{what} hidden, {words}, {half}"] = mean_of(wide[f"{name}_{arm}"][half])
    control = mean_of(wide["control_difference"]["shallow"])
    return Finding(
        {
            "beyond the control": Measured(Estimate.mean(own, PROMPT), 0.0, control),
            "beside deep layers": Measured(
                Estimate.mean(own - deeper, PROMPT), 0.0, mean_of(deeper)
            ),
        },
        also,
    )


@register_claim(
    "floating/H18",
    "The gold passage is attended to wherever it stands.",
    source=f"{_PAPER}, flow figures",
    reported="gold over other passages 1.47 / 1.50 / 1.42 at first, middle and last place, one "
    "example",
    unit=PROMPT,
    needs=(GOLD_ATTENTION,),
    criteria=(
        Criterion(
            "attended",
            "log2 of how much more the answer looks at a token of gold than at one of another "
            "passage, mean over gold first, middle and last, the same items",
            GREATER,
            TENTH,
            "ten per cent more; 42 to 50 are reported",
            null="passages alike",
            published={"one example": (log2(1.47) + log2(1.50) + log2(1.42)) / 3},
        ),
        Criterion(
            "first and last",
            "the same with gold first, less with gold last",
            EQUAL,
            TENTH,
            "ten per cent either way",
            null="no difference between places",
            published={"one example": log2(1.47) - log2(1.42)},
        ),
        Criterion(
            "middle and ends",
            "the same with gold in the middle, less the mean of first and last",
            EQUAL,
            TENTH,
            "ten per cent either way",
            null="no difference between places",
            published={"one example": log2(1.50) - (log2(1.47) + log2(1.42)) / 2},
        ),
    ),
    defect="flow is not divided by length; one example; all rows of the map are equal",
    caveat="direct attention, in all layers, of the rows that predict the answer's tokens when "
    "they do, whether the answer is right or wrong; three passages",
)
def measure_gold_anywhere(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[GOLD_ATTENTION]
    wide = table.pivot(index="unit", columns="place", values="lift").astype(float)
    logs = np.log2(wide.where(wide > 0))
    first, middle, last = (logs[name].to_numpy() for name in ("first", "middle", "last"))
    also = {
        f"times, gold {name}": float(2 ** mean_of(logs[name]))
        for name in ("first", "middle", "last")
    }
    also["right"] = mean_of(table["right"])
    return Finding(
        {
            "attended": Measured(Estimate.mean((first + middle + last) / 3, PROMPT), null=0.0),
            "first and last": Measured(Estimate.mean(first - last, PROMPT), null=0.0),
            "middle and ends": Measured(
                Estimate.mean(middle - (first + last) / 2, PROMPT), null=0.0
            ),
        },
        also,
    )


@register_claim(
    "floating/H19",
    "The contrast of rollouts between models is the mask's: even causal attention flows into "
    "the first token as well.",
    source=f"{_PAPER}, flow figures",
    reported="Llama 1.00 into the first token; a simulation without any sink .72 to .89",
    unit=PROMPT,
    needs=tuple(ROLLOUTS.values()),
    criteria=(
        Criterion(
            "null",
            "published rollout from the answer into the first token: that of even causal "
            "attention, less nine tenths of the ARM's",
            GREATER,
            0.0,
            "nine tenths is nearly all of it",
        ),
        Criterion(
            "contrast",
            "the same of the difference between ARM and MDM: that of even attention under "
            "either mask, less nine tenths of the models'",
            GREATER,
            0.0,
            "nine tenths is nearly all of it",
        ),
    ),
    defect="in a causal model the first row can only look at itself and absorbs everything",
    caveat="the more layers, the more flows into the first token; this is of the model's own. "
    "Whether answers look otherwise once the first token is left out is floating/H18's",
)
def measure_rollout_of_mask(evidence: Evidence) -> Finding:
    # 1. both models side by side, a row for each prompt
    arm, mdm = (
        evidence[ROLLOUTS[role]].set_index("unit").add_suffix(f" {role}") for role in ("arm", "mdm")
    )
    both: pd.DataFrame = arm.join(mdm, how="outer")

    def of(name: str) -> np.ndarray:
        return both[name].to_numpy(dtype=float)

    # 2. without a contrast there is nothing to explain
    contrast = of("value arm") - of("value mdm")
    if not mean_of(contrast) > LEAST_CONTRAST:
        raise EvidenceError(
            "models whose rollouts differ: into the first token by more than "
            f"{LEAST_CONTRAST:g}, as published ones do by nearly 1: these differ by "
            f"{mean_of(contrast):.3f}"
        )
    # 3. what even attention under either mask gives, less nine tenths of what the models give
    of_masks = of("null arm") - of("null mdm")
    also = {
        f"{words}, {role.upper()}": mean_of(of(f"{name} {role}"))
        for role in ROLLOUTS
        for words, name in (
            ("into the first token", "value"),
            ("of even attention", "null"),
            ("Dobrushin coefficient", "dobrushin"),
        )
    }
    share = Estimate.mean(of("null arm") - 0.9 * of("value arm"), PROMPT, (-0.9, 1.0))
    mask = Estimate.mean(of_masks - 0.9 * contrast, PROMPT, (-1.9, 1.9))
    return Finding({"null": Measured(share), "contrast": Measured(mask)}, also)


@register_claim(
    "floating/H20",
    "Masked diffusion models are not lost in the middle, and less than autoregressive ones.",
    source=f"{_PAPER}, stress tests; 2511.21338 reports the contrary, a bias to what is near",
    reported="claimed, numbers not known to us",
    unit=ITEM,
    needs=(GOLD_POSITIONS,),
    criteria=(
        Criterion(
            "mdm",
            "U-index of the MDM: accuracy with the evidence first or last of five, less in the "
            "middle",
            LESS,
            0.05,
            "five points; lost in the middle are models that lose ten or twenty",
            null="places alike",
        ),
        Criterion(
            "beside the ARM",
            "the same, less that of the ARM, the same items",
            LESS,
            -0.01,
            "a point is the least that would matter",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    draw=draw_positions,
    defect="no code for the stress tests was released",
    caveat="an MDM answers in a fixed number of positions, of which those after the answer are "
    "masks for a while; 2511.21338 finds these harmful, and their number is not varied here",
)
def measure_not_lost_in_middle(evidence: Evidence) -> Finding:
    scores = scores_by_role(evidence, GOLD_POSITIONS)
    index, also = {}, {}
    for role, right in scores.items():
        index[role] = (right[:, 0] + right[:, 2]) / 2 - right[:, 1]
        also[f"last less first, {role.upper()}"] = mean_of(right[:, 2] - right[:, 0])
        also[f"accuracy, {role.upper()}"] = mean_of(right)
    apart = mean_score(index["mdm"] - index["arm"], ITEM, (-2.0, 2.0))
    beside = mean_of(index["arm"])
    return Finding(
        {
            "mdm": Measured(mean_score(index["mdm"], ITEM, (-1.0, 1.0)), null=0.0),
            "beside the ARM": Measured(apart, 0.0, beside),
        },
        also,
    )


@register_claim(
    "floating/H21",
    "Distracting passages cost a masked diffusion model less than an autoregressive one.",
    source=f"{_PAPER}, stress tests",
    reported="claimed, numbers not known to us",
    unit=ITEM,
    needs=(DISTRACTED,),
    criteria=(
        Criterion(
            "slope",
            "change of accuracy per doubling of the passages, MDM less ARM, the same items",
            GREATER,
            0.01,
            "a point for each doubling is the least that would matter",
            null="no difference between the models",
        ),
    ),
    draw=draw_noise,
    defect="no code for the stress tests was released",
    caveat="a line in accuracy and not in its logarithmic odds: what is claimed is lost "
    "answers, and an item that is always right has no odds. Who has more to lose falls more "
    "steeply, so that accuracy without distractors is given for both",
)
def measure_flatter_under_noise(evidence: Evidence) -> Finding:
    roles, of = ("mdm", "arm"), slope(DOUBLINGS)
    cells = [(role, context, "none") for role in roles for context in DISTRACTED.contexts]
    scores = by_item(evidence, DISTRACTED, cells)
    half = len(DISTRACTED.contexts)
    for role, share in zip(roles, means_of(scores)[[0, half]], strict=True):
        require_accuracy(float(share), LEAST_ACCURACY, ROLES[role][0])
    mdm, arm = of(scores[:, :half]), of(scores[:, half:])
    also = {
        f"slope of the {role.upper()}": mean_of(x)
        for role, x in zip(roles, (mdm, arm), strict=True)
    }
    for role, share in zip(roles, means_of(scores)[[0, half]], strict=True):
        also[f"accuracy without distractors, {role.upper()}"] = float(share)
    steepest = float(np.abs(of(np.eye(half))).sum())  # right before the middle, wrong after it
    effect = mean_score(mdm - arm, ITEM, (-steepest, steepest))
    return Finding({"slope": Measured(effect, null=0.0)}, also)


@register_claim(
    "floating/H22",
    "Evidence in two passages that are apart, or in the other order, costs a masked diffusion "
    "model less than an autoregressive one.",
    source=f"{_PAPER}, stress tests",
    reported="claimed, numbers not known to us",
    unit=ITEM,
    needs=(LAYOUTS,),
    criteria=(
        Criterion(
            "far",
            "accuracy with the two passages side by side, less with two others between them, "
            "MDM less ARM, the same items",
            LESS,
            -0.01,
            "a point is the least that would matter",
            null="no difference between the models",
            control="the ARM",
        ),
        Criterion(
            "order",
            "accuracy with the first hop first, less with the second first, MDM less ARM",
            LESS,
            -0.01,
            "a point is the least that would matter",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    defect="no code for the stress tests was released",
)
def measure_two_passages(evidence: Evidence) -> Finding:
    scores = scores_by_role(evidence, LAYOUTS)
    measured, also = {}, {}
    for name, other in (("far", 1), ("order", 2)):
        cost = {role: right[:, 0] - right[:, other] for role, right in scores.items()}
        effect = mean_score(cost["mdm"] - cost["arm"], ITEM, (-2.0, 2.0))
        measured[name] = Measured(effect, 0.0, mean_of(cost["arm"]))
        also[f"cost to the MDM, {name}"] = mean_of(cost["mdm"])
    return Finding(measured, also)


@register_claim(
    "floating/H23",
    "Passages help a masked diffusion model twice as much as an autoregressive one.",
    source=f"{_PAPER}, Table 1",
    reported="mean gain 19.46 against 8.51 points (2.29 times); Dream alone 1.56 times; with "
    "passages 43.8 against 37.0",
    unit=ITEM,
    needs=(GAIN,),
    criteria=(
        Criterion(
            "doubles",
            "gain of the MDM less twice the gain of the ARM, in accuracy, the same items",
            GREATER,
            0.0,
            "double is what is claimed; as a difference it needs no division by a small gain",
            null="equal gains",
            control="the gain of the ARM",
            published={"all models": 0.1946 - 2 * 0.0851},
        ),
    ),
    draw=draw_gains,
    defect="LLaDA, the model with the largest gain, has a prompt of its own; Llama gets two "
    "first tokens; the code of the closed book is missing",
    caveat="one prompt, one metric and greedy answers for both models",
)
def measure_gain_doubles(evidence: Evidence) -> Finding:
    cells = [(role, context, "none") for role in ("mdm", "arm") for context in GAIN.contexts]
    scores = by_item(evidence, GAIN, cells)
    mdm, arm = scores[:, 1] - scores[:, 0], scores[:, 3] - scores[:, 2]
    means = means_of(scores)
    require_accuracy(
        mean_of(arm), LEAST_GAIN, f"with its passage, over the closed book, {ROLES['arm'][0]}"
    )
    gained, beside = mean_of(mdm), mean_of(arm)
    if 2 * beside > (room := 1 - float(means[0])):
        raise EvidenceError(
            f"questions of which {ROLES['mdm'][0]} could gain twice what {ROLES['arm'][0]} does: "
            f"the latter gains {beside:.3f}, the former can gain {room:.3f} at most"
        )
    also = {
        "gain of the MDM": gained,
        "gain of the ARM": beside,
        "ratio": gained / beside if beside > 0 else float("nan"),
        "MDM with passage": float(means[1]),
        "ARM with passage": float(means[3]),
        "MDM closed book": float(means[0]),
        "ARM closed book": float(means[2]),
    }
    effect = mean_score(mdm - 2 * arm, ITEM, (-3.0, 3.0))
    return Finding({"doubles": Measured(effect, null=-beside, control=beside)}, also)


@register_claim(
    "floating/H24",
    "Part of LLaDA's gain is its prompt: with the others' three examples it gains less.",
    source=f"{_PAPER}, evaluation scripts",
    reported="untested; +25.68 points with its own prompt",
    unit=ITEM,
    needs=tuple(TEMPLATES.values()),
    criteria=(
        Criterion(
            "less",
            "gain from the passage in the prompt of rules (LLaDA's), less that in the prompt "
            "with three examples (the others'), the same items",
            GREATER,
            0.01,
            "a point is the least that would matter",
            null="prompts alike",
            control="the gain in the prompt with examples",
        ),
    ),
    defect="the prompts are said to be the same and are not",
    caveat="prompts in our words; a model that was never trained on instructions may answer "
    "in neither",
)
def measure_prompt_gain(evidence: Evidence) -> Finding:
    gain, also = {}, {}
    for name, spec in TEMPLATES.items():
        right = by_item(evidence, spec, [("mdm", context, "none") for context in spec.contexts])
        gain[name] = right[:, 1] - right[:, 0]
        also[f"gain with the prompt of {name}"] = mean_of(gain[name])
    require_accuracy(
        mean_of(gain["rules"]),
        LEAST_GAIN,
        f"with its passage, over the closed book, in the prompt of rules, {ROLES['mdm'][0]}",
    )
    effect = mean_score(gain["rules"] - gain["examples"], ITEM, (-2.0, 2.0))
    return Finding({"less": Measured(effect, 0.0, mean_of(gain["examples"]))}, also)


@register_claim(
    "floating/H25",
    "Moving attention, or attention on the evidence, goes with right answers within a model.",
    source=f"{_PAPER}, abstract: it is to explain in-context learning",
    reported="untested",
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "either",
            "correlation over prompts of a right answer, given the prompt's length: with the "
            "turnover of anchors, or with attention to the gold passage beyond other passages "
            "of the rows that predict the answer, the greater of both",
            GREATER,
            0.1,
            "a hundredth of the variance is the least that would explain anything",
            null="no relation",
        ),
    ),
    caveat="what goes with right answers need not be why they are right",
)
def measure_goes_with_success(evidence: Evidence) -> Finding:
    runs, score = evidence[MDM_RUNS], score_answers(evidence, MDM_RUNS)
    good, bad = int((score == 1).sum()), int((score == 0).sum())
    if min(good, bad) < FEWEST_RIGHT:
        raise EvidenceError(
            f"{ROLES['mdm'][0]} that is right in {FEWEST_RIGHT} prompts and wrong in "
            f"{FEWEST_RIGHT} at least: this one is right in {good} and wrong in {bad}"
        )
    length = by_trace(runs, lambda trace: trace.canvas.shape[1])
    seen = by_head(evidence, MDM_RUNS)
    looks = (seen["gold"] - seen["other"]).mean(axis=(1, 2))
    moves = anchor_turnover(evidence, MDM_RUNS)
    each = {
        "moves": partial_correlation(score, moves, length),
        "evidence": partial_correlation(score, looks, length),
    }
    also = {"right": mean_of(score)}
    also |= {f"correlation, {name}": correlation.value for name, correlation in each.items()}
    for name, held_by in (("turnover", moves), ("attention to gold beyond others", looks)):
        for words, which in (("right", score == 1), ("wrong", score == 0)):
            also[f"{name}, {words} answers"] = mean_of(held_by[which])
    return Finding({"either": Measured(Greatest.among(list(each.values())), null=0.0)}, also)


@register_claim(
    "floating/H26",
    "Where anchors are depends on the task, beyond the places of the prompt's template.",
    source=f"{_PAPER}, README",
    reported="claimed without data",
    unit=PROMPT,
    needs=(MDM_RUNS, PASSAGE_RUNS),
    criteria=(
        Criterion(
            "tasks",
            "Jensen-Shannon, in bits, of a prompt's anchors by kind of token (relative to how "
            "common the kind is) from those of the other task, less from those of other "
            "prompts of its own",
            GREATER,
            0.05,
            "a twentieth of a bit: two profiles that few would call alike",
            null="tasks alike",
            control="prompts of one task",
        ),
    ),
    defect="no data and no code were released for it",
    caveat="questions with passages beside passages to go on with; words of the template, "
    "masks, and kinds of token that a prompt has none of are left out",
)
def measure_task_dependence(evidence: Evidence) -> Finding:
    questions, passages = (anchor_profiles(evidence, spec) for spec in (MDM_RUNS, PASSAGE_RUNS))
    # words that only a prompt's template has, and masks, are no other use of a text
    known = np.delete(np.arange(len(CLASSES)), [MASK, TEMPLATE])
    sides = questions[:, known], passages[:, known]
    each = np.full((2, 2, len(questions)), np.nan)  # [across or within, task, prompt]
    for task, (own, other) in enumerate((sides, sides[::-1])):
        for prompt in range(len(own)):
            rest = means_of(np.delete(own, prompt, axis=0))
            each[:, task, prompt] = divergences(own[prompt], means_of(other), rest)
    across, within = each.mean(axis=1)
    also: dict[str, float | str] = {}
    for column, name in enumerate(np.array(CLASSES)[known]):
        if np.nansum(sides[0][:, column]) + np.nansum(sides[1][:, column]):
            also |= {
                f"lift of {name}, {task}": mean_of(side[:, column])
                for task, side in zip(("asked", "told"), sides, strict=True)
                if not np.isnan(side[:, column]).all()
            }
    effect = Estimate.mean(across - within, PROMPT, (-1.0, 1.0))
    return Finding({"tasks": Measured(effect, 0.0, mean_of(within))}, also)


@register_claim(
    "floating/H27",
    "Masked and other positions use different anchors.",
    source="arXiv 2510.15731, Fig. 6a, beside 2601.07894",
    reported="qualitative",
    unit=PROMPT,
    needs=(WRITTEN_QUERIES,),
    criteria=(
        Criterion(
            "apart",
            "Jensen-Shannon, in bits, between the anchors in the prompt that positions of the "
            "answer use while they are masked and once they are written, less that of as many "
            "positions that stayed as they were in the same steps",
            GREATER,
            0.05,
            "a twentieth of a bit",
            null="queries alike",
            control="positions that stayed as they were",
        ),
    ),
    caveat="masked and written positions stand apart, so that each is compared with itself: "
    "attention to what is near is then no difference. Most of what is written is end tokens",
)
def measure_masked_queries(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[WRITTEN_QUERIES]
    wide = table.pivot(index="unit", columns="layer")
    value, null = (wide[name].to_numpy(dtype=float) for name in ("value", "null"))
    effect = Estimate.mean((value - null).mean(axis=1), PROMPT, (-1.0, 1.0))
    return Finding(
        {"apart": Measured(effect, 0.0, mean_of(null))},
        {
            "last half of the layers": mean_of(last_half_mean(value - null)),
            "heads whose greatest key is another": mean_of(wide["elsewhere"]),
        },
    )
