"""Constants, evidence and drawings that claims share: attention floating paper (arXiv 2601.07894).

Anchors are its "floating tokens": keys above mean + 3 sd. Its figures are of *head-mean maps*, the
attention that keys receive averaged over the heads of a layer; claims that are its sentences read
these, and what heads do one by one stands beside. The rule `floating` takes the greatest key where
no key is above: its scripts of absorption and angle do, that of the temporal figures does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import log2, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.edits.spec import freeze_canvas
from anchorwatch.errors import EvidenceError
from anchorwatch.evaluation.tables import gains
from anchorwatch.generation.decoding import LeftToRight, LowConfidence
from anchorwatch.metrics.geometry import SinkColumns, read_columns, shapley
from anchorwatch.metrics.layer_slices import LayerSlice, find_top_key, iter_layers
from anchorwatch.metrics.movement import centroid_path
from anchorwatch.metrics.sink_rules import Rule, mass, robust_zscore, topk, zscore
from anchorwatch.metrics.stats.ranks import jensen_shannon, spearman
from anchorwatch.metrics.token_classes import CLASSES
from anchorwatch.studies.estimate import PROMPT, Correlation, Estimate
from anchorwatch.studies.evidence import ROLES, Answers, Evidence, Experiment, Runs, TraceSet
from anchorwatch.studies.measure import (
    ARM_RUNS,
    FEWEST_RIGHT,
    MDM_RUNS,
    PerPrompt,
    by_cell,
    by_item,
    by_layer,
    by_prompt,
    mean_of,
    means_of,
    read_passage_attention,
    require_accuracy,
    score_answer,
)
from anchorwatch.studies.preconditions import head_mean
from anchorwatch.studies.prompts import TEMPLATE_WORDS
from anchorwatch.trace.trace import Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure


@dataclass(frozen=True)
class floating(Rule):  # noqa: N801
    """Keys more than z standard deviations above the mean; where there are none, the greatest.

    >>> floating().labels(np.array([[0.3, 0.4, 0.3]])).tolist()
    [[False, True, False]]
    """

    z: float = 3.0

    def labels(self, shares: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
        above = zscore(self.z).labels(shares, seen)
        none = ~above.any(axis=-1, keepdims=True)
        return above | (topk(1).labels(shares, seen) & none)


ANCHORS = zscore(3.0)
"""The rule of the paper's temporal figures."""
KEY_SETS = ("first", "top1", ANCHORS, floating())
DETECTORS = (ANCHORS, robust_zscore(), mass(0.5))
"""By mean and sd, by median and MAD, and the fewest keys that take half of the attention."""
ABSORBS_LESS_BY = -0.1
QUARTER_MORE = round(log2(1.25), 4)
"""A quarter more, as a difference of logarithms."""
TEXT_LENGTH = 32
"""Positions and steps of the published temporal figures: a token a step, in one block."""
TEXT_RUNS = Runs("mdm", "text", decoding=LowConfidence(TEXT_LENGTH, TEXT_LENGTH, forbid_end=True))
ARM_TEXT_RUNS = Runs("arm", "text", decoding=LeftToRight(TEXT_LENGTH, cache=False, stop=False))
FROZEN_TEXT_RUNS = replace(TEXT_RUNS, edits=(freeze_canvas(),))
"""Running text, written as in the temporal figures; end tokens, which fill a canvas, are not."""
FIXED = 0.75
"""Share of layers and steps: the published sink stands in 24 of Qwen's 28 layers, and in all of
Llama's."""
SHALLOW_AND_DEEP = 8
"""Layers from which a quarter of them is more than one; published models have 28 and 32."""
WEIGHTS = {role: Experiment(role, "weights", passes=0) for role in ("mdm", "arm")}
SAME_ORIGIN = 0.2
"""Correlation of weights from which two networks have one origin; apart they have 0."""
LEAST_RISE = 0.05
"""Five points of attention, as for floating/H9; the figure jumps by 43 (Dream) and 66 (Qwen)."""
HALVES = Experiment("mdm", "hidden_in_halves", passes=96)
ANCHOR_RULE = {"rule": floating()}
KNOCKED_OUT_HEADS = {role: Experiment(role, "heads_taken", passes=200) for role in ("mdm", "arm")}
LEAST_ACCURACY = 0.3
"""Unedited accuracy below which there is too little to lose."""
RETRIEVAL_SCORE = 0.1
"""Wu et al.'s score of a retrieval head."""
GOLD_ATTENTION = Experiment("mdm", "gold_looks", passes=48)
ROLLOUTS = {role: Experiment(role, "first_rollout", passes=16) for role in ("mdm", "arm")}
LEAST_CONTRAST = 0.2
"""Of the rollout into the first token: a fifth of the published contrast; less needs no reason."""
TENTH = round(log2(1.1), 4)
"""Ten per cent either way, as a difference of logarithms."""
GAIN = Answers(("mdm", "arm"), ("closed", "gold"))
DISTRACTED = Answers(("mdm", "arm"), ("gold", "gold+1", "gold+4", "gold+9"))
GOLD_POSITIONS = Answers(("mdm", "arm"), ("gold@1/10", "gold@5/10", "gold@10/10"))
LAYOUTS = Answers(("mdm", "arm"), ("adjacent+8", "far+8", "reversed+8"), task="synthetic/two-hop")
TEMPLATES = {
    name: Answers(("mdm",), ("closed", "gold"), template=f"floating-{name}")
    for name in ("rules", "examples")
}
LEAST_GAIN = 0.05
"""Of the questions: a model that gains less from a passage has nothing to double."""
DOUBLINGS = tuple(float(np.log2(1 + others)) for others in (0, 1, 4, 9))
PASSAGE_RUNS = Runs("mdm", "told")
REWRITTEN_QUERIES = Experiment("mdm", "queries_rewritten", passes=48)
MOMENTS = (("y", "y"), ("x", "x"), ("z", "z"), ("y", "x"), ("y", "z"), ("x", "z"))


