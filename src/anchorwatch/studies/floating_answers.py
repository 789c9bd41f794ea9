"""Claims of 2601.07894 about answers: gain from passages, noise, places, layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from anchorwatch.evaluation.effects import slope
from anchorwatch.evaluation.tables import gains
from anchorwatch.studies.claim import GREATER, Claim, Criterion, Evidence, Finding, Measured
from anchorwatch.studies.estimates import ITEM, Estimate
from anchorwatch.studies.evidence import answers, by_item
from anchorwatch.studies.needs import ROLES, Asked

if TYPE_CHECKING:
    from anchorwatch.figures.figure import Figure

_PAPER = "arXiv 2601.07894"
GAIN = Asked(("mdm", "arm"), ("closed", "gold"))
NOISE = Asked(("mdm", "arm"), ("gold", "gold+1", "gold+2", "gold+4"))
LEAST = 0.05
"""Of the questions: a model that gains less from a passage has nothing to lose or to double."""
_DOUBLINGS = tuple(float(np.log2(1 + others)) for others in (0, 1, 2, 4))


def _doubles(evidence: Evidence) -> Finding:
    cells = [(role, context, "none") for role in ("mdm", "arm") for context in GAIN.contexts]
    scores = by_item(evidence, GAIN, cells)
    mdm, arm = scores[:, 1] - scores[:, 0], scores[:, 3] - scores[:, 2]
    means = np.nanmean(scores, axis=0)
    answers(
        float(np.nanmean(arm)), LEAST, f"with its passage, over the closed book, {ROLES['arm'][0]}"
    )
    gained, beside = float(np.nanmean(mdm)), float(np.nanmean(arm))
    also = {
        "gain of the MDM": gained,
        "gain of the ARM": beside,
        "ratio": gained / beside if beside > 0 else float("nan"),
        "MDM with passage": float(means[1]),
        "ARM with passage": float(means[3]),
        "MDM closed book": float(means[0]),
        "ARM closed book": float(means[2]),
    }
    effect = Estimate.mean(mdm - 2 * arm, ITEM, (-3.0, 3.0))
    return Finding({"doubles": Measured(effect, null=-beside, control=beside)}, also)


def _gain_figure(evidence: Evidence) -> Figure | None:
    from anchorwatch.figures.evaluation import gain_bars

    return gain_bars(gains(evidence[GAIN].results))


def _flatter(evidence: Evidence) -> Finding:
    roles, of = ("mdm", "arm"), slope(_DOUBLINGS)
    cells = [(role, context, "none") for role in roles for context in NOISE.contexts]
    scores = by_item(evidence, NOISE, cells)
    half = len(NOISE.contexts)
    for role, share in zip(roles, np.nanmean(scores, axis=0)[[0, half]], strict=True):
        answers(float(share), LEAST, ROLES[role][0])
    mdm, arm = of(scores[:, :half]), of(scores[:, half:])
    also = {
        f"slope of the {role.upper()}": float(np.nanmean(x))
        for role, x in zip(roles, (mdm, arm), strict=True)
    }
    return Finding({"slope": Measured(Estimate.mean(mdm - arm, ITEM), null=0.0)}, also)


CLAIMS = (
    Claim(
        "floating/H20",
        "Masked diffusion models are not lost in the middle.",
        f"{_PAPER}, stress tests; 2511.21338 reports the contrary, a bias to what is near",
        "claimed, numbers not known to us",
        ITEM,
    ),
    Claim(
        "floating/H21",
        "Distracting passages cost a masked diffusion model less than an autoregressive one.",
        f"{_PAPER}, stress tests",
        "claimed, numbers not known to us",
        ITEM,
        needs=(NOISE,),
        criteria=(
            Criterion(
                "slope",
                "change of accuracy per doubling of the passages, MDM less ARM, the same items",
                GREATER,
                0.01,
                "a point per doubling is the least that would matter over four doublings",
                null="no difference between the models",
            ),
        ),
        judge=_flatter,
        defect="no code for the stress tests was released",
    ),
    Claim(
        "floating/H22",
        "Evidence in two passages is put together by a masked diffusion model as well when they "
        "are apart, or in the other order.",
        f"{_PAPER}, stress tests",
        "claimed, numbers not known to us",
        ITEM,
        defect="no code for the stress tests was released",
    ),
    Claim(
        "floating/H23",
        "Passages help a masked diffusion model twice as much as an autoregressive one.",
        f"{_PAPER}, Table 1",
        "mean gain 19.46 against 8.51 points (2.29 times); Dream alone 1.56 times; with passages "
        "43.8 against 37.0",
        ITEM,
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
        judge=_doubles,
        draw=_gain_figure,
        defect="LLaDA, the model with the largest gain, has a prompt of its own; Llama gets two "
        "first tokens; the code of the closed book is missing",
        caveat="one prompt, one metric and greedy answers for both models",
    ),
    Claim(
        "floating/H24",
        "Part of LLaDA's gain is its prompt: with the others' three examples it gains less.",
        f"{_PAPER}, evaluation scripts",
        "untested; +25.68 points with its own prompt",
        ITEM,
    ),
    Claim(
        "floating/H25",
        "Moving attention, or attention on the evidence, goes with right answers within a model.",
        f"{_PAPER}, abstract: it is to explain in-context learning",
        "untested",
        ITEM,
    ),
)
