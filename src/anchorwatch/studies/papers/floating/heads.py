"""Claims of 2601.07894 about retrieval heads: where they are, how many, whether they matter."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.errors import EvidenceError
from anchorwatch.studies import sets
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import weighted_depth
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, mean_of, means_of
from anchorwatch.studies.needs import ROLES, Rows, Runs
from anchorwatch.studies.papers.floating.anchors import ARM, MDM
from anchorwatch.studies.reading import RIGHT, reads, right

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
_SHARE, _GAP = (0.0, 1.0), (-1.0, 1.0)
OUT = {role: Rows(role, "heads_taken", passes=200) for role in ("mdm", "arm")}
LEAST = 0.3
"""Unedited accuracy below which there is too little to lose."""
RETRIEVES = 0.1
"""Wu et al.'s score of a retrieval head."""
_NO_SCRIPT = "no script for retrieval heads was released"


def by_head(evidence: Evidence, need: Runs) -> dict[str, np.ndarray]:
    """[prompt, layer, head] of `reads`: attention to gold, to others, copies."""

    def made() -> dict[str, np.ndarray]:
        held = evidence[need]
        found: dict[str, np.ndarray] = {}
        for place, trace in zip(held.places, held.traces, strict=True):
            one = reads(trace)
            for name in ("gold", "other", "copy"):
                values: np.ndarray = getattr(one, name)
                empty = np.full((held.count, *values.shape), np.nan)
                found.setdefault(name, empty)[place] = values
        return found

    found: dict[str, np.ndarray] = evidence.once((need, "reads"), made)
    return found


def score_answers(evidence: Evidence, need: Runs) -> np.ndarray:
    """[prompt] whether the answer is right; NaN where there is no run."""
    held = evidence[need]
    found = np.full(held.count, np.nan)
    for place, trace in zip(held.places, held.traces, strict=True):
        found[place] = right(trace, sets.ASKED[place])
    return found


def _retrieval_scores(evidence: Evidence) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`by_head` of the MDM and of the ARM on prompts that both answer rightly, NaN on others.

    What heads look at while a wrong answer is written is no retrieval.
    """
    mdm, arm = (score_answers(evidence, need) == 1 for need in (MDM, ARM))
    both = mdm & arm
    if both.sum() < RIGHT:
        raise EvidenceError(
            f"{RIGHT} prompts or more that both models answer rightly: of {len(both)} there are "
            f"{both.sum()} (the MDM is right in {mdm.sum()}, the ARM in {arm.sum()})"
        )
    told = [by_head(evidence, need) for need in (MDM, ARM)]
    kept = [
        {name: np.where(both[:, None, None], held, np.nan) for name, held in one.items()}
        for one in told
    ]
    return kept[0], kept[1]


def _deep(evidence: Evidence) -> Finding:
    mdm, arm = _retrieval_scores(evidence)
    mine, other, theirs = (one.mean(axis=2) for one in (mdm["gold"], mdm["other"], arm["gold"]))
    layers = mine.shape[1]

    def apart(means: np.ndarray) -> float:
        return weighted_depth(means[:layers]) - weighted_depth(means[layers:])

    def beside(held: np.ndarray) -> Measured:
        effect = Estimate.jackknife(np.hstack([mine, held]), apart, PROMPT)
        return Measured(replace(effect, bounds=_GAP), 0.0, weighted_depth(means_of(held)))

    own = replace(Estimate.jackknife(mine, weighted_depth, PROMPT), bounds=_SHARE)
    return Finding(
        {
            "deep": Measured(own, 0.5),
            "beside other passages": beside(other),
            "beside the ARM": beside(theirs),
        },
        {
            f"attention to gold, {where} layer": mean_of(mine[:, at])
            for where, at in (("first", 0), ("last", -1))
        },
    )


def _map_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.retrieval import retrieval_map

    return retrieval_map(metrics.retrieval_heads(list(evidence[MDM].traces)))


def _carried_by(scores: np.ndarray) -> float:
    """The share of heads that retrieval is effectively spread over: 1 if all score alike."""
    squares = float(np.sum(scores**2))
    return float(scores.sum() ** 2 / (len(scores) * squares)) if squares > 0 else np.nan


def _few(evidence: Evidence) -> Finding:
    held = [one["copy"].reshape(len(one["copy"]), -1) for one in _retrieval_scores(evidence)]
    heads = held[0].shape[1]

    def apart(means: np.ndarray) -> float:
        return _carried_by(means[:heads]) - _carried_by(means[heads:])

    mdm = replace(Estimate.jackknife(held[0], _carried_by, PROMPT), bounds=_SHARE)
    beside = replace(Estimate.jackknife(np.hstack(held), apart, PROMPT), bounds=_GAP)
    arm = _carried_by(means_of(held[1]))
    also = {
        f"share of heads that copy at least a tenth, {role}": float(
            (means_of(one) >= RETRIEVES).mean()
        )
        for role, one in zip(("MDM", "ARM"), held, strict=True)
    }
    return Finding({"mdm": Measured(mdm, 1.0), "beside the ARM": Measured(beside, 0.0, arm)}, also)


def _matter(evidence: Evidence) -> Finding:
    found, also = {}, {}
    for role, need in OUT.items():
        table: pd.DataFrame = evidence[need]
        whole, heads, others = (
            table[f"right_{name}"].to_numpy(dtype=float) for name in ("none", "heads", "others")
        )
        answers(mean_of(whole), LEAST, ROLES[role][0])
        control = mean_of(others - whole)
        found[role] = Measured(Estimate.pairs(heads, others, ITEM), 0.0, control)
        also[f"{role.upper()} unedited"] = mean_of(whole)
        also[f"{role.upper()} without {int(table['heads'].iloc[0])} retrieval heads"] = mean_of(
            heads
        )
    return Finding(found, also)


CLAIMS = (
    Claim(
        "floating/H13",
        "Retrieval heads of masked diffusion models lie deep, deeper than those of autoregressive "
        "ones.",
        f"{_PAPER}, retrieval-head maps",
        "weighted relative depth .62 (LLaDA), .66 (Dream); ARMs .46 to .63",
        PROMPT,
        needs=(MDM, ARM),
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
        judge=_deep,
        draw=_map_figure,
        defect=_NO_SCRIPT,
        caveat="the published score is not known; attention to the evidence is the likeliest. Of "
        "prompts that both models answer rightly",
    ),
    Claim(
        "floating/H14",
        "Retrieval heads of masked diffusion models are few, and no larger a part of all than in "
        "autoregressive ones.",
        f"{_PAPER}, retrieval-head maps",
        "ARMs 2 to 6 % at .1 or more; the MDM map has 20 % at .5 or more, on an unknown scale",
        PROMPT,
        needs=(MDM, ARM),
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
        judge=_few,
        draw=_map_figure,
        defect=_NO_SCRIPT,
        caveat="a share of heads above a threshold has no standard error over prompts, so that an "
        "effective number stands for it. Of prompts that both models answer rightly",
    ),
    Claim(
        "floating/H15",
        "Retrieval heads matter: taking them out costs answers, more than as many others of the "
        "same layers.",
        f"{_PAPER}; Wu et al. for autoregressive models",
        "large drop in ARMs; not reported for MDMs",
        ITEM,
        needs=tuple(OUT.values()),
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
            for role in OUT
        ),
        judge=_matter,
        defect=_NO_SCRIPT + "; in Wu et al.'s control the heads under test are never left out",
        caveat="heads are found on other prompts, answered rightly beside another passage; 3 % of "
        "them, two at least. Questions have their own passage only, and other heads are drawn for "
        "each",
    ),
)