def top_key_beyond(layer: LayerSlice) -> np.ndarray:
    """[step, head] the key that receives most beyond what even attention gives it; -1 if absent.

    Under a causal mask the first keys receive most of even attention, too: that is taken off.
    """
    beyond = layer.shares() - layer.null()
    key = np.where(np.isnan(beyond), -np.inf, beyond).argmax(axis=-1)
    return np.where(layer.is_measured(), key, -1)


def absorbed_beyond(layer: LayerSlice, rule: Rule) -> tuple[np.ndarray, ...]:
    """[step, head] attention beyond even attention on the greatest key, on five, and on anchors.

    Keys are chosen by what they receive beyond even attention, so that a causal mask chooses none.
    """
    beyond = layer.shares().astype(np.float64) - layer.null()
    ordered = -np.sort(-np.nan_to_num(beyond), axis=-1)
    anchors = np.sum(beyond, axis=-1, where=rule.labels(beyond) & ~np.isnan(beyond))
    absent = np.where(layer.is_measured(), 0.0, np.nan)
    sums = ordered[..., 0], ordered[..., :5].sum(axis=-1), anchors
    return tuple(total + absent for total in sums)


def predicting_turnover(trace: Trace) -> float:
    """How many of the greatest keys of rows that predict are others a step later: 1 - Jaccard.

    A row predicts once, in either kind of model; rows that are only looked at again never change
    under a causal mask. Mean over heads and steps; NaN with fewer than two steps that commit.
    """
    top, when = trace["commit_top_key"].values[..., 0], trace.committed_at
    keys = trace.canvas.shape[1] + 2  # a key that was added to the network is -2
    previous, changes = None, []
    for step in range(trace.num_steps):
        rows = top[..., when == step]  # [layer, head, row]
        if not rows.shape[-1]:
            continue
        now = np.zeros((*rows.shape[:2], keys), dtype=bool)
        np.put_along_axis(now, rows % keys, values=True, axis=-1)
        if previous is not None:
            either = (now | previous).sum(axis=-1)
            changes.append(1 - (now & previous).sum(axis=-1) / either)
        previous = now
    return float(np.mean(changes)) if changes else np.nan


