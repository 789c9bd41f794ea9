"""Claims of 2601.07894 about where anchors are: fixed, moving, appearing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from anchorwatch import metrics
from anchorwatch.edits import freeze_canvas
from anchorwatch.rules import zscore
from anchorwatch.stats.ranks import spearman
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import PROMPT, Estimate
from anchorwatch.studies.evidence import by_prompt, by_trace, mean_of
from anchorwatch.studies.least import Least
from anchorwatch.studies.needs import Runs
from anchorwatch.trace import Trace

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
MDM, ARM = Runs("mdm"), Runs("arm")
FROZEN = Runs("mdm", edits=(freeze_canvas(),))
ANCHORS = zscore(3.0)
"""The rule of the paper's temporal figures."""


def _greatest_is_first(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt] share of heads and steps whose greatest key is position 0."""
    held = evidence[need]
    table = evidence.once(
        (need, "sink_positions"), partial(metrics.sink_positions, list(held.traces))
    )
    there = table[table["position"] >= 0]
    first = (there["position"] == 0).groupby(there["trace"]).mean()
    found = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        found[place] = first.get(trace.digest()[:12], np.nan)
    return found


def _fixed(evidence: Evidence) -> Finding:
    arm, mdm = (_greatest_is_first(evidence, need) for need in (ARM, MDM))
    first = by_prompt(evidence, ARM, "absorption", "first", options={"sets": ("first",)})
    beyond = Estimate.mean(first.value - first.null, PROMPT, (-1.0, 1.0))
    return Finding(
        {
            "arm": Measured(Estimate.mean(arm, PROMPT, _SHARE), null=1.0),
            "beyond the mask": Measured(beyond, null=0.0),
            "mdm": Measured(Estimate.mean(mdm, PROMPT, _SHARE)),
        },
        {
            "share on position 0": mean_of(first.value),
            "of even attention": mean_of(first.null),
        },
    )


def turnover(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt] share of a head's anchors, of both steps together, that are not those of the next.

    Steps without an anchor on either side do not count.
    """
    options = {"rule": ANCHORS, "lags": (1,)}
    return 1 - by_prompt(evidence, need, "set_jaccard", "jaccard", options=options).value


def _moves(evidence: Evidence) -> Finding:
    mdm, arm, frozen = (turnover(evidence, need) for need in (MDM, ARM, FROZEN))
    return Finding(
        {
            "beside the ARM": Measured(Estimate.mean(mdm - arm, PROMPT, _GAP), 0.0, mean_of(arm)),
            "beside a frozen canvas": Measured(
                Estimate.mean(mdm - frozen, PROMPT, _GAP), 0.0, mean_of(frozen)
            ),
        },
        {"turnover of the MDM": mean_of(mdm)},
    )


def _path_figure(evidence: Evidence) -> Figure | None:
    """Where the greatest key of every head is, over the steps of one prompt."""
    from anchorwatch.figures.movement import sink_positions

    first = list(evidence[MDM].traces[:1])
    return sink_positions(metrics.sink_positions(first, ANCHORS)) if first else None


def _drifts(evidence: Evidence) -> Finding:
    held = evidence[MDM]
    whole = by_trace(held, lambda trace: (trace.num_steps - 1) / trace.canvas.shape[1])
    options = {"rule": ANCHORS}
    centre, greatest = (
        by_prompt(evidence, MDM, "direction", name, over="layer", options=options).value
        * whole[:, None]
        for name in ("centroid_slope", "slope_any")
    )
    found = {
        name: Measured(Least.among([Estimate.mean(layer, PROMPT) for layer in drift.T]), null=0.0)
        for name, drift in (("attention", centre), ("greatest key", greatest))
    }
    also = {
        "drift, mean over layers": mean_of(centre),
        "of the greatest key, mean over layers": mean_of(greatest),
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
    found = by_prompt(evidence, MDM, "onsets", "share_just_committed", options={"rule": ANCHORS})
    keys = by_trace(held, lambda trace: trace.canvas.shape[1])
    commits = by_trace(held, lambda trace: len(trace.answer) / trace.num_steps)
    chance = commits / keys
    return Finding(
        {
            "beyond chance": Measured(Estimate.mean(found.value - chance, PROMPT, _GAP), null=0.0),
            "beyond other steps": Measured(
                Estimate.mean(found.value - found.null, PROMPT, _GAP),
                null=0.0,
                control=mean_of(found.null),
            ),
        },
        {
            "share of onsets just committed": mean_of(found.value),
            "share of keys just committed": mean_of(chance),
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
                "share of heads and steps of the ARM whose greatest key is position 0",
                GREATER,
                0.9,
                "nine in ten is what 'fixed' is taken to mean",
                null="even attention under a causal mask: position 0 always receives most",
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
                "share of heads and steps of the MDM whose greatest key is position 0",
                LESS,
                0.9,
                "the same limit from the other side",
            ),
        ),
        judge=_fixed,
        defect="the published comparison is on finished text, without a masked position",
        caveat="heads and steps are averaged within a prompt; prompts are the unit",
    ),
    Claim(
        "floating/H2",
        "Anchors of a masked diffusion model move from step to step, more than an autoregressive "
        "model's, and because the canvas changes.",
        f"{_PAPER}, README, temporal figures",
        "qualitative; in the released deep-layer example the greatest key moves at two steps of 32",
        PROMPT,
        needs=(MDM, ARM, FROZEN),
        criteria=(
            Criterion(
                "beside the ARM",
                "turnover: share of a head's anchors that are not its anchors a step later, MDM "
                "less ARM on the same prompts",
                GREATER,
                0.05,
                "one anchor in twenty: about what the released deep-layer example shows",
                null="no difference between the models",
                control="the ARM",
            ),
            Criterion(
                "beside a frozen canvas",
                "the same of the MDM, less that of runs in which nothing is committed",
                GREATER,
                0.05,
                "one anchor in twenty",
                null="a canvas that does not change moves nothing",
                control="the same prompts with a frozen canvas",
            ),
        ),
        judge=_moves,
        draw=_path_figure,
        defect="no released code makes the input of the temporal figure",
        caveat="anchors are keys above mean + 3 sd; shuffled steps or layers would bound turnover "
        "from above, so that a canvas that stands still is the null",
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
                "attention",
                "drift over a run of the mean position weighted by attention (Theil-Sen slope), "
                "as a share of the canvas, of the layer that drifts least",
                GREATER,
                0.02,
                "one position of the published figure's 52",
                null="attention that stays where it is",
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
        caveat="text is written from left to right more often than not, and attention that follows "
        "it drifts too; the correlation given the frontier says what is left",
    ),
    Claim(
        "floating/H4",
        "Anchors appear at positions that were committed a step before.",
        f"{_PAPER}, temporal figure of layer 0",
        "three positions of one example do so",
        PROMPT,
        needs=(MDM,),
        criteria=(
            Criterion(
                "beyond chance",
                "share of new anchors that were committed a step before, less the share of all "
                "keys that were",
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
    ),
)
