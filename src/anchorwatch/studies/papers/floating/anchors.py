"""Claims of 2601.07894 about where anchors are: fixed, moving, appearing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits.spec import freeze_canvas
from anchorwatch.metrics.layer_slices import iter_layers
from anchorwatch.metrics.sink_rules import zscore
from anchorwatch.metrics.stats.ranks import spearman
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, by_trace, mean_of
from anchorwatch.studies.least import Least
from anchorwatch.studies.needs import Runs
from anchorwatch.studies.papers.floating.anchor_rule import (
    drifts,
    floating,
    greatest_beyond,
    onsets,
    predicting_turnover,
)
from anchorwatch.trace.trace import Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")
FROZEN = Runs("mdm", edits=(freeze_canvas(),))
ANCHORS = zscore(3.0)
"""The rule of the paper's temporal figures."""


def _greatest_keys(evidence: Evidence, need: Runs) -> list[np.ndarray]:
    """Of each trace: all heads' greatest keys beyond even attention, over layers and steps."""

    def made() -> list[np.ndarray]:
        each = [
            [greatest_beyond(layer) for layer in iter_layers(one)] for one in evidence[need].traces
        ]
        return [np.ravel(one)[np.ravel(one) >= 0] for one in each]

    found: list[np.ndarray] = evidence.once((need, "greatest_beyond"), made)
    return found


def _measure_fixed(evidence: Evidence) -> Finding:
    shares = {}
    for need in (ARM, MDM):
        held, keys = evidence[need], _greatest_keys(evidence, need)
        shares[need] = np.full((held.count, 2), np.nan)
        for place, one in zip(held.places, keys, strict=True):
            if one.size:
                shares[need][place] = np.mean(one == 0), np.bincount(one).max() / one.size
    first = by_prompt(evidence, ARM, "absorption", "first", options={"sets": ("first",)})
    beyond = Estimate.mean(first.value - first.null, PROMPT, _GAP)
    length = by_trace(evidence[ARM], lambda trace: trace.canvas.shape[1])
    return Finding(
        {
            "arm": Measured(
                Estimate.mean(shares[ARM][:, 0], PROMPT, _SHARE), null=mean_of(1 / length)
            ),
            "beyond the mask": Measured(beyond, null=0.0),
            "mdm": Measured(Estimate.mean(shares[MDM][:, 1], PROMPT, _SHARE)),
        },
        {
            "share on position 0, ARM": mean_of(first.value),
            "of even attention": mean_of(first.null),
            "position 0 is the greatest key of the MDM": mean_of(shares[MDM][:, 0]),
            "commonest greatest key of the ARM": mean_of(shares[ARM][:, 1]),
        },
    )


