"""The claims of the attention floating paper (arXiv 2601.07894), in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from anchorwatch.errors import EvidenceError
from anchorwatch.evaluation.tables import slope
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.token_classes import CLASSES, MASK, TEMPLATE
from anchorwatch.studies.claim import (
    CODE,
    EQUAL,
    GREATER,
    LESS,
    NEIGHBOUR,
    OURS,
    PAPER,
    Change,
    Criterion,
    Finding,
    Measured,
    Paper,
    Precondition,
    register_claim,
    register_paper,
)
from anchorwatch.studies.estimate import (
    ITEM,
    PROMPT,
    Bootstrap,
    Estimate,
    Greatest,
    Least,
    mean_score,
)
from anchorwatch.studies.evidence import ROLES, Answers, Evidence, Runs
from anchorwatch.studies.measure import (
    ARM_RUNS,
    DIFFERENCE,
    FEWEST_RIGHT,
    MDM_RUNS,
    SHARE,
    by_item,
    by_prompt,
    by_trace,
    depth_slope,
    end_share,
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
    ARM_TEXT_RUNS,
    DETECTORS,
    DISTRACTED,
    DOUBLINGS,
    FIXED,
    FROZEN_TEXT_RUNS,
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
    REWRITTEN_QUERIES,
    ROLLOUTS,
    SAME_ORIGIN,
    SHALLOW_AND_DEEP,
    TEMPLATES,
    TENTH,
    TEXT_RUNS,
    WEIGHTS,
    absorbed_by_layer,
    absorbed_share,
    absorbed_shares,
    anchor_drift,
    anchor_onsets,
    anchor_profiles,
    anchor_turnover,
    angle_sizes,
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
    fixed_shares,
    floating,
    greatest_keys,
    layout_costs,
    map_anchor_counts,
    mean_gain,
    norm_helps,
    of_right_answers,
    onset_layer,
    onset_rise,
    partial_correlation,
    predicting_turnover,
    retrieval_scores,
    score_answers,
    scores_by_role,
    share_lost,
    turnover_across_layers,
    u_index,
    weight_correlation,
)
from anchorwatch.studies.papers.sinks.measures import is_trained
from anchorwatch.studies.preconditions import (
    has_anchors,
    has_first_key_sink,
    has_heads,
    has_layers,
    head_mean,
    keys_not_normalised,
    leaves_room_to_fall,
    leaves_room_to_rise,
    loses_something,
    writes_text,
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


def _arm_has_sink(evidence: Evidence) -> float:
    return mean_of(absorbed_shares(evidence, ARM_RUNS)["top1"])


_ARM_HAS_SINK = Precondition(
    "an autoregressive model with a sink, wherever it is",
    "attention of its heads on their greatest key beyond even attention",
    -ABSORBS_LESS_BY,
    "a tenth of all attention; where the sink stands can be asked of a model that has one",
    _arm_has_sink,
    (ARM_RUNS,),
)
_SHALLOW_ANCHORS = Precondition(
    "anchors in shallow layers",
    "the mean number of anchors (mean + 3 sd) of head-mean maps in the first half of the layers",
    1.0,
    "where there is hardly one, there cannot be fewer",
    lambda evidence: mean_of(first_half_mean(map_anchor_counts(evidence, MDM_RUNS))),
    (MDM_RUNS,),
)
_TRAINED = Change(
    "Asked of trained networks.",
    "anchors are learnt; the rule fires on random weights too, where keys differ by chance",
    "asked of any network with anchors: floating/H8 was supported, and H27 refuted, on random "
    "weights",
)
_ONE_ORIGIN = Precondition(
    "a masked diffusion model and an autoregressive one of one origin, such as Dream and Qwen2.5",
    "the correlation of their weights at the same places",
    SAME_ORIGIN,
    "networks trained apart have 0",
    lambda evidence: weight_correlation(*(evidence[spec] for spec in WEIGHTS.values())),
    tuple(WEIGHTS.values()),
)


def _rise(spec: Runs) -> Callable[[Evidence], float]:
    return lambda evidence: mean_of(onset_rise(absorbed_by_layer(evidence, spec)["top1"]))


_SINK_BEGINS = {
    spec.role: Precondition(
        f"{ROLES[spec.role][0]} whose sink begins at some layer",
        "the rise of attention on the greatest key at the layer where it rises most",
        LEAST_RISE,
        "a place is found in any profile: what does not begin has none",
        _rise(spec),
        (spec,),
    )
    for spec in (MDM_RUNS, ARM_RUNS)
}
_RIGHT_PROMPTS = Precondition(
    "prompts that the masked diffusion model answers rightly",
    "their number",
    FEWEST_RIGHT,
    "what heads look at while a wrong answer is written is no retrieval",
    lambda evidence: float((score_answers(evidence, MDM_RUNS) == 1).sum()),
    (MDM_RUNS,),
)
_GOLD_ANSWERED = Precondition(
    "a masked diffusion model that finds the evidence",
    "the share of its answers that are right, with the passage at each place,",
    LEAST_ACCURACY,
    "what a wrong answer looks at says nothing of evidence",
    lambda evidence: mean_of(evidence[GOLD_ATTENTION]["right"]),
    (GOLD_ATTENTION,),
)


def _both_leave_room(answers: Answers) -> tuple[Precondition, ...]:
    """Both models between 30 and 90 %: neither guessing nor at the ceiling."""
    first = answers.contexts[0]
    return tuple(
        condition
        for role in answers.asks
        for condition in (
            leaves_room_to_fall(answers, role),
            leaves_room_to_rise(answers, role, context=first),
        )
    )


def _answers_of(evidence: Evidence, answers: Answers, role: str) -> np.ndarray:
    """[item, context]"""
    return by_item(evidence, answers, [(role, name, "none") for name in answers.contexts])


def _cost_of_noise(evidence: Evidence) -> float:
    right = _answers_of(evidence, DISTRACTED, "arm")
    return mean_of(right[:, 0] - right[:, -1])


_ARM_LOSES = {
    "middle": loses_something(
        "evidence in the middle",
        (GOLD_POSITIONS,),
        lambda evidence: mean_of(u_index(_answers_of(evidence, GOLD_POSITIONS, "arm"))),
    ),
    "noise": loses_something("nine other passages", (DISTRACTED,), _cost_of_noise),
    "layout": loses_something(
        "another layout of two passages",
        (LAYOUTS,),
        lambda evidence: mean_of(layout_costs(_answers_of(evidence, LAYOUTS, "arm"))["layouts"]),
    ),
}
_GAINS = {
    role: Precondition(
        f"{ROLES[role][0]} that gains from a passage",
        "its accuracy with the passage less without",
        LEAST_GAIN,
        "who gains nothing has nothing to double",
        partial(mean_gain, role=role),
        (GAIN,),
    )
    for role in GAIN.asks
}


def _room_to_double(evidence: Evidence) -> float:
    closed = mean_of(_answers_of(evidence, GAIN, "mdm")[:, 0])
    return 1 - closed - 2 * mean_gain(evidence, role="arm")


_ROOM_TO_DOUBLE = Precondition(
    "questions that leave room to gain twice as much",
    "what the masked diffusion model could gain at most, less twice what the other gains,",
    0.0,
    "who gains more than half of everything cannot be doubled; questions with retrieved passages, "
    "some of them known without, can show it",
    _room_to_double,
    (GAIN,),
)
_HEADROOM = Change(
    "both models must be right in 30 to 90 % of the questions, and the autoregressive one must "
    "lose three points or more",
    "who loses nothing cannot lose more, and who answers everything or nothing loses nothing",
    "a single limit, 30 % right; on the lab models the autoregressive one loses little or gains",
)
_TEN_PASSAGES = Change(
    "up to ten passages",
    "stress tests of reading are made with ten documents and more; among five short ones hardly "
    "any model is lost",
    "at most five passages",
)


@register_claim(
    "floating/H1",
    "An autoregressive model's attention sinks into one fixed place, the first token; a masked "
    "diffusion model's does not.",
    source=f"{_PAPER}, abstract and introduction",
    reported="ARM fixed, MDM not; no number. Absorption figure: the first token is the sink of all "
    "layers of Llama and of 24 of 28 of Qwen",
    origin=PAPER,
    unit=PROMPT,
    needs=(ARM_RUNS, MDM_RUNS),
    criteria=(
        Criterion(
            "arm",
            "share of layers and steps of the ARM whose greatest key on the head-mean map, by "
            "attention beyond what even causal attention gives it, is position 0",
            GREATER,
            FIXED,
            "three in four: the published sink stands in 24 of Qwen's 28 layers, and is called "
            "fixed",
            null="any key as likely as another",
        ),
        Criterion(
            "mdm",
            "share of layers and steps of the MDM whose greatest key on the head-mean map is at "
            "the prompt's commonest place, wherever that is",
            LESS,
            FIXED,
            "the same limit from the other side",
        ),
        Criterion(
            "heads",
            "the ARM's share again, of heads and steps",
            GREATER,
            0.9,
            "nine in ten heads, which is our reading of 'fixed' and in no figure",
            null="any key as likely as another",
            decides=False,
        ),
        Criterion(
            "beyond the mask",
            "attention on position 0 of the ARM, less what even causal attention gives it",
            GREATER,
            0.05,
            "a twentieth of all attention: less would be the mask's doing",
            null="even attention under the same visibility",
            decides=False,
        ),
    ),
    preconditions=(_ARM_HAS_SINK, is_trained(), *has_anchors()),
    defect="the published comparison is on finished text, without a masked position",
    caveat="layers and steps are averaged within a prompt; prompts are the unit",
    contradiction="in the two temporal maps that were released the greatest key of LLaDA is at one "
    "place, position 17, in 56 of 64 steps and layers; the other layers are not shown",
    changes=(
        Change(
            "the head-mean map of layers decides, with a margin of .75; heads one by one and the "
            "share beyond the mask are also measured; an ARM without any sink is not testable",
            "the sentence is about where attention goes in a layer, and its figures are head "
            "means. The published curves have the sink in 24 of Qwen's 28 layers. Whether a sink "
            "is fixed can be asked of a model that has one",
            "nine in ten of all heads, layers and steps, and a twentieth beyond the mask; refuted "
            "on lab/toy-arm, which has no sink (.0067)",
        ),
        Change(
            "Asked of trained masked diffusion models that have anchors.",
            "where the anchors of a model stand can be asked of one that has some: the greatest of "
            "keys that take about as much as the others is anywhere, by chance, in random weights "
            "too",
            "asked of any masked diffusion model: supported on lab/tales-mdm (.49), whose greatest "
            "key takes 3.8 times an even share, and on random weights (.29)",
        ),
    ),
)
def measure_fixed_position(evidence: Evidence) -> Finding:
    # 1. [prompt, 2] of layers: how often the top key is position 0, and the commonest position
    arm, mdm = (fixed_shares(evidence, spec) for spec in (ARM_RUNS, MDM_RUNS))
    # 2. the same of heads
    runs = evidence[ARM_RUNS]
    heads = np.full(runs.count, np.nan)
    for index, top in zip(runs.indices, greatest_keys(evidence, ARM_RUNS), strict=True):
        heads[index] = np.mean(top == 0) if top.size else np.nan
    # 3. attention on position 0 beyond what even attention under the same mask gives it
    first = by_prompt(evidence, ARM_RUNS, "absorption", "first", options={"sets": ("first",)})
    beyond = Estimate.mean(first.value - first.null, PROMPT, DIFFERENCE)
    even = mean_of(1 / by_trace(runs, lambda trace: trace.canvas.shape[1]))
    return Finding(
        {
            "arm": Measured(Estimate.mean(arm[:, 0], PROMPT, SHARE), null=even),
            "mdm": Measured(Estimate.mean(mdm[:, 1], PROMPT, SHARE)),
            "heads": Measured(Estimate.mean(heads, PROMPT, SHARE), null=even),
            "beyond the mask": Measured(beyond, null=0.0),
        },
        {
            "share on position 0, ARM": mean_of(first.value),
            "of even attention": mean_of(first.null),
            "position 0 is the greatest key of the MDM": mean_of(mdm[:, 0]),
            "commonest greatest key of the ARM": mean_of(arm[:, 1]),
        },
    )


@register_claim(
    "floating/H2",
    "Anchors of a masked diffusion model move from step to step, more than an autoregressive "
    "model's.",
    source=f"{_PAPER}, abstract; README, temporal figures",
    reported="qualitative; in the released deep-layer example the greatest key is another at four "
    "of 31 pairs of steps",
    origin=PAPER,
    unit=PROMPT,
    needs=(TEXT_RUNS, ARM_TEXT_RUNS, FROZEN_TEXT_RUNS),
    criteria=(
        Criterion(
            "moves",
            "turnover of the MDM: of a head's anchors at two steps taken together, the share "
            "that are anchors at one of them only (1 - Jaccard)",
            GREATER,
            0.05,
            "one anchor in twenty; the released deep-layer example has .13",
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
    preconditions=(
        is_trained(),
        *has_anchors(TEXT_RUNS),
        writes_text(TEXT_RUNS),
        has_first_key_sink(ARM_TEXT_RUNS),
    ),
    defect="no released code makes the input of the temporal figure",
    caveat="anchors are keys above mean + 3 sd, or the greatest. Earlier rows of a causal "
    "model never change, whatever it attends to, so that models are compared by rows that "
    "predict",
    changes=(
        Change(
            "running text, written as in the published figure (32 positions, a token a step), in "
            "place of questions; anchors and an ARM with a sink are asked for first",
            "the figure is of 32 positions of text; questions are answered in a few tokens, and "
            "nine in ten of what is then written are end tokens",
            "questions with passages; supported on the lab models (.098)",
        ),
        _TRAINED,
    ),
)
def measure_anchor_turnover(evidence: Evidence) -> Finding:
    mdm, arm = (
        by_trace(evidence[spec], predicting_turnover) for spec in (TEXT_RUNS, ARM_TEXT_RUNS)
    )
    every, frozen = (anchor_turnover(evidence, spec) for spec in (TEXT_RUNS, FROZEN_TEXT_RUNS))
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
                anchor_turnover(evidence, ARM_TEXT_RUNS)
            ),
        },
    )


@register_claim(
    "floating/H3",
    "Anchors drift to the right over denoising, at each layer.",
    source=f"{_PAPER}, README, temporal figures",
    reported="right shift at each layer; 2510.15731: LLaDA to the right, Dream to the left",
    origin=PAPER,
    unit=PROMPT,
    needs=(TEXT_RUNS,),
    criteria=(
        Criterion(
            "anchors",
            "drift of the anchors of the head-mean map (mean position weighted by attention): "
            "last quarter of the steps less the first, as a share of the canvas, of the layer "
            "that drifts least",
            GREATER,
            0.02,
            "one position of the published figure's 52",
            null="anchors that stay where they are",
        ),
        Criterion(
            "mean over layers",
            "the same, mean over layers",
            GREATER,
            0.02,
            "one position of the published figure's 52",
            null="anchors that stay where they are",
            decides=False,
        ),
        Criterion(
            "greatest key",
            "the same of the greatest key, of the layer that drifts least",
            GREATER,
            0.02,
            "one position of the published figure's 52",
            null="a greatest key that stays where it is",
            decides=False,
        ),
    ),
    draw=draw_anchor_paths,
    preconditions=(is_trained(), *has_anchors(TEXT_RUNS), writes_text(TEXT_RUNS)),
    defect="no statistic of drift is computed anywhere",
    caveat="anchors that follow what is written drift the way it is written, which may be from "
    "either end; the correlation given the frontier says what is left. Quarters, because the "
    "median slope of a key that moves at few steps is exactly 0",
    contradiction="in the released map of layer 31 the anchor does not drift to the right: it is "
    "at position 17 in 30 of 32 steps, at 20 and 22 in the others, both early, which is a drift of "
    "-.019",
    changes=(
        Change(
            "running text in place of questions; the head-mean map in place of single heads; "
            "anchors decide, the greatest key is also measured",
            "the temporal figures are of 32 positions of text, and of head means; the sentence is "
            "about anchors. In questions nine in ten written tokens are end tokens, and nothing "
            "moves to the right",
            "both statistics had to drift in each layer, head by head, in questions; refuted on "
            "lab/toy-mdm (-.18)",
        ),
        _TRAINED,
    ),
)
def measure_anchor_drift(evidence: Evidence) -> Finding:
    runs = evidence[TEXT_RUNS]
    both = np.full((runs.count, 2, runs.traces[0].manifest["model"]["layers"]), np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        maps = (head_mean(layer)[:, None] for layer in iter_layers(trace))
        both[index] = np.transpose([anchor_drift(shares) for shares in maps])
    anchors, greatest = both.swapaxes(0, 1)  # [prompt, layer] each

    def least(drift: np.ndarray) -> Measured:
        return Measured(
            Least.among([Estimate.mean(x, PROMPT, DIFFERENCE) for x in drift.T]), null=0.0
        )

    measured = {
        "anchors": least(anchors),
        "mean over layers": Measured(
            Estimate.mean(anchors.mean(axis=1), PROMPT, DIFFERENCE), null=0.0
        ),
        "greatest key": least(greatest),
    }
    also: dict[str, float | str] = {"greatest key, mean over layers": mean_of(greatest)}
    given = by_trace(runs, drift_beyond_frontier)
    if np.isfinite(given).any():
        also["rank correlation of place and step, given the frontier"] = mean_of(given)
    return Finding(measured, also)


@register_claim(
    "floating/H4",
    "Anchors appear at positions that were committed a step before, more often than chance has it.",
    source=f"our reading of {_PAPER}, temporal figure of layer 0",
    reported="three positions of one example do so",
    origin=OURS,
    unit=PROMPT,
    needs=(TEXT_RUNS,),
    criteria=(
        Criterion(
            "beyond chance",
            "share of the new anchors of the head-mean map that were committed a step before, less "
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
        Criterion(
            "without end tokens",
            "the first of these, end tokens left out as anchors and as commits, and steps before "
            "which nothing else was committed",
            GREATER,
            0.1,
            "one new anchor in ten",
            null="anchors that begin anywhere",
            decides=False,
        ),
    ),
    preconditions=(is_trained(), *has_anchors(TEXT_RUNS), writes_text(TEXT_RUNS)),
    defect="no released code makes the input of the temporal figure",
    changes=(
        Change(
            "running text without end tokens, on the head-mean map; every commit counts as one",
            "what is read off the figure is that an anchor begins where a token was just "
            "committed: an end token is committed like any other, and nothing in it leaves one "
            "out. Text, as in the figure, makes the question small: hardly any are written",
            "end tokens were left out of the hits and not of the steps that were counted, so that "
            "at most .05 could be reached where .10 was needed; refuted on lab/toy-mdm (.003). "
            "With end tokens among the commits it was .45 there",
        ),
        _TRAINED,
    ),
)
def measure_anchor_onsets(evidence: Evidence) -> Finding:
    runs = evidence[TEXT_RUNS]
    values = np.full((runs.count, 2, 3), np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        for kind, of_text in enumerate((False, True)):
            onset = anchor_onsets(trace, ANCHORS, of_text=of_text)
            values[index, kind] = onset.fresh, onset.keys, onset.shuffled
    (fresh, keys, shuffled), (of_text, text_keys, _) = values.transpose(1, 2, 0)
    return Finding(
        {
            "beyond chance": Measured(Estimate.mean(fresh - keys, PROMPT, DIFFERENCE), null=0.0),
            "beyond other steps": Measured(
                Estimate.mean(fresh - shuffled, PROMPT, DIFFERENCE),
                null=0.0,
                control=mean_of(shuffled),
            ),
            "without end tokens": Measured(
                Estimate.mean(of_text - text_keys, PROMPT, DIFFERENCE), null=0.0
            ),
        },
        {
            "share of onsets just committed": mean_of(fresh),
            "share of keys just committed": mean_of(keys),
            "end tokens, share of what was written": mean_of(end_share(evidence, TEXT_RUNS)),
        },
    )


@register_claim(
    "floating/H5",
    "At the first layer the token, and not its place, decides what a key receives.",
    source=f"our reading of {_PAPER}, temporal figure of layer 0",
    reported="equal tokens have equal values in one example",
    origin=OURS,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    preconditions=(is_trained(),),
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
            "beside deeper layers",
            "the same, less its mean over the other layers",
            GREATER,
            0.0,
            "that the token decides most at the first layer would be special to it",
            null="all layers alike",
            decides=False,
        ),
    ),
    caveat="of the logarithm of what every key receives, not of anchors alone: these are too "
    "few to learn means of tokens from",
    changes=(
        Change(
            "the half about deeper layers is left out of the sentence, and their difference to "
            "the first is also measured",
            "that the place decides in deeper layers is in no text of the paper, and sits badly "
            "with 'deep content-focused'",
            "deeper its position does; refuted on lab/toy-mdm by that half alone",
        ),
        Change(
            "Asked of trained networks.",
            "at the first layer little is known but the token, so that random weights show it too",
            "asked of any network: supported on untrained ones",
        ),
    ),
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
            "beside deeper layers": Measured(Estimate.mean(gap[:, 0] - deeper, PROMPT), null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H6",
    "Attention is spread over several anchors in shallow layers, and over fewer in deep ones.",
    source=f"{_PAPER}, README",
    reported="qualitative; two anchors at layer 0 and one at layer 31 of the released example; "
    "2510.15731: one or two sinks in deep layers",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "anchors",
            "part of the shallow half's anchors that the deep half lacks: keys of the head-mean "
            "map above mean + 3 sd",
            GREATER,
            0.25,
            "a quarter fewer is the least that would be called fewer; half in the released maps",
            null="halves alike",
        ),
        Criterion(
            "any detector",
            "the same head by head, by the detector that loses least (mean + 3 sd, median and MAD, "
            "keys that take half)",
            GREATER,
            0.25,
            "a quarter fewer",
            null="halves alike",
            decides=False,
        ),
        Criterion(
            "keys",
            "change from the first layer to the last (least squares) of the effective number "
            "of keys, as a share of all",
            LESS,
            -0.05,
            "a twentieth of the keys",
            null="all layers alike",
            decides=False,
        ),
    ),
    draw=draw_spread,
    preconditions=(is_trained(), *has_anchors(), has_layers(SHALLOW_AND_DEEP), _SHALLOW_ANCHORS),
    defect="mean + 3 sd cannot flag more than a tenth of the positions, so that spread anchors "
    "are not seen",
    changes=(
        Change(
            "the paper's detector on the paper's map decides; other detectors, heads one by one "
            "and the effective number of keys are also measured; anchors and layers enough are "
            "asked for first",
            "the README says it of the anchors in its maps, which are head means with keys above "
            "mean + 3 sd marked. 'Keys that take half of the attention' are some thirty of a head, "
            "which nobody would call anchors",
            "the detector that loses least of three, among those with two anchors a head, which "
            "left 'keys that take half' to decide alone; refuted on lab/toy-mdm (.207 of .25)",
        ),
        _TRAINED,
    ),
)
def measure_sparser_with_depth(evidence: Evidence) -> Finding:
    # 1. part of the anchors that deep layers lose, on the map and by the rule of the paper
    maps = map_anchor_counts(evidence, MDM_RUNS)
    halves = np.column_stack([first_half_mean(maps), last_half_mean(maps)])
    lost = Estimate.jackknife(halves, share_lost, PROMPT)
    also: dict[str, float | str] = dict(
        zip(
            ("anchors of a layer, shallow half", "anchors of a layer, deep half"),
            means_of(halves).tolist(),
            strict=True,
        )
    )
    # 2. the same head by head, by each detector that finds some
    falls = []
    for rule in DETECTORS:
        options = {"rule": rule}
        count = by_prompt(evidence, MDM_RUNS, "sinks", "count", over="layer", options=options).value
        halves = np.column_stack([first_half_mean(count), last_half_mean(count)])
        for half, mean in zip(("shallow", "deep"), means_of(halves), strict=True):
            also[f"anchors of a head by {rule}, {half} half"] = float(mean)
        if means_of(halves)[0] > 0:
            falls.append(Estimate.jackknife(halves, share_lost, PROMPT))
    # 3. the effective number of keys, which needs no detector
    spread = by_prompt(evidence, MDM_RUNS, "concentration", "effective_share", over="layer").value
    also |= {
        f"effective share of keys, {where} layer": mean_of(spread[:, layer])
        for where, layer in (("first", 0), ("last", -1))
    }
    return Finding(
        {
            "anchors": Measured(lost, null=0.0),
            "any detector": Measured(Least.among(falls), null=0.0),
            "keys": Measured(Estimate.mean(depth_slope(spread), PROMPT), null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H7",
    "A masked diffusion model's anchors absorb less attention than an autoregressive model's sink.",
    source=f"{_PAPER}, absorption figure",
    reported="74.5 / 63.0 % (Llama, Qwen) against 34.1 / 18.4 % (Dream, LLaDA)",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "as published",
            "head-mean attention beyond what even attention under the same visibility gives, mean "
            "over layers: on the greatest key of the MDM less on the first key of the ARM, the "
            "same prompts",
            LESS,
            ABSORBS_LESS_BY,
            "a tenth of all attention, a quarter of the published gap of 42 points",
            null="no difference between the models",
            control="the ARM",
        ),
        *(
            Criterion(
                name,
                f"attention beyond even attention, head by head, on {words} by that, MDM less ARM",
                LESS,
                ABSORBS_LESS_BY,
                "a tenth of all attention",
                null="no difference between the models",
                control="the ARM",
                decides=False,
            )
            for name, words in (
                ("top1", "the greatest key"),
                ("top5", "the five greatest keys"),
                ("anchors", "keys above mean + 3 sd"),
            )
        ),
    ),
    draw=draw_absorption,
    preconditions=(is_trained(), *has_anchors(), has_first_key_sink()),
    defect=_DETECTOR + "; models are compared with other prompts, lengths and sets of keys",
    changes=(
        Change(
            "the published statistic decides (head means, one key of each model), with even "
            "attention taken off; three sets of keys, head by head, are also measured",
            "the sentence reads one figure, which is of head means and of one key. Even causal "
            "attention gives the first token several times an even share, so that it is taken off",
            "all of three sets, head by head, had to be lower; not judged on the lab models, whose "
            "ARM has no sink",
        ),
        _TRAINED,
    ),
)
def measure_absorbs_less(evidence: Evidence) -> Finding:
    mdm, arm = (absorbed_by_layer(evidence, spec) for spec in (MDM_RUNS, ARM_RUNS))
    own, other = mdm["top1"].mean(axis=1), arm["first"].mean(axis=1)
    measured = {
        "as published": Measured(
            Estimate.mean(own - other, PROMPT, (-2.0, 2.0)), 0.0, mean_of(other)
        )
    }
    mdm_heads, arm_heads = (absorbed_shares(evidence, spec) for spec in (MDM_RUNS, ARM_RUNS))
    for name, share in mdm_heads.items():
        gap = Estimate.mean(share - arm_heads[name], PROMPT, (-2.0, 2.0))
        measured[name] = Measured(gap, 0.0, mean_of(arm_heads[name]))
    also = {f"head by head, MDM, {name}": mean_of(share) for name, share in mdm_heads.items()}
    also["head mean, greatest key of the MDM"] = mean_of(own)
    return Finding(measured, also)


@register_claim(
    "floating/H8",
    "The detector's fault matters: absorption by detected anchors is not that of one key.",
    source=f"the absorption script of {_PAPER}",
    reported="not reported; a simulation gives 84 against 28.5 %",
    origin=CODE,
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
    preconditions=(is_trained(), *has_anchors()),
    defect=_DETECTOR,
    changes=(_TRAINED,),
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
    source=f"our reading of {_PAPER}, absorption figure",
    reported="thirds of the layers: LLaDA 12 / 19 / 25 %, Dream 23 / 37 / 44 %",
    origin=OURS,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "rise",
            "change from the first layer to the last (least squares) of the head-mean attention "
            "on the greatest key, beyond even attention",
            GREATER,
            0.05,
            "five points; the published curves rise by 17 (LLaDA) and 33 (Dream)",
            null="all layers alike",
        ),
        Criterion(
            "heads",
            "the same, head by head",
            GREATER,
            0.05,
            "five points",
            null="all layers alike",
            decides=False,
        ),
    ),
    draw=draw_absorption_by_depth,
    preconditions=(is_trained(), *has_anchors(), has_layers(SHALLOW_AND_DEEP)),
    defect=_DETECTOR,
    changes=(
        Change(
            "head means, as in the figure; anchors and layers enough are asked for first",
            "the figure that is read is of head means of 28 and 32 layers",
            "head by head; refuted on the four layers of lab/toy-mdm (+.015), which is in the "
            "claimed direction and below the margin",
        ),
        _TRAINED,
    ),
)
def measure_absorption_growth(evidence: Evidence) -> Finding:
    maps = absorbed_by_layer(evidence, MDM_RUNS)["top1"]
    single = absorbed_share(evidence, MDM_RUNS, "top1", over="layer")
    every = absorbed_share(evidence, MDM_RUNS, str(floating()), over="layer")
    also = {f"layer {layer}": float(share) for layer, share in enumerate(means_of(maps))}
    also["rise, by all anchors, head by head"] = mean_of(depth_slope(every.value - every.null))
    heads = Estimate.mean(depth_slope(single.value - single.null), PROMPT)
    return Finding(
        {
            "rise": Measured(Estimate.mean(depth_slope(maps), PROMPT), null=0.0),
            "heads": Measured(heads, null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H10",
    "A diffusion model made from an autoregressive one inherits the layer at which its sink "
    "begins.",
    source=f"our reading of {_PAPER}, absorption figure",
    reported="Dream and Qwen2.5 both at layer 4",
    origin=OURS,
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "apart",
            "distance in layers between the places where head-mean attention on the greatest key, "
            "beyond even attention, rises most in the mean over prompts (one change of the mean), "
            "MDM and ARM of one origin, the same prompts; prompts resampled",
            LESS,
            0.5,
            "nearer to the same layer than to the next",
            null="two places drawn evenly",
        ),
    ),
    preconditions=(_ONE_ORIGIN, has_layers(SHALLOW_AND_DEEP), *_SINK_BEGINS.values()),
    defect=_DETECTOR,
    caveat="one pair of networks, whose weights show one origin; the fewer layers, the "
    "likelier the same one by chance. The lab's two go on from one next-token network, so that "
    "neither is the other's parent",
    changes=(
        Change(
            "the change of the mean profile, with a bootstrap over prompts, in place of the mean "
            "distance of the changes of single prompts; origin, layers and a rise are "
            "preconditions",
            "the figure shows mean profiles, whose changes are both at layer 4. Single prompts are "
            "noisy: with a spread of ten points a layer their changes are two layers apart on "
            "average though the means agree",
            "the mean distance of single prompts' changes below .5; not judged on the lab models",
        ),
    ),
)
def measure_inherited_layer(evidence: Evidence) -> Finding:
    mdm, arm = (absorbed_by_layer(evidence, spec)["top1"] for spec in (MDM_RUNS, ARM_RUNS))
    layers = mdm.shape[1]
    if arm.shape[1] != layers:
        raise EvidenceError(
            f"models of as many layers: the diffusion model has {layers}, the other {arm.shape[1]}"
        )

    def apart(means: np.ndarray) -> np.ndarray:
        return np.abs(onset_layer(means[:, :layers]) - onset_layer(means[:, layers:]))

    also: dict[str, float | str] = {
        f"first layer after the change, {role}": mean_of(onset_layer(means_of(profiles)[None]))
        for role, profiles in (("MDM", mdm), ("ARM", arm))
    }
    also["distance of single prompts' changes"] = mean_of(
        np.abs(onset_layer(mdm) - onset_layer(arm))
    )
    effect = Bootstrap.over_units(np.hstack([mdm, arm]), apart, PROMPT)
    return Finding({"apart": Measured(effect, chance_distance(layers))}, also)


@register_claim(
    "floating/H11",
    "Deep anchors are made mainly by the angle between query and key, shallow ones by angle and "
    "norm together.",
    source=f"{_PAPER}, QK figure; README",
    reported="angle 63 %, norm 37 % at layer 11; 128 and -28 % at layer 28",
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "shallow norm",
            "size of the norm's part of an anchor's logit advantage (Shapley), over the sizes of "
            "both parts, mean over anchors, first half of the layers",
            GREATER,
            0.1,
            "a tenth is a joint effect; .37 at the figure's layer 11",
        ),
        Criterion(
            "deep angle",
            "the same of the angle's part, last half of the layers",
            GREATER,
            0.5,
            "more than half is mainly; .82 at the figure's layer 28",
        ),
        Criterion(
            "rise of the angle",
            "the angle's part in the last half of the layers less in the first half",
            GREATER,
            0.0,
            "more by the angle in deep layers is what is said; the figure has .19 between two "
            "layers",
            null="halves alike",
        ),
        Criterion(
            "signed norm",
            "the norm's part with its sign, over the sizes of both, summed over anchors, last half "
            "of the layers",
            LESS,
            0.1,
            "-.18 at the figure's layer 28",
            null="a key like the others",
            decides=False,
        ),
    ),
    draw=draw_angle_and_norm,
    preconditions=(
        keys_not_normalised(),
        is_trained(),
        *has_anchors(),
        has_layers(SHALLOW_AND_DEEP),
    ),
    defect="vectors are averaged over heads before the cosine; grouped heads are mismatched",
    changes=(
        Change(
            "The angle's part rises with depth by any amount.",
            "mainly in deep layers and jointly in shallow ones is a comparison without a number; "
            "sinks/H19, of the same figure, asks for no more. The rise on SmolLM2-135M (.03) was "
            "known",
            "asked for a twentieth more",
        ),
        Change(
            "sizes of both parts, anchor by anchor; 'mainly' is more than half; a network that "
            "normalises its keys is not testable",
            "'joint' and 'mainly' are about sizes. Sums with signs cancel over heads where the "
            "norm helps in one and hurts in the next, their sizes do not. Normalised keys leave "
            "norms no room, whatever training does",
            "signed sums over unsigned ones: deep norm below .1, shallow above .1, angle rising by "
            ".1; refuted on lab/toy-mdm, whose keys are normalised (.040 of .1)",
        ),
        _TRAINED,
    ),
)
def measure_angle_and_norm(evidence: Evidence) -> Finding:
    sizes = angle_sizes(evidence)
    angle, norm = (
        by_prompt(evidence, MDM_RUNS, "qk_split", name, over="layer", options=ANCHOR_RULE).value
        for name in ("angle_share", "norm_share")
    )
    longer = norm_helps(evidence)
    also = {
        f"{name}, {where} half": mean_of(half(shares))
        for name, shares in (
            ("signed angle share", angle),
            ("signed norm share", norm),
            ("heads in which the norm helps", longer),
        )
        for where, half in (("shallow", first_half_mean), ("deep", last_half_mean))
    }
    shallow, deep = first_half_mean(sizes), last_half_mean(sizes)
    return Finding(
        {
            "shallow norm": Measured(Estimate.mean(1 - shallow, PROMPT, SHARE)),
            "deep angle": Measured(Estimate.mean(deep, PROMPT, SHARE)),
            "rise of the angle": Measured(
                Estimate.mean(deep - shallow, PROMPT, DIFFERENCE), null=0.0
            ),
            "signed norm": Measured(
                Estimate.mean(last_half_mean(norm), PROMPT, DIFFERENCE), null=0.0
            ),
        },
        also,
    )


@register_claim(
    "floating/H12",
    "Anchor keys have a small norm in deep layers.",
    source=f"our reading of {_PAPER}, QK figure",
    reported="norm product 4.73 against 7.06 at layer 28",
    origin=OURS,
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
    preconditions=(
        keys_not_normalised(),
        is_trained(),
        *has_anchors(),
        has_layers(SHALLOW_AND_DEEP),
    ),
    changes=(
        Change(
            "a network that normalises its keys, or has no anchors, is not testable",
            "the norm of a normalised key is the architecture's: keys of lab/toy-mdm differ by "
            "four to six per cent",
            "judged of any network; refuted on lab/toy-mdm (1.05)",
        ),
        _TRAINED,
    ),
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
    "Retrieval heads of masked diffusion models lie deep.",
    source=f"{_PAPER}, retrieval-head maps",
    reported="weighted relative depth .62 (LLaDA), .66 (Dream), of a score that is not known; ARMs "
    ".46 to .63 by Wu et al.'s",
    origin=PAPER,
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
            decides=False,
        ),
        Criterion(
            "beside the ARM",
            "the same, less that of the ARM on prompts that both answer rightly",
            GREATER,
            0.0,
            "deeper than in an autoregressive model is a question of ours",
            null="no difference between the models",
            control="the ARM",
            decides=False,
        ),
    ),
    draw=draw_retrieval_map,
    preconditions=(_RIGHT_PROMPTS, has_layers(SHALLOW_AND_DEEP)),
    defect=_NO_SCRIPT,
    caveat="the published score is not known; attention to the evidence is the likeliest. Of "
    "prompts that are answered rightly",
    changes=(
        Change(
            "depth decides; the comparisons with other passages and with the ARM are also "
            "measured, and the figure shows what is judged",
            "the maps and the README say where retrieval heads lie in MDMs, and compare with "
            "nothing. The figure had all commits in it, most of them end tokens",
            "all three had to hold; not judged on the lab models, of which one is seldom right",
        ),
    ),
)
def measure_retrieval_depth(evidence: Evidence) -> Finding:
    # 1. [prompt, layer] attention to gold and to other passages, mean over heads
    own, both = (score_answers(evidence, spec) == 1 for spec in (MDM_RUNS, ARM_RUNS))
    both = both & own
    mdm = of_right_answers(evidence, MDM_RUNS, right=own)
    arm = of_right_answers(evidence, ARM_RUNS, right=both)
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

    depth = replace(Estimate.jackknife(mine, weighted_depth, PROMPT), bounds=SHARE)
    return Finding(
        {
            "deep": Measured(depth, 0.5),
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
    "Retrieval is spread over more heads in masked diffusion models than in autoregressive ones.",
    source=f"our reading of {_PAPER}, retrieval-head maps, beside Wu et al., arXiv 2404.15574",
    reported="the MDM map has 20 % at .5 or more, on an unknown scale; ARMs 2 to 6 % at .1 or more",
    origin=OURS,
    unit=PROMPT,
    needs=(MDM_RUNS, ARM_RUNS),
    criteria=(
        Criterion(
            "beside the ARM",
            "share of the heads that copying is effectively spread over: (sum of scores)^2 "
            "over heads times sum of squares, score: share of the answer's tokens whose row "
            "looks most at the same token of the gold passage; MDM less ARM on the same prompts",
            GREATER,
            0.05,
            "a twentieth of the heads; the published map of the MDM has a fifth, ARMs 2 to 6 %",
            null="no difference between the models",
            control="the ARM",
        ),
        Criterion(
            "mdm",
            "the same of the MDM",
            LESS,
            0.25,
            "a quarter lies between maps that are mostly zeros (Wu et al.) and the published one "
            "of LLaDA, some .55",
            null="all heads alike",
            decides=False,
        ),
    ),
    draw=draw_retrieval_map,
    preconditions=(has_heads(100), has_heads(100, ARM_RUNS)),
    defect=_NO_SCRIPT,
    caveat="a share of heads above a threshold has no standard error over prompts, so that an "
    "effective number stands for it. Of prompts that both models answer rightly",
    changes=(
        Change(
            "the direction: more heads than in an ARM, in place of few and no more",
            "that retrieval heads of MDMs are few is said nowhere; the published map, where a "
            "fifth of the heads score .5 or more, suggests the contrary",
            "an effective share below .25, and at most .1 above the ARM's, which the published map "
            "denies; not judged on the lab models",
        ),
    ),
)
def measure_spread_of_retrieval(evidence: Evidence) -> Finding:
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
    return Finding({"beside the ARM": Measured(beside, 0.0, arm), "mdm": Measured(mdm, 1.0)}, also)


@register_claim(
    "floating/H15",
    "Retrieval heads matter: taking them out costs answers, more than as many others of the "
    "same layers.",
    source="Wu et al., arXiv 2404.15574, of autoregressive models",
    reported="large drop in ARMs; of MDMs nothing is known to us",
    origin=NEIGHBOUR,
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
    preconditions=(has_heads(100), has_heads(100, ARM_RUNS)),
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
    origin=PAPER,
    unit=PROMPT,
    needs=(MDM_RUNS,),
    criteria=(
        Criterion(
            "shallow anchors",
            "part of the anchors' attention that is on structural tokens, beyond even attention, "
            "first half of the layers",
            GREATER,
            0.1,
            "a tenth of the anchors' attention",
            null="even attention",
        ),
        Criterion(
            "content",
            "change from the first layer to the last (least squares) of the share of all attention "
            "on content, beyond even attention",
            GREATER,
            0.05,
            "a twentieth of all attention",
            null="all layers alike",
        ),
        Criterion(
            "fall",
            "change from the first layer to the last (least squares) of the part of the anchors' "
            "attention that is on structural tokens, beyond even attention",
            LESS,
            -0.1,
            "a tenth of the anchors' attention",
            null="all layers alike",
            decides=False,
        ),
    ),
    draw=draw_structure,
    preconditions=(is_trained(), *has_anchors(), has_layers(SHALLOW_AND_DEEP)),
    defect="no figure shows a token",
    caveat="structure is punctuation, line breaks, function words, special tokens and the "
    "prompt's template; a masked position is neither, and counts among all keys",
    changes=(
        Change(
            "what shallow anchors are, in place of how that changes with depth, which is also "
            "measured; anchors and layers enough are asked for first",
            "the abstract says that shallow layers use floating tokens to build a structural "
            "frame, and that deep layers give more to content; it does not say what deep anchors "
            "are",
            "the structural part of anchors had to fall by a tenth; refuted on the four layers of "
            "lab/toy-mdm (+.095), whose attention on content rises (+.127)",
        ),
        _TRAINED,
    ),
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
    beyond = sinks.value - sinks.null
    shallow = Estimate.mean(first_half_mean(beyond), PROMPT, DIFFERENCE)
    fall = Estimate.mean(depth_slope(beyond), PROMPT)
    more = Estimate.mean(depth_slope(content.value - content.null), PROMPT)
    return Finding(
        {
            "shallow anchors": Measured(shallow, null=0.0),
            "content": Measured(more, null=0.0),
            "fall": Measured(fall, null=0.0),
        },
        also,
    )


@register_claim(
    "floating/H17",
    "Anchors are needed: hiding them in shallow layers changes predictions more than hiding as "
    "many other keys of the same kind.",
    source=f"a question of ours about {_PAPER}, abstract; 2510.15731 says hiding the greatest "
    "costs under a point",
    reported="nothing that is known to us",
    origin=OURS,
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
            decides=False,
        ),
    ),
    preconditions=(is_trained(), *has_anchors(), has_layers(SHALLOW_AND_DEEP)),
    changes=(
        Change(
            "the comparison with deep layers is also measured, and decides nothing",
            "the abstract says what shallow anchors do; that deep ones do less is ours",
            "more than in deep layers; refuted on lab/toy-mdm by that half alone (-.23)",
        ),
        _TRAINED,
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
    origin=PAPER,
    unit=PROMPT,
    needs=(GOLD_ATTENTION,),
    criteria=(
        Criterion(
            "attended",
            "log2 of how much more the answer looks at a token of gold than at one of another "
            "passage, of gold first, in the middle and last the place where that is least",
            GREATER,
            TENTH,
            "ten per cent more at each place; 42 to 50 are reported",
            null="passages alike",
        ),
        Criterion(
            "first and last",
            "the same with gold first, less with gold last",
            EQUAL,
            TENTH,
            "ten per cent either way",
            null="no difference between places",
            decides=False,
        ),
        Criterion(
            "middle and ends",
            "the same with gold in the middle, less the mean of first and last",
            EQUAL,
            TENTH,
            "ten per cent either way",
            null="no difference between places",
            decides=False,
        ),
    ),
    preconditions=(_GOLD_ANSWERED,),
    changes=(
        Change(
            "more at each place is what decides; that places are alike within ten per cent is also "
            "measured; a model that is seldom right is not testable",
            "'wherever it is' says that gold is attended to at each place, not that each place "
            "gets as much. Equality within ten per cent could not be shown with 48 prompts even "
            "if places were alike",
            "ten per cent more on average, and places alike within ten per cent; undecided on "
            "lab/toy-mdm",
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
            "attended": Measured(
                Least.among([Estimate.mean(place, PROMPT) for place in (first, middle, last)]),
                null=0.0,
            ),
            "first and last": Measured(Estimate.mean(first - last, PROMPT), null=0.0),
            "middle and ends": Measured(
                Estimate.mean(middle - (first + last) / 2, PROMPT), null=0.0
            ),
        },
        also,
    )


@register_claim(
    "floating/H19",
    "Most of the contrast of rollouts between models is the mask's: even causal attention flows "
    "into the first token as well.",
    source=f"the rollout script of {_PAPER}",
    reported="Llama 1.00 into the first token; even attention, without any sink, .58 to .89 by how "
    "long the passages are",
    origin=CODE,
    unit=PROMPT,
    needs=tuple(ROLLOUTS.values()),
    preconditions=(has_layers(24, ARM_RUNS),),
    criteria=(
        Criterion(
            "null",
            "published rollout from the answer into the first token: that of even causal "
            "attention, less half of the ARM's",
            GREATER,
            0.0,
            "more than half is most of it",
        ),
        Criterion(
            "contrast",
            "the same of the difference between ARM and MDM: that of even attention under "
            "either mask, less half of the models'",
            GREATER,
            0.0,
            "more than half is most of it",
        ),
    ),
    changes=(
        Change(
            "half of the models' flow, in place of nine tenths; networks of 24 layers or more",
            "most of it is more than half. Nine tenths cannot be reached: even attention gives .58 "
            "to .89 where Llama has 1.00. The fewer layers, the less flows into the first token",
            "nine tenths; not judged on the lab models, whose rollouts do not differ",
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
    # 3. what even attention under either mask gives, less half of what the models give
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
    share = Estimate.mean(of("null arm") - 0.5 * of("value arm"), PROMPT, (-0.5, 1.0))
    mask = Estimate.mean(of_masks - 0.5 * contrast, PROMPT, (-1.5, 1.5))
    return Finding({"null": Measured(share), "contrast": Measured(mask)}, also)


@register_claim(
    "floating/H20",
    "Masked diffusion models are not lost in the middle, and less than autoregressive ones.",
    source=f"{_PAPER}, stress tests; 2511.21338 reports the contrary, a bias to what is near",
    reported="claimed, numbers not known to us",
    origin=PAPER,
    unit=ITEM,
    needs=(GOLD_POSITIONS,),
    criteria=(
        Criterion(
            "mdm",
            "U-index of the MDM: accuracy with the evidence first or last of ten, less in the "
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
    preconditions=(*_both_leave_room(GOLD_POSITIONS), _ARM_LOSES["middle"]),
    changes=(_HEADROOM, _TEN_PASSAGES),
    defect="no code for the stress tests was released",
    caveat="an MDM answers in a fixed number of positions, of which those after the answer are "
    "masks for a while; 2511.21338 finds these harmful, and their number is not varied here",
)
def measure_not_lost_in_middle(evidence: Evidence) -> Finding:
    scores = scores_by_role(evidence, GOLD_POSITIONS)
    index, also = {}, {}
    for role, right in scores.items():
        index[role] = u_index(right)
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
    origin=PAPER,
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
    preconditions=(*_both_leave_room(DISTRACTED), _ARM_LOSES["noise"]),
    changes=(_HEADROOM, _TEN_PASSAGES),
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
    origin=PAPER,
    unit=ITEM,
    needs=(LAYOUTS,),
    criteria=(
        Criterion(
            "layouts",
            "accuracy with the two passages side by side and the first hop first, less its mean "
            "with eight others between them and with the second hop first, MDM less ARM, the same "
            "items",
            LESS,
            -0.01,
            "a point is the least that would matter",
            null="no difference between the models",
            control="the ARM",
        ),
        *(
            Criterion(
                name,
                f"the same of passages {words} alone",
                LESS,
                -0.01,
                "a point is the least that would matter",
                null="no difference between the models",
                control="the ARM",
                decides=False,
            )
            for name, words in (("far", "that are apart"), ("order", "in the other order"))
        ),
    ),
    preconditions=(*_both_leave_room(LAYOUTS), _ARM_LOSES["layout"]),
    defect="no code for the stress tests was released",
    changes=(
        _HEADROOM,
        _TEN_PASSAGES,
        Change(
            "the mean cost of both layouts decides; each alone is also measured",
            "the sentence is about layouts of evidence; which ones the paper had is not known to "
            "us",
            "each of the two had to cost less; undecided on the lab models",
        ),
    ),
)
def measure_two_passages(evidence: Evidence) -> Finding:
    scores = scores_by_role(evidence, LAYOUTS)
    costs = {role: layout_costs(right) for role, right in scores.items()}
    measured, also = {}, {}
    for name in ("layouts", "far", "order"):
        effect = mean_score(costs["mdm"][name] - costs["arm"][name], ITEM, (-2.0, 2.0))
        measured[name] = Measured(effect, 0.0, mean_of(costs["arm"][name]))
        also[f"cost to the MDM, {name}"] = mean_of(costs["mdm"][name])
    return Finding(measured, also)


@register_claim(
    "floating/H23",
    "Passages help a masked diffusion model twice as much as an autoregressive one.",
    source=f"{_PAPER}, Table 1",
    reported="mean gain 19.46 against 8.51 points (2.29 times); Dream alone 1.56 times; with "
    "passages 43.8 against 37.0",
    origin=PAPER,
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
        ),
    ),
    draw=draw_gains,
    preconditions=(_GAINS["arm"], _ROOM_TO_DOUBLE),
    contradiction="by Table 1 the gain of LLaDA is 6.4 and 10.9 points more than twice that of "
    "Qwen and Llama, and that of Dream 6.1 and 1.5 points less than twice; only the average over "
    "both families doubles",
    changes=(
        Change(
            "what it takes to be judged are preconditions, with their numbers; the table's number "
            "is no mark on our axis",
            "who gains more than half of what can be gained leaves nothing to double: real "
            "questions, some of which are known without a passage, can show it. The table's number "
            "is of the mean of accuracy and F1 and of two families",
            "the same, as an error; not judged on the lab models",
        ),
    ),
    defect="LLaDA, the model with the largest gain, has a prompt of its own; Llama gets two "
    "first tokens; the code of the closed book is missing",
    caveat="one prompt, one metric and greedy answers for both models",
)
def measure_gain_doubles(evidence: Evidence) -> Finding:
    cells = [(role, context, "none") for role in ("mdm", "arm") for context in GAIN.contexts]
    scores = by_item(evidence, GAIN, cells)
    mdm, arm = scores[:, 1] - scores[:, 0], scores[:, 3] - scores[:, 2]
    means = means_of(scores)
    gained, beside = mean_of(mdm), mean_of(arm)
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
    source=f"the evaluation scripts of {_PAPER}",
    reported="+25.68 points with its own prompt; with the others' nothing is known to us",
    origin=CODE,
    scope=("llada",),
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
    preconditions=tuple(
        leaves_room_to_rise(spec, "mdm", context="gold") for spec in TEMPLATES.values()
    ),
    changes=(
        Change(
            "said of LLaDA alone; answers at the ceiling are not testable",
            "the prompts that differ are those of LLaDA and of the others. Who answers everything "
            "in both prompts cannot show a difference",
            "judged of any model; not judged on lab/toy-mdm",
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
    source=f"a question of ours about {_PAPER}, whose abstract says that it explains in-context "
    "learning",
    reported="nothing that is known to us",
    origin=OURS,
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
    origin=PAPER,
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
    preconditions=(is_trained(), *has_anchors(), *has_anchors(PASSAGE_RUNS)),
    defect="no data and no code were released for it",
    caveat="by kinds of token: positions of prompts of other lengths differ anyway. Questions with "
    "passages beside passages to go on with; words of the template, masks, and kinds of token "
    "that a prompt has none of are left out",
    changes=(_TRAINED,),
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
    "Masked and written positions use different anchors.",
    source="arXiv 2510.15731, Fig. 6a",
    reported="qualitative",
    origin=NEIGHBOUR,
    scope=("llada",),
    unit=PROMPT,
    needs=(REWRITTEN_QUERIES,),
    criteria=(
        Criterion(
            "apart",
            "Jensen-Shannon, in bits, between the anchors in the prompt that positions of the "
            "answer use while they are masked and once they are written, less that of the same "
            "positions when another word stands there",
            GREATER,
            0.05,
            "a twentieth of a bit",
            null="a mask is a token like any other",
            control="the same positions, from the word that was written to another word",
        ),
        Criterion(
            "beside positions that stayed",
            "the same divergence, less that of as many positions that stayed as they were in the "
            "same steps",
            GREATER,
            0.05,
            "a twentieth of a bit",
            null="queries alike",
            control="positions that stayed as they were",
            decides=False,
        ),
    ),
    preconditions=(is_trained(), *has_anchors()),
    caveat="masked and written positions stand apart, so that each is compared with itself: "
    "attention to what is near is then no difference. End tokens are not written",
    changes=(
        Change(
            "Asked of LLaDA and its kin.",
            "the figure is of LLaDA-8B; sinks/H12, of the same figure, has that scope",
            "asked of any model",
        ),
        Change(
            "the control: the same positions with another word in place of the written one; end "
            "tokens are not written",
            "the figure says that being masked matters. A position that stayed as it was does not "
            "control for the change of its token, which moves attention in nearly any network",
            "positions that stayed as they were; supported on lab/toy-mdm (.327), where a changed "
            "word moves attention more than a mask that is filled (.38 against .25 bits)",
        ),
        _TRAINED,
    ),
)
def measure_masked_queries(evidence: Evidence) -> Finding:
    table: pd.DataFrame = evidence[REWRITTEN_QUERIES]
    wide = table.pivot(index="unit", columns="layer")
    value, null, rewritten = (
        wide[name].to_numpy(dtype=float) for name in ("value", "null", "rewritten")
    )
    beyond, beside = (
        Estimate.mean((value - other).mean(axis=1), PROMPT, (-1.0, 1.0))
        for other in (rewritten, null)
    )
    return Finding(
        {
            "apart": Measured(beyond, 0.0, mean_of(rewritten)),
            "beside positions that stayed": Measured(beside, 0.0, mean_of(null)),
        },
        {
            "from masked to written": mean_of(value),
            "last half of the layers": mean_of(last_half_mean(value - rewritten)),
            "heads whose greatest key is another": mean_of(wide["elsewhere"]),
        },
    )


@register_claim(
    "floating/H28",
    "With passages, a masked diffusion model answers better than an autoregressive one.",
    source=f"{_PAPER}, Table 1",
    reported="mean of accuracy and F1 over five question sets: 43.8 (LLaDA 48.2, Dream 39.4) "
    "against 37.0 (Llama 36.3, Qwen 37.7)",
    origin=PAPER,
    unit=ITEM,
    needs=(GAIN,),
    criteria=(
        Criterion(
            "better",
            "accuracy with the passage, MDM less ARM, the same items",
            GREATER,
            0.01,
            "a point is the least that would matter; the four pairs of the table differ by 1.7 to "
            "12 points",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    draw=draw_gains,
    preconditions=tuple(
        condition
        for role in ("mdm", "arm")
        for condition in (
            leaves_room_to_fall(GAIN, role, context="gold"),
            leaves_room_to_rise(GAIN, role, context="gold"),
        )
    ),
    defect="LLaDA, the model with the best answers, has a prompt of its own",
    caveat="one passage, which holds the answer; the table has five that were retrieved",
    changes=(
        Change(
            "a new claim",
            "Table 1 says it, and no claim asked for it",
            "only the gain from passages was tested (H23)",
        ),
    ),
)
def measure_better_with_passages(evidence: Evidence) -> Finding:
    mdm, arm = by_item(evidence, GAIN, [(role, "gold", "none") for role in ("mdm", "arm")]).T
    return Finding({"better": Measured(Estimate.pairs(mdm, arm, ITEM), 0.0, mean_of(arm))})


@register_claim(
    "floating/H29",
    "Anchors of a masked diffusion model are others from layer to layer, more than an "
    "autoregressive model's.",
    source=f"{_PAPER}, abstract and first figure",
    reported="qualitative: they shift across denoising steps and layers; the ARM's stand in the "
    "first column of every layer",
    origin=PAPER,
    unit=PROMPT,
    needs=(TEXT_RUNS, ARM_TEXT_RUNS),
    criteria=(
        Criterion(
            "moves",
            "of the anchors of two neighbouring layers taken together, on head-mean maps beyond "
            "even attention, the share that are anchors in one of them only (1 - Jaccard), MDM",
            GREATER,
            0.05,
            "one anchor in twenty, as from step to step (H2)",
            null="all layers alike",
        ),
        Criterion(
            "beside the ARM",
            "the same, MDM less ARM on the same prompts",
            GREATER,
            0.05,
            "one anchor in twenty",
            null="no difference between the models",
            control="the ARM",
        ),
    ),
    preconditions=(
        is_trained(),
        *has_anchors(TEXT_RUNS),
        writes_text(TEXT_RUNS),
        has_first_key_sink(ARM_TEXT_RUNS),
        has_layers(SHALLOW_AND_DEEP, TEXT_RUNS),
    ),
    caveat="any two maps differ somewhat: what the models differ by says more",
    changes=(
        Change(
            "a new claim",
            "the abstract says that anchors shift across layers; only steps were tested",
            "no claim; layers entered H1 alone",
        ),
        _TRAINED,
    ),
)
def measure_turnover_across_layers(evidence: Evidence) -> Finding:
    mdm, arm = (
        by_trace(evidence[spec], turnover_across_layers) for spec in (TEXT_RUNS, ARM_TEXT_RUNS)
    )
    return Finding(
        {
            "moves": Measured(Estimate.mean(mdm, PROMPT, SHARE), null=0.0),
            "beside the ARM": Measured(
                Estimate.mean(mdm - arm, PROMPT, DIFFERENCE), 0.0, mean_of(arm)
            ),
        }
    )
