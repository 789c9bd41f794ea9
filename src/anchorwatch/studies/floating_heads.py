"""Claims of 2601.07894 about retrieval heads: where they are, how many, whether they matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from anchorwatch import metrics
from anchorwatch.studies.claim import GREATER, LESS, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.depths import weighted_depth
from anchorwatch.studies.estimates import ITEM, PROMPT, Estimate
from anchorwatch.studies.evidence import answers, mean_of, means_of
from anchorwatch.studies.floating_anchors import ARM, MDM
from anchorwatch.studies.needs import ROLES, Rows, Runs
from anchorwatch.studies.reading import reads

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
OUT = {role: Rows(role, "heads_out", passes=400) for role in ("mdm", "arm")}
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


def _deep(evidence: Evidence) -> Finding:
    mdm, arm = (by_head(evidence, need) for need in (MDM, ARM))
    mine, theirs = (one["gold"].mean(axis=2) for one in (mdm, arm))
    layers = mine.shape[1]

    def apart(means: np.ndarray) -> float:
        return weighted_depth(means[:layers]) - weighted_depth(means[layers:])

    other = weighted_depth(means_of(mdm["other"].mean(axis=2)))
    beside = weighted_depth(means_of(theirs))
    return Finding(
        {
            "deep": Measured(Estimate.jackknife(mine, weighted_depth, PROMPT), 0.5, other),
            "beside the ARM": Measured(
                Estimate.jackknife(np.hstack([mine, theirs]), apart, PROMPT), 0.0, beside
            ),
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
    found, shares = {}, {}
    for role, need in (("MDM", MDM), ("ARM", ARM)):
        copy = by_head(evidence, need)["copy"]
        heads = copy.reshape(len(copy), -1)
        found[role] = Estimate.jackknife(heads, _carried_by, PROMPT)
        at_least = means_of(heads) >= RETRIEVES
        shares[f"share of heads that copy at least a tenth, {role}"] = float(at_least.mean())
    return Finding({"mdm": Measured(found["MDM"], 1.0, found["ARM"].value)}, shares)


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
                control="the passages without the answer, scaled to gold's length",
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
        caveat="the published score is not known; attention to the evidence is the likeliest",
    ),
    Claim(
        "floating/H14",
        "Retrieval heads are few.",
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
                control="the ARM",
            ),
        ),
        judge=_few,
        draw=_map_figure,
        defect=_NO_SCRIPT,
        caveat="a share of heads above a threshold has no standard error over prompts, so that an "
        "effective number stands for it",
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
        caveat="heads are found on other prompts; 3 % of them, two at least",
    ),
)