def turnover(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt] of the anchors of two steps together, those of one step only: 1 - Jaccard."""
    options = {"rule": floating(), "lags": (1,)}
    return 1 - by_prompt(evidence, need, "set_jaccard", "jaccard", options=options).value


def _moves(evidence: Evidence) -> Finding:
    mdm, arm = (by_trace(evidence[need], predicting_turnover) for need in (MDM, ARM))
    every, frozen = (turnover(evidence, need) for need in (MDM, FROZEN))
    return Finding(
        {
            "moves": Measured(Estimate.mean(every, PROMPT, _SHARE), null=mean_of(frozen)),
            "beside the ARM": Measured(Estimate.mean(mdm - arm, PROMPT, _GAP), 0.0, mean_of(arm)),
        },
        {
            "of rows that predict, MDM": mean_of(mdm),
            "of all rows, ARM, which its mask holds still": mean_of(turnover(evidence, ARM)),
        },
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    """Where the greatest key of every head is, over the steps of one prompt."""
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[MDM].traces[:1])
    return sink_positions(metrics.sink_positions(first, ANCHORS)) if first else None


def _drifts(evidence: Evidence) -> Finding:
    held = evidence[MDM]
    both = np.full((held.count, 2, held.traces[0].manifest["model"]["layers"]), np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        both[place] = np.transpose([drifts(layer) for layer in iter_layers(trace)])
    names = ("anchors", "greatest key")
    found = {
        name: Measured(Least.among([Estimate.mean(x, PROMPT, _GAP) for x in drift.T]), null=0.0)
        for name, drift in zip(names, both.swapaxes(0, 1), strict=True)
    }
    also = {
        f"drift of the {name}, mean over layers": mean_of(drift)
        for name, drift in zip(names, both.swapaxes(0, 1), strict=True)
    }
    given = by_trace(held, _beyond_frontier)
    if np.isfinite(given).any():
        also["rank correlation of place and step, given the frontier"] = mean_of(given)
    return Finding(found, also)


def _beyond_frontier(trace: Trace) -> float:
    """Partial rank correlation of the greatest key's place with the step, given where the mean of
    the committed positions is; NaN where text is written strictly from left to right."""
    shares = trace["received"].sel(group="all").values
    place = np.nan_to_num(shares, nan=-1.0).argmax(axis=-1)  # [step, layer, head]
    when, steps = trace.committed_at, np.arange(1, trace.num_steps)
    written = [np.flatnonzero((when >= 0) & (when < step)) for step in steps]
    if len(steps) < 3 or not all(len(one) for one in written):
        return np.nan
    frontier = np.array([one.mean() for one in written])
    path = place[1:].reshape(len(steps), -1).T.astype(float)
    step = np.broadcast_to(steps.astype(float), path.shape)
    front = np.broadcast_to(frontier, path.shape)
    a, b, c = spearman(path, step), spearman(path, front), spearman(step, front)
    size = (1 - b**2) * (1 - c**2)
    there = size > 1e-9  # NaN is not
    return float(np.mean((a - b * c)[there] / np.sqrt(size[there]))) if there.any() else np.nan


def _onsets(evidence: Evidence) -> Finding:
    held = evidence[MDM]
    each = [onsets(trace, ANCHORS) for trace in held.traces]
    found = np.full((held.count, 3), np.nan)
    for place, one in zip(held.places, each, strict=True):
        found[place] = one.fresh, one.keys, one.shuffled
    fresh, keys, shuffled = found.T
    with_ends = by_prompt(
        evidence, MDM, "onsets", "share_just_committed", options={"rule": ANCHORS}
    ).value
    return Finding(
        {
            "beyond chance": Measured(Estimate.mean(fresh - keys, PROMPT, _GAP), null=0.0),
            "beyond other steps": Measured(
                Estimate.mean(fresh - shuffled, PROMPT, _GAP), null=0.0, control=mean_of(shuffled)
            ),
        },
        {
            "share of onsets just committed": mean_of(fresh),
            "share of keys just committed": mean_of(keys),
            "share of onsets just committed, end tokens among them": mean_of(with_ends),
        },
    )


CLAIMS = (
    Claim(
        "floating/H1",
        "An autoregressive model's attention sinks into one fixed place, the first token; a masked "
        "diffusion model's does not.",
        f"{_PAPER}, abstract and introduction",
        "ARM fixed, MDM not; no number",
        PROMPT,
        needs=(ARM, MDM),
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
        judge=_measure_fixed,
        defect="the published comparison is on finished text, without a masked position",
        caveat="heads and steps are averaged within a prompt; prompts are the unit",
    ),
    Claim(
        "floating/H2",
        "Anchors of a masked diffusion model move from step to step, more than an autoregressive "
        "model's.",
        f"{_PAPER}, README, temporal figures",
        "qualitative; in the released deep-layer example the greatest key moves at two steps of 32",
        PROMPT,
        needs=(MDM, ARM, FROZEN),
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
        judge=_moves,
        draw=_path_figure,
        defect="no released code makes the input of the temporal figure",
        caveat="anchors are keys above mean + 3 sd, or the greatest. Earlier rows of a causal "
        "model never change, whatever it attends to, so that models are compared by rows that "
        "predict",
    ),
    Claim(
        "floating/H3",
        "Anchors drift to the right over denoising, at each layer.",
        f"{_PAPER}, README, temporal figures",
        "right shift at each layer; 2510.15731: LLaDA to the right, Dream to the left",
        PROMPT,
        needs=(MDM,),
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
        judge=_drifts,
        draw=_path_figure,
        defect="no statistic of drift is computed anywhere",
        caveat="anchors that follow what is written drift the way it is written, which may be from "
        "either end; the correlation given the frontier says what is left. Quarters, because the "
        "median slope of a key that moves at few steps is exactly 0",
    ),
    Claim(
        "floating/H4",
        "Anchors appear at positions that were committed a step before, more often than chance "
        "has it.",
        f"{_PAPER}, temporal figure of layer 0",
        "three positions of one example do so",
        PROMPT,
        needs=(MDM,),
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
        judge=_onsets,
        defect="no released code makes the input of the temporal figure",
        caveat="end tokens fill what is left of the canvas; with them in, see the last number",
    ),
)