def anchor_drift(shares: np.ndarray) -> tuple[float, float]:
    """How far the centre of the anchors of [step, map, key] shares goes, and the greatest key.

    Shares of the canvas: last quarter of the steps less the first, mean over maps (the head-mean
    map alone, or those of heads): at most 1 either way.
    """
    keys = shares.shape[-1]
    anchors = np.where(floating().labels(shares), np.nan_to_num(shares), 0.0)
    paths = centroid_path(anchors), find_top_key(shares)[0].T.astype(float)  # [map, step]
    quarter = max(1, len(shares) // 4)
    each = [path[:, -quarter:].mean(axis=1) - path[:, :quarter].mean(axis=1) for path in paths]
    centre, greatest = (float(np.mean(shift)) / keys for shift in each)
    return centre, greatest


@dataclass(frozen=True)
class OnsetShares:
    """Of all anchors that begin in a run: shares, NaN where none does."""

    fresh: float
    """At a key that was committed a step before."""
    keys: float
    """The share of all keys that were, at the same steps."""
    shuffled: float
    """What it would be if commits were dealt out to other steps."""


def anchor_onsets(trace: Trace, rule: Rule, *, of_text: bool = False) -> OnsetShares:
    """Where anchors of the head-mean maps begin, over all layers.

    `of_text` leaves end tokens out as anchors and as commits, and with them the steps before which
    nothing else was committed: there no onset could be a hit.
    """
    # 1. [step, key] what was committed a step before, from the second step on
    ends = np.isin(trace.own, trace.manifest["model"].get("end_ids", ())) & of_text
    steps, when = trace.num_steps, trace.committed_at
    fresh = when[None] == np.arange(steps)[1:, None] - 1
    fresh &= (when >= 0) & ~ends
    counted = fresh.any(axis=1) if of_text else np.ones(steps - 1, dtype=bool)
    # 2. chances of a hit: of any key at this step, and of this key at any step
    ever = fresh.sum(axis=0) / max(int(counted.sum()), 1)
    share = fresh.sum(axis=1) / max(int((~ends).sum()), 1)
    # 3. onsets of all layers
    count = hits = by_keys = by_time = 0.0
    for layer in iter_layers(trace):
        labels = rule.labels(head_mean(layer)) & ~ends
        begins = (labels[1:] & ~labels[:-1]) & counted[:, None]
        count += begins.sum()
        hits += (begins * fresh).sum()
        by_keys += (begins * share[:, None]).sum()
        by_time += (begins * ever).sum()
    if not count:
        return OnsetShares(np.nan, np.nan, np.nan)
    return OnsetShares(*(float(total / count) for total in (hits, by_keys, by_time)))


def beyond_even(layer: LayerSlice) -> np.ndarray:
    """[step, key] head-mean attention received, less what even attention gives."""
    return head_mean(layer) - layer.null()[:, 0]


def fixed_shares(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt, 2] share of layers and steps whose greatest key, beyond even attention on the
    head-mean map, is position 0, and is at the commonest place of the prompt."""

    def compute() -> np.ndarray:
        runs = evidence[spec]
        shares = np.full((runs.count, 2), np.nan)
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            tops = [find_top_key(beyond_even(layer))[0] for layer in iter_layers(trace)]
            top = np.concatenate(tops)
            top = top[top >= 0]
            if top.size:
                shares[index] = np.mean(top == 0), np.bincount(top).max() / top.size
        return shares

    shares: np.ndarray = evidence.once((spec, "fixed shares"), compute)
    return shares


def absorbed_by_layer(evidence: Evidence, spec: Runs) -> dict[str, np.ndarray]:
    """[prompt, layer] attention beyond even attention on the head-mean map: on its greatest key
    (`top1`) and on position 0 (`first`), mean over steps."""

    def compute() -> dict[str, np.ndarray]:
        runs = evidence[spec]
        values: dict[str, np.ndarray] = {}
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            maps = [beyond_even(layer) for layer in iter_layers(trace)]
            found = {
                "top1": [mean_of(np.nanmax(beyond, axis=-1)) for beyond in maps],
                "first": [mean_of(beyond[:, 0]) for beyond in maps],
            }
            for name, layers in found.items():
                empty = np.full((runs.count, len(layers)), np.nan)
                values.setdefault(name, empty)[index] = layers
        return values

    values: dict[str, np.ndarray] = evidence.once((spec, "absorbed by layer"), compute)
    return values


def turnover_across_layers(trace: Trace) -> float:
    """Of the anchors of two neighbouring layers, those of one layer only: 1 - Jaccard.

    On head-mean maps beyond even attention, mean over steps and pairs of layers; NaN of one layer.
    """
    labels = [floating().labels(beyond_even(layer)) for layer in iter_layers(trace)]
    changes = [
        1 - (upper & lower).sum(axis=-1) / (upper | lower).sum(axis=-1)
        for upper, lower in pairwise(labels)
    ]
    return float(np.mean(changes)) if changes else np.nan


def map_anchor_counts(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt, layer] anchors (mean + 3 sd) of the head-mean map, mean over steps."""

    def compute() -> np.ndarray:
        runs = evidence[spec]
        layers = runs.traces[0].manifest["model"]["layers"]
        counts = np.full((runs.count, layers), np.nan)
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            counts[index] = [
                ANCHORS.labels(head_mean(layer)).sum(axis=-1).mean() for layer in iter_layers(trace)
            ]
        return counts

    counts: np.ndarray = evidence.once((spec, "anchors of maps"), compute)
    return counts


def angle_sizes(evidence: Evidence) -> np.ndarray:
    """[prompt, layer] |angle| / (|angle| + |norm|) of each anchor's logit advantage, then the mean
    over anchors, heads and steps: parts of either sign do not cancel."""

    def compute() -> np.ndarray:
        runs = evidence[MDM_RUNS]
        layers = runs.traces[0].manifest["model"]["layers"]
        sizes = np.full((runs.count, layers), np.nan)
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            sizes[index] = [_angle_size(layer) for layer in iter_layers(trace)]
        return sizes

    sizes: np.ndarray = evidence.once((MDM_RUNS, "angle sizes"), compute)
    return sizes


def _angle_size(layer: LayerSlice) -> float:
    logit, product = (read_columns(layer, name) for name in ("logit", "norm_product"))
    anchors = SinkColumns(layer, floating(), "all", logit)
    norms, other_norms = anchors.at_sinks(product), anchors.mean_of_others(product)
    logits, other_logits = anchors.at_sinks(logit), anchors.mean_of_others(logit)
    with np.errstate(invalid="ignore", divide="ignore"):
        angle, norm = shapley(logits / norms, norms, other_logits / other_norms, other_norms)
        return mean_of(np.abs(angle) / (np.abs(angle) + np.abs(norm)))


def greatest_keys(evidence: Evidence, spec: Runs) -> list[np.ndarray]:
    """Of each trace: all heads' greatest keys beyond even attention, over layers and steps."""

    def compute() -> list[np.ndarray]:
        each = [
            [top_key_beyond(layer) for layer in iter_layers(item)] for item in evidence[spec].traces
        ]
        return [np.ravel(item)[np.ravel(item) >= 0] for item in each]

    keys: list[np.ndarray] = evidence.once((spec, "greatest_beyond"), compute)
    return keys


def anchor_turnover(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt] of the anchors of two steps together, those of one step only: 1 - Jaccard."""
    options = {"rule": floating(), "lags": (1,)}
    return 1 - by_prompt(evidence, spec, "set_jaccard", "jaccard", options=options).value


def draw_anchor_paths(evidence: Evidence) -> Figure | None:
    """Where the greatest key of every head is, over the steps of one prompt."""
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[TEXT_RUNS].traces[:1])
    return sink_positions(metrics.sink_positions(first, ANCHORS)) if first else None


def drift_beyond_frontier(trace: Trace) -> float:
    """Partial rank correlation of the greatest key's place with the step, given where the mean of
    the committed positions is; NaN where text is written strictly from left to right."""
    shares = trace["received"].sel(group="all").values
    top = np.nan_to_num(shares, nan=-1.0).argmax(axis=-1)  # [step, layer, head]
    when, steps = trace.committed_at, np.arange(1, trace.num_steps)
    written = [np.flatnonzero((when >= 0) & (when < step)) for step in steps]
    if len(steps) < 3 or not all(len(positions) for positions in written):
        return np.nan
    frontier = np.array([positions.mean() for positions in written])
    path = top[1:].reshape(len(steps), -1).T.astype(float)
    step = np.broadcast_to(steps.astype(float), path.shape)
    front = np.broadcast_to(frontier, path.shape)
    a, b, c = spearman(path, step), spearman(path, front), spearman(step, front)
    size = (1 - b**2) * (1 - c**2)
    defined = size > 1e-9  # NaN is not
    return (
        float(np.mean((a - b * c)[defined] / np.sqrt(size[defined]))) if defined.any() else np.nan
    )


def explained_variance(evidence: Evidence) -> dict[str, np.ndarray]:
    """[prompt, layer] share of the variance of attention on keys that token and place explain."""
    runs = evidence[MDM_RUNS]
    table = evidence.once(
        (MDM_RUNS, "meaning_or_place", "prompts"),
        partial(
            metrics.meaning_or_place, list(runs.traces), held_out="prompts", by=["prompt", "layer"]
        ),
    )
    rows = table[table["outcome"] == "received"]
    return {name: by_layer(runs, rows[rows["quantity"] == name]) for name in ("token", "place")}


def share_lost(halves: np.ndarray) -> float:
    """The part of the shallow half's anchors that the deep half lacks."""
    return float(1 - halves[1] / halves[0])


def draw_spread(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    return profile(metrics.concentration(list(evidence[MDM_RUNS].traces)))


def absorbed_share(
    evidence: Evidence, spec: Runs, name: str, *, over: str | None = None
) -> PerPrompt:
    """Share of attention that a set of keys takes; the null is even attention's on the same."""
    return by_prompt(evidence, spec, "absorption", name, over=over, options={"sets": KEY_SETS})


def absorbed_shares(evidence: Evidence, spec: Runs) -> dict[str, np.ndarray]:
    """[prompt] attention beyond even attention on the keys that have most of it."""
    runs, names = evidence[spec], ("top1", "top5", "anchors")

    def compute() -> dict[str, np.ndarray]:
        values = np.full((runs.count, len(names)), np.nan)
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            each = [absorbed_beyond(layer, ANCHORS) for layer in iter_layers(trace)]
            values[index] = [mean_of(shares) for shares in np.moveaxis(np.array(each), 1, 0)]
        return dict(zip(names, values.T, strict=True))

    kept: dict[str, np.ndarray] = evidence.once((spec, "absorbed_beyond"), compute)
    return kept


def draw_absorption(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    both = [trace for spec in (MDM_RUNS, ARM_RUNS) for trace in evidence[spec].traces]
    return profile(metrics.absorption(both, ["first", "top1", "top5", ANCHORS]))


def draw_absorption_by_depth(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_strength import profile

    return profile(metrics.absorption(list(evidence[MDM_RUNS].traces), ["top1", ANCHORS]))


def weight_correlation(first: pd.DataFrame, other: pd.DataFrame) -> float:
    """Correlation of weights at the same places, the least of all layers; NaN of other shapes."""
    sides = [
        table.groupby("layer")["held"].agg(lambda parts: np.concatenate(list(parts)))
        for table in (first, other)
    ]
    if [len(weights) for weights in sides[0]] != [len(weights) for weights in sides[1]]:
        return np.nan
    if set(first["shape"]) != set(other["shape"]):
        return np.nan
    return min(float(np.corrcoef(a, b)[0, 1]) for a, b in zip(*sides, strict=True))


def onset_layer(profiles: np.ndarray) -> np.ndarray:
    """[prompt] the layer before which the mean over layers rises most, in standard errors.

    >>> onset_layer(np.array([[0.1, 0.1, 0.5, 0.6], [0.0, 0.4, 0.4, 0.4]])).tolist()
    [2.0, 1.0]
    """
    layers = profiles.shape[1]
    layer = np.arange(1, layers)
    weight = np.sqrt(layer * (layers - layer) / layers)
    steepest = (mean_steps(profiles) * weight).argmax(axis=1) + 1.0
    return np.where(np.isnan(profiles).any(axis=1), np.nan, steepest)


def onset_rise(profiles: np.ndarray) -> np.ndarray:
    """[prompt] the rise at the layer that all other prompts have it at: chance finds no rise."""
    values = np.full(len(profiles), np.nan)
    steps = mean_steps(profiles)
    for prompt in range(len(profiles)):
        others = means_of(np.delete(profiles, prompt, axis=0))
        if len(profiles) > 1 and not np.isnan(others).any():
            values[prompt] = steps[prompt, int(onset_layer(others[None])[0]) - 1]
    return values


def mean_steps(profiles: np.ndarray) -> np.ndarray:
    """[prompt, place] mean of the layers from a place on, less that of those before."""
    layers = profiles.shape[1]
    layer = np.arange(1, layers)
    before = np.cumsum(profiles, axis=1)[:, :-1]
    return (profiles.sum(axis=1, keepdims=True) - before) / (layers - layer) - before / layer


def chance_distance(layers: int) -> float:
    """Mean distance of two places drawn evenly."""
    layer = np.arange(1, layers)
    return float(np.abs(layer[:, None] - layer).mean())


def norm_helps(evidence: Evidence) -> np.ndarray:
    """[prompt, layer] share of heads whose anchors the norm works for: parts of either sign may
    cancel in a sum, signs do not."""
    runs = evidence[MDM_RUNS]
    table = evidence.once(
        (MDM_RUNS, "qk_split", "head"),
        lambda: metrics.qk_split(list(runs.traces), floating(), by=["prompt", "layer", "head"]),
    )
    norm = table[table["quantity"] == "norm"].dropna(subset="value")
    helps = norm.assign(value=(norm["value"] > 0).astype(float))
    rows = helps.groupby(["prompt", "layer"], as_index=False)["value"].mean()
    return by_layer(runs, rows)


def draw_angle_and_norm(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.geometry import shapley_bars

    return shapley_bars(metrics.qk_split(list(evidence[MDM_RUNS].traces), floating()))


def draw_structure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.sink_classes import structure

    return structure(
        metrics.structure(list(evidence[MDM_RUNS].traces), floating(), template=TEMPLATE_WORDS)
    )


def by_head(evidence: Evidence, spec: Runs) -> dict[str, np.ndarray]:
    """[prompt, layer, head] of `reads`: attention to gold, to others, copies."""

    def compute() -> dict[str, np.ndarray]:
        runs = evidence[spec]
        scores: dict[str, np.ndarray] = {}
        for index, trace in zip(runs.indices, runs.traces, strict=True):
            attention = read_passage_attention(trace)
            for name in ("gold", "other", "copy"):
                values: np.ndarray = getattr(attention, name)
                empty = np.full((runs.count, *values.shape), np.nan)
                scores.setdefault(name, empty)[index] = values
        return scores

    scores: dict[str, np.ndarray] = evidence.once((spec, "reads"), compute)
    return scores


def score_answers(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt] whether the answer is right; NaN where there is no run."""
    runs = evidence[spec]
    values = np.full(runs.count, np.nan)
    for index, trace in zip(runs.indices, runs.traces, strict=True):
        values[index] = score_answer(trace, evidence.protocol.item_of("asked", index))
    return values


def of_right_answers(evidence: Evidence, spec: Runs, *, right: np.ndarray) -> dict[str, np.ndarray]:
    """`by_head` of some prompts, NaN on others: what heads look at in wrong answers is no
    retrieval."""
    return {
        name: np.where(right[:, None, None], values, np.nan)
        for name, values in by_head(evidence, spec).items()
    }


def retrieval_scores(evidence: Evidence) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`by_head` of the MDM and of the ARM on prompts that both answer rightly, NaN on others.

    What heads look at while a wrong answer is written is no retrieval.
    """
    mdm, arm = (score_answers(evidence, spec) == 1 for spec in (MDM_RUNS, ARM_RUNS))
    both = mdm & arm
    if both.sum() < FEWEST_RIGHT:
        raise EvidenceError(
            f"{FEWEST_RIGHT} prompts or more that both models answer rightly: of {len(both)} "
            f"there are {both.sum()} (the MDM is right in {mdm.sum()}, the ARM in {arm.sum()})"
        )
    own, other = (of_right_answers(evidence, spec, right=both) for spec in (MDM_RUNS, ARM_RUNS))
    return own, other


def draw_retrieval_map(evidence: Evidence) -> Figure | None:
    """What is judged: rows of right answers, without the end tokens that fill their length."""
    from anchorwatch.figures.retrieval import retrieval_map

    runs, right = evidence[MDM_RUNS], score_answers(evidence, MDM_RUNS) == 1
    pairs = zip(runs.indices, runs.traces, strict=True)
    traces = [trace for index, trace in pairs if right[index]]
    if not traces:
        return None
    ends = traces[0].manifest["model"].get("end_ids", ())
    return retrieval_map(metrics.retrieval_heads(traces, ignore=ends))


def effective_share_of_heads(scores: np.ndarray) -> float:
    """The share of heads that retrieval is effectively spread over: 1 if all score alike."""
    squares = float(np.sum(scores**2))
    return float(scores.sum() ** 2 / (len(scores) * squares)) if squares > 0 else np.nan


def draw_gains(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.evaluation import gain_bars

    return gain_bars(gains(evidence[GAIN].results))


def scores_by_role(evidence: Evidence, spec: Answers) -> dict[str, np.ndarray]:
    """[item, context] of each role; a model that answers nothing in any context is refused."""
    scores = {}
    for role in spec.asks:
        scores[role] = by_item(evidence, spec, [(role, name, "none") for name in spec.contexts])
        require_accuracy(mean_of(scores[role]), LEAST_ACCURACY, ROLES[role][0])
    return scores


def u_index(right: np.ndarray) -> np.ndarray:
    """[item] accuracy with the evidence first or last, less in the middle."""
    return (right[:, 0] + right[:, 2]) / 2 - right[:, 1]


def layout_costs(right: np.ndarray) -> dict[str, np.ndarray]:
    """[item] what passages apart (far) and in the other order cost, and the mean of both."""
    far, order = right[:, 0] - right[:, 1], right[:, 0] - right[:, 2]
    return {"layouts": (far + order) / 2, "far": far, "order": order}


def mean_gain(evidence: Evidence, *, role: str) -> float:
    """Accuracy with the passage less without."""
    closed, gold = by_item(evidence, GAIN, [(role, name, "none") for name in GAIN.contexts]).T
    return mean_of(gold - closed)


def draw_positions(evidence: Evidence) -> Figure | None:
    from anchorwatch.evaluation.tables import curve
    from anchorwatch.figures.evaluation import position_curve

    return position_curve(curve(evidence[GOLD_POSITIONS].results, "position"))


def draw_noise(evidence: Evidence) -> Figure | None:
    from anchorwatch.evaluation.tables import curve
    from anchorwatch.figures.evaluation import noise_curve

    return noise_curve(curve(evidence[DISTRACTED].results, "noise"))


def partial_correlation(y: np.ndarray, x: np.ndarray, z: np.ndarray) -> Estimate:
    """Correlation of y and x over prompts, given z: a smooth function of means."""
    values = {"y": y, "x": subtract_mean(x), "z": subtract_mean(z)}
    rows = [*values.values(), *(values[a] * values[b] for a, b in MOMENTS)]
    return Correlation.jackknife(np.column_stack(rows), partial_from_moments, PROMPT)


def subtract_mean(values: np.ndarray) -> np.ndarray:
    """Nothing but numerics: products of small numbers keep more digits."""
    return values - mean_of(values)


def partial_from_moments(means: np.ndarray) -> float:
    """From means of y, x, z and of `MOMENTS`; z that never varies takes nothing out."""
    first = dict(zip("yxz", means[:3], strict=True))
    cov = {a + b: means[3 + index] - first[a] * first[b] for index, (a, b) in enumerate(MOMENTS)}
    taken = 1 / cov["zz"] if cov["zz"] > 1e-9 else 0.0
    both = cov["yx"] - cov["yz"] * cov["xz"] * taken
    sizes = [cov[a + a] - cov[a + "z"] ** 2 * taken for a in "yx"]
    return both / sqrt(sizes[0] * sizes[1]) if min(sizes) > 1e-15 else np.nan


def divergences(own: np.ndarray, other: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Divergences in bits of a prompt's lifts from another task's and from the rest of its own.

    Of kinds of token that all three have: what a prompt has no keys of says nothing.
    """
    present = ~np.isnan(own + other + rest)
    if not present.any():
        return np.full(2, np.nan)
    return np.array([jensen_shannon(own[present], profile[present]) for profile in (other, rest)])


def anchor_profiles(evidence: Evidence, spec: Runs) -> np.ndarray:
    """[prompt, class] share of anchors over the class's share of the keys; NaN: it has no keys."""
    runs: TraceSet = evidence[spec]
    words = TEMPLATE_WORDS if spec.prompts == "asked" else ()
    table = metrics.enrichment(list(runs.traces), floating(), by=["prompt"], template=words)
    share, even = (by_cell(runs, table, "class", name) for name in ("value", "null"))
    profile = np.full((runs.count, len(CLASSES)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        for name, null in even.items():
            lift = np.where(null > 0, share[name] / null, np.nan)
            profile[:, CLASSES.index(str(name))] = lift
    return profile
